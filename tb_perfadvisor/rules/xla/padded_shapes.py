"""Shapes that don't fill the TPU's tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence import Column, Events, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.hlo import Instruction, Shape, parse_instruction
from tb_perfadvisor.trace.intervals import clip, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Shorten

_REMEDIES = (
    Remedy(
        text="Choose batch sizes that are multiples of 8 per core (128 where you can) and feature "
        "sizes that are multiples of 128; pad the vocabulary and heads to them.",
        snippet=(
            "def round_up(size, multiple=128):\n"
            "    return -(-size // multiple) * multiple\n\n"
            "model = Transformer(d_model=round_up(d_model), vocab=round_up(vocab))\n"
            "batch_per_core = round_up(batch_per_core, 8)"
        ),
        framework="jax",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Batch with a fixed size that is a multiple of 8 per core, dropping the remainder.",
        snippet="dataset = dataset.batch(128 * strategy.num_replicas_in_sync, drop_remainder=True)",
        framework="tensorflow",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Choose layer sizes that are multiples of 128 and batches that are multiples of 8.",
        snippet="layer = torch.nn.Linear(round_up(in_features, 128), round_up(out_features, 128))",
        framework="pytorch",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
)


@dataclass(frozen=True, slots=True)
class _Waste:
    """The padding of one XLA operation."""

    op: int
    count: int
    total_ns: int
    share: float
    """Of its time that works on padding."""
    is_matrix: bool
    worst: Shape


class PaddedShapes(Rule):
    """Arrays miss the TPU's tiles, so that it computes and moves padding.

    What it finds
    -------------
    XLA operations whose results or operands have dimensions that are no multiples of their
    layout's tile (8 and 128 as a rule), with the share of their time that goes into padding.

    Why it matters
    --------------
    A TPU stores and computes whole tiles. A feature size of 130 costs as much as 256; a batch
    of 9 per core as much as 16.

    How it is measured
    ------------------
    Which dimension takes which multiple is read from each array's layout and first tile, as in
    `{1,0:T(8,128)(2,1)}`. For a dot, the wasted share is that of its multiplications: true
    over padded sizes of the result and of the contracted dimensions. For other operations it
    is that of their bytes: true over padded bytes of results and operands. The saving is that
    share of each operation's time; low counts half of it, since small operations are bound by
    latency rather than by size.

    When to ignore
    --------------
    When the size is given by the problem (a vocabulary, an image) and rounding it up would add
    as much work as it saves, or when the operation is bound by something else.

    How to verify
    -------------
    The dimensions in the table are multiples after the change, and the operation's time falls
    or stays while it does more useful work.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide": XLA efficiencies, tensor dimensions of 8 and
    128; XLA documentation, "Tiled layout".
    """

    id = "padded-shapes"
    title = "Fit shapes to the TPU's tiles"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)
    is_preview = True

    minimum_share = Limit(
        0.02, "share", "Some padding is unavoidable: the last dimension of a loss, a scalar."
    )
    minimum_op_share = Limit(
        0.05, "share", "An operation that wastes less than a twentieth is as good as it gets."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when padding takes a good part of the step."""
        wasted = self._wasted(signals)
        if not wasted:
            return
        trace, attribution = signals.trace, signals.attribution
        ops = np.array([one.op for one in wasted])
        executed, op = trace.hlo_events.row, trace.hlo_events.op
        rows = _common(executed[np.isin(op, ops)], signals.device.rows)
        claims = clip(
            union(trace.events.start_ns[rows], trace.events.end_ns[rows]),
            attribution.window_start_ns,
            attribution.window_end_ns,
        )
        waste_ns = min(round(sum(one.total_ns * one.share for one in wasted)), total_ns(claims))
        if share_of_window(waste_ns, signals) < self.limit("minimum_share"):
            return
        worst = wasted[0]
        yield Finding(
            summary=(
                f"{per_step(waste_ns, signals)} computes or moves padding;"
                f" worst is {trace.text(int(trace.hlo.name[worst.op]))}, which wastes"
                f" {format_share(worst.share)} of its time on {_describe(worst.worst)}."
            ),
            saving=Saving(
                waste_ns // 2, waste_ns, waste_ns, claims, "modelled", (_unpadded(signals, wasted),)
            ),
            evidence=(
                _table(signals, wasted),
                Events(
                    "Executions of the operation that wastes most",
                    _common(executed[op == worst.op], signals.device.rows),
                    signals.worker,
                ),
            ),
            remedies=_REMEDIES,
        )

    def _wasted(self, signals: Signals) -> list[_Waste]:
        """Operations that waste more than the limit, the most wasted time first."""
        trace, totals = signals.trace, signals.hlo
        found = []
        for op, count, time_ns in zip(
            totals.op.tolist(), totals.count.tolist(), totals.total_ns.tolist(), strict=True
        ):
            instruction = parse_instruction(trace.text(int(trace.hlo.text[op])))
            if instruction is None:
                continue
            waste = _waste_of(instruction)
            if waste is None or waste[0] < self.limit("minimum_op_share"):
                continue
            found.append(_Waste(op, count, time_ns, *waste))
        return sorted(found, key=lambda one: -one.total_ns * one.share)


