"""Steps that read all weights for a few rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, LargerBatch, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.tpu.weights import ReadWeights, read_weights
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.hlo_text import round_up
from tb_perfadvisor.units import format_bytes, format_share

_SUBLANES = 8
_MOST_OPERATIONS = 30


class SmallBatch(Rule):
    """The step reads all weights for a few rows, and more rows would take about as long.

    What it finds
    -------------
    Matrix products on a TPU that multiply large weights by few rows, if reading these weights takes
    most of the step.

    Why it matters
    --------------
    The device reads the weights once for all rows. Until the matrix unit takes longer than the
    memory, which is so from a few hundred rows on, more rows are free: more samples in the same
    time. No step gets shorter.

    How it is measured
    ------------------
    Rows are the smaller size of a product beside the contracted one. The batch that is proposed
    fills the tile of 8 rows, or is twice as large. The finding has no saving, because it is the
    time per row that falls, by a share that the summary states. It is low if everything but the
    weights takes longer in proportion to the rows. It is high if the step takes no longer than the
    weights take at the bandwidth of the data sheet. Expected is halfway between the former and a
    step that takes as long as now.

    When to ignore
    --------------
    When a single sample must be answered as fast as possible, or none are waiting.

    How to verify
    -------------
    With the larger batch, the step takes about as long.

    References:
    ----------
    Pope et al., "Efficiently Scaling Transformer Inference" (MLSys 2023), section 2.
    """

    id = "small-batch"
    title = "Process more samples in each step"
    category = "xla"
    refines = "low-matrix-unit-use"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PEAKS)

    minimum_weight_share = Limit(
        0.5, "share", "Where the weights take less of the step, more rows make it longer."
    )
    maximum_compute_share = Limit(
        0.5, "share", "Close to the limit of the matrix unit, more rows take longer."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a step mostly reads weights, for few rows."""
        weights = read_weights(signals)
        if weights is None:
            return
        share = min(weights.read_ns / signals.attribution.window_ns, 1.0)
        more_rows = round_up(weights.rows, _SUBLANES)
        more_rows = more_rows if more_rows > weights.rows else 2 * weights.rows
        compute_share = more_rows / _rows_at_ridge(signals)
        if share < self.minimum_weight_share or compute_share > self.maximum_compute_share:
            return
        same_time = 1 - weights.rows / more_rows
        batch = LargerBatch(
            weights.rows,
            more_rows,
            low_share=share * same_time,
            expected_share=(1 + share) / 2 * same_time,
            high_share=1 - share * weights.rows / more_rows,
        )
        each = format_bytes(round(weights.size_bytes / signals.steps.count))
        rows = executions(signals, weights.operations)
        yield Finding(
            summary=(
                f"Each step reads {each} of weights, which takes at least {format_share(share)} of"
                f" it, for {_count(weights.rows)}. With {more_rows} rows, it would take about as"
                f" long: {format_share(batch.expected_share)} less time per row"
                f" ({format_share(batch.low_share)} to {format_share(batch.high_share)})."
            ),
            severity="low",
            larger_batch=batch,
            evidence=(
                _table(signals, weights),
                costliest(
                    "Longest executions",
                    signals.worker,
                    rows,
                    signals.trace.events.duration_ns[rows],
                ),
            ),
            remedies=advise("more-samples-per-step", "eight-bit-weights"),
        )


def _count(rows: int) -> str:
    return "a single row" if rows == 1 else f"{rows} rows"


def _rows_at_ridge(signals: Signals) -> float:
    """Rows for which the matrix unit takes as long as the memory takes for 16-bit weights.

    Two FLOP per weight and row, and two bytes per weight.
    """
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    rate = peaks.flop_per_s("bf16") if peaks is not None else None
    if peaks is None or rate is None or peaks.memory_bandwidth_bytes_per_s is None:
        return 0.0
    return rate / peaks.memory_bandwidth_bytes_per_s


def _table(signals: Signals, weights: ReadWeights) -> Table:
    op = signals.trace.operations(executions(signals, weights.operations))
    count = np.bincount(op, minlength=len(signals.trace.hlo.name))
    totals = dict(zip(signals.hlo.op.tolist(), signals.hlo.total_ns.tolist(), strict=True))
    return Table(
        "Products that read the weights",
        (
            Column("op", "Operation"),
            Column("path", "Called by"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
        ),
        tuple(
            (operation.name, operation.path, int(count[operation.op]), totals[operation.op])
            for operation in weights.operations[:_MOST_OPERATIONS]
        ),
    )