def _unpadded(signals: Signals, wasted: list[_Waste]) -> Shorten:
    """Every operation without the share of its time that works on padding."""
    trace = signals.trace
    share = np.zeros(len(trace.hlo.name))
    share[[one.op for one in wasted]] = [one.share for one in wasted]
    rows, op = trace.hlo_events.row, trace.hlo_events.op
    rows, op = rows[share[op] > 0], op[share[op] > 0]
    duration_ns = np.rint(trace.events.duration_ns[rows] * (1 - share[op]))
    return Shorten(rows, duration_ns.astype(np.int64))


def _common(first: Int32, second: Int32) -> Int32:
    """Rows in both; neither names one twice."""
    return np.intersect1d(first, second, assume_unique=True)


def _waste_of(instruction: Instruction) -> tuple[float, bool, Shape] | None:
    """Wasted share, whether it is a matrix operation, and the worst shape; None without tiles."""
    shapes = [shape for shape in (*instruction.results, *instruction.operands) if shape.tile]
    shapes = [shape for shape in shapes if shape.elements]
    if not shapes:
        return None
    worst = max(
        shapes,
        key=lambda shape: (shape.padded_elements - shape.elements) * shape.element_bits,
    )
    if instruction.opcode == "dot" and instruction.results and instruction.operands:
        result, left = instruction.results[0], instruction.operands[0]
        useful, done = result.elements, result.padded_elements
        for dim in instruction.contracting:
            useful *= left.dims[dim]
            done *= left.padded_dims[dim]
        return 1 - useful / done, True, worst
    useful = sum(shape.elements * shape.element_bits for shape in shapes)
    done = sum(shape.padded_elements * shape.element_bits for shape in shapes)
    return 1 - useful / done, False, worst


def _describe(shape: Shape) -> str:
    """A shape and the multiples that it misses: `bf16[100,30] (30 is no multiple of 128)`."""
    dims = ",".join(str(dim) for dim in shape.dims)
    misfits = ", ".join(f"{size} is no multiple of {tile}" for _, size, tile in shape.misfits)
    return f"{shape.dtype}[{dims}] ({misfits})" if misfits else f"{shape.dtype}[{dims}]"


def _fitting(shape: Shape) -> str:
    return f"{shape.dtype}[{','.join(str(dim) for dim in shape.padded_dims)}]"


def _table(signals: Signals, wasted: list[_Waste]) -> Table:
    hlo, text = signals.trace.hlo, signals.trace.text
    return Table(
        "Operations that work on padding",
        (
            Column("op", "Operation"),
            Column("shape", "Worst shape"),
            Column("fits", "Takes the room of"),
            Column("count", "Times", "count"),
            Column("total_ns", "Time", "ns"),
            Column("share", "Wasted", "share"),
            Column("source", "Source line"),
        ),
        tuple(
            (
                text(int(hlo.name[one.op])),
                _describe(one.worst),
                _fitting(one.worst),
                one.count,
                one.total_ns,
                one.share,
                text(int(hlo.source_line[one.op])) or None,
            )
            for one in wasted
        ),
    )
