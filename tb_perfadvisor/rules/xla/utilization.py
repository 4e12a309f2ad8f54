"""TPU operations too small, or too badly shaped, for the core's units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.advice import Remedy, Value, advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import operator_kinds, operator_sums_table
from tb_perfadvisor.rules.finding import Column, Finding, LargerBatch, Saving, Table, costliest
from tb_perfadvisor.rules.savings import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, work_rows
from tb_perfadvisor.signals.tpu.fitting_sizes import (
    FittedOperation,
    costs_of,
    fit_operations,
    time_of_batch,
)
from tb_perfadvisor.signals.tpu.padding import OperationPadding, operation_paddings
from tb_perfadvisor.signals.tpu.product_time import ReadWeights, read_weights
from tb_perfadvisor.signals.tpu.xla_operations import executions, loops
from tb_perfadvisor.signals.work.matrix_work import MatrixUnit, matrix_unit
from tb_perfadvisor.trace import Totals
from tb_perfadvisor.trace.hlo_text import Shape, round_up
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.intervals import clip, total_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S, format_bytes, format_duration, format_share


def describe_array(shape: Shape) -> str:
    """A shape and its misfits: `bf16[100,30] (30 is not a multiple of 128)`."""
    tiles: dict[int, list[str]] = {}
    for _, size, tile in shape.misfits:
        tiles.setdefault(size, []).append(str(tile))
    misfits = ", ".join(
        f"{size} is not a multiple of {' or '.join(dict.fromkeys(of))}"
        for size, of in tiles.items()
    )
    return f"{shape} ({misfits})" if misfits else str(shape)


def padding_table(
    signals: Signals, padded: Sequence[OperationPadding], fitted: Sequence[FittedOperation]
) -> Table:
    """Operations that work on padding, most padding first.

    Other sizes make those that are `fitted` faster.
    """
    hlo, text = signals.trace.hlo, signals.trace.text
    by_op = {found.op: found for found in fitted}
    return Table(
        "Operations that work on padding",
        (
            Column("op", "Operation"),
            Column("shape", "Array with most padding"),
            Column("fits", "Padded to"),
            Column("of", "What is padded"),
            Column("share", "Share that is padding", "share"),
            Column("empty", "Matrix unit left empty", "share"),
            Column("padding_bytes", "Padding moved", "bytes"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("size", "Size that fits"),
            Column("saved_ns", "Time saved, by the model", "ns"),
            Column("source", "Source line"),
        ),
        tuple(
            (
                text(int(hlo.name[operation.op])),
                describe_array(operation.padding.worst_array),
                str(
                    replace(
                        operation.padding.worst_array,
                        dims=operation.padding.worst_array.padded_dims,
                    )
                ),
                "multiplications" if operation.padding.is_product else "bytes",
                operation.padding.share,
                operation.padding.share if operation.padding.is_product else None,
                operation.padding.padding_bytes * operation.count,
                operation.count,
                operation.total_ns,
                _size(by_op.get(operation.op)),
                _saved_ns(by_op.get(operation.op)),
                text(int(hlo.source_line[operation.op])) or None,
            )
            for operation in padded
        ),
    )


def _size(found: FittedOperation | None) -> str | None:
    if found is None:
        return None
    return f"{found.size.dimension} {found.size.size} → {found.size.fits}".strip()


def _saved_ns(found: FittedOperation | None) -> int | None:
    return None if found is None else round(found.saved_ns)


def executions_of(signals: Signals, ops: Sequence[int]) -> Int32:
    """Executions of some rows of the `HloTable` on the device."""
    hlo = signals.trace.hlo_events
    is_chosen = np.zeros(len(signals.trace.hlo.name), dtype=bool)
    is_chosen[list(ops)] = True
    rows = hlo.row[is_chosen[hlo.op]]
    used: Int32 = rows[is_in(rows, work_rows(signals))]
    return used


def saving_of_fitting_sizes(signals: Signals, fitted: Sequence[FittedOperation]) -> Saving:
    """What sizes that fit save."""
    rows = executions_of(signals, [found.op for found in fitted])
    now_ns, op = signals.trace.events.duration_ns[rows], signals.trace.operations(rows)
    least, expected, most = np.zeros((3, len(signals.trace.hlo.name)))
    for found in fitted:
        shares = found.least_share, found.saved_share, found.most_share
        least[found.op], expected[found.op], most[found.op] = shares
    return faster_device_work(
        signals,
        rows,
        _rounded(now_ns * (1 - expected[op])),
        basis="modeled",
        least_then_ns=_rounded(now_ns * (1 - most[op])),
        most_then_ns=_rounded(now_ns * (1 - least[op])),
    )


def _rounded(lengths_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round the running sum, so that the total is off by at most a nanosecond."""
    return np.diff(np.rint(np.cumsum(lengths_ns)), prepend=0).astype(np.int64)


MOST_OPERATIONS = 30

_ADVICE = ("look-at-other-findings", "activations-in-16-bits")
_PRODUCTS = frozenset({"matmul", "convolution", "attention"})


class LowMatrixUnitUse(Rule):
    """The matrix unit is little used, although the program mostly multiplies matrices."""

    id = "low-matrix-unit-use"
    title = "Keep the matrix unit busy"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PEAKS)
    needs_of_sums = (Need.DEVICE_EVENTS, Need.MATRIX_UNIT)
    is_preview = False

    maximum_use = Limit(
        0.2, "share", "Well-tuned training reaches 0.4 or more, typical training 0.3."
    )
    maximum_stated_use = 0.6
    """The best training programs reach 0.6, and sums do not show what is missing."""
    minimum_product_share = Limit(
        0.3, "share", "With fewer matrix products, the program mostly does other work."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        if signals.trace.totals is not None:
            yield from self._of_sums(signals, signals.trace.totals)
            return
        unit = matrix_unit(signals)
        if (
            unit is None
            or unit.time_share < self.minimum_product_share
            or unit.use > self.maximum_use
        ):
            return
        source = "by its counters" if unit.is_counted else "by the FLOPs of its products"
        has_operations = unit.row.size > 0  # a counter covers no single operations
        rows = unit.row if has_operations else work_rows(signals)
        duration_ns = signals.trace.events.duration_ns[rows]
        longest = costliest("Longest operations", signals.worker, rows, duration_ns)
        yield Finding(
            instance=f"{format_share(unit.use)} of its peak",
            summary=(
                f"The matrix unit reaches {format_share(unit.use)} of its peak, {source}, although"
                f" matrix products take {format_share(unit.time_share)} of the device's busy time."
            ),
            evidence=(_unit_use_table(signals, unit), longest) if has_operations else (longest,),
            remedies=advise(*_ADVICE),
            severity="low",
        )

    def _of_sums(self, signals: Signals, totals: Totals) -> Iterable[Finding]:
        """Yield a finding from the use that a recorder states."""
        use = totals.matrix_unit_share
        if use is None or use > self.maximum_stated_use:
            return
        kinds = operator_kinds(signals)
        in_products = sum(
            kernel.total_ns for kernel in totals.kernels if kernel.family in _PRODUCTS
        )
        whole_ns = sum(kernel.total_ns for kernel in totals.kernels)
        products = (
            f" Products and convolutions take {format_share(in_products / whole_ns)} of the time of"
            " operators on the device."
            if whole_ns
            else ""
        )
        yield Finding(
            instance=f"{format_share(use)} of its peak",
            summary=(
                f"The matrix units reach {format_share(use)} of their peak, as the profiler states"
                f" for the whole recording.{products}"
            ),
            evidence=(operator_sums_table(kinds),) if kinds else (),
            remedies=advise(
                "look-at-idle-unit", "look-at-other-findings", "activations-in-16-bits"
            ),
            severity="low",
        )


def _unit_use_table(signals: Signals, unit: MatrixUnit) -> Table:
    """The share of the peak that each operation reaches, the costliest first."""
    names, inverse = unique_inverse(signals.trace.events.name[unit.row])
    total = np.bincount(inverse, weights=signals.trace.events.duration_ns[unit.row])
    flop = np.bincount(inverse, weights=unit.flop)
    count = np.bincount(inverse)
    costliest = np.argsort(-total, kind="stable")[:MOST_OPERATIONS].tolist()
    return Table(
        "Matrix products",
        (
            Column("op", "Operation"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("rate", "Rate", "flop/s"),
            Column("use", "Share of peak", "share"),
        ),
        tuple(
            (
                signals.trace.strings[names[index]],
                int(count[index]),
                int(total[index]),
                float(flop[index] * NS_PER_S / max(total[index], 1)),
                float(flop[index] * NS_PER_S / max(total[index], 1) / unit.peak),
            )
            for index in costliest
        ),
    )


_AS_LONG = 1.05
"""A batch that takes at most this much longer takes as long, as far as the model can tell."""


class PaddedShapes(Rule):
    """Arrays do not fill the TPU's tiles, so it computes and moves padding."""

    id = "padded-shapes"
    title = "Fit shapes to the TPU's tiles"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)
    is_preview = True

    minimum_share = Limit(
        0.02, "share", "Some padding is unavoidable: the last dimension of a loss, a scalar."
    )
    minimum_op_share = Limit(
        0.05, "share", "An operation that wastes less gains little from other shapes."
    )
    minimum_saving = Limit(
        0.01, "share", "The model cannot tell smaller differences between shapes from chance."
    )
    largest_change = Limit(
        0.05, "share", "A size that is farther away makes another model, or much more work."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        padded = [
            o for o in operation_paddings(signals) if o.padding.most_share >= self.minimum_op_share
        ]
        rows = executions_of(signals, [operation.op for operation in padded])
        total = total_ns(exclusive_time(signals, rows))
        if self.is_minor(total, signals):
            return
        fitted = fit_operations(signals, padded, self.largest_change)
        saving = saving_of_fitting_sizes(signals, fitted)
        has_saving = share_of_window(saving.expected_ns, signals) >= self.minimum_saving
        best = max(fitted, key=lambda found: found.saved_ns, default=None) if has_saving else None
        yield Finding(
            instance=(
                f"{_name(signals, padded[0])} on {describe_array(padded[0].padding.worst_array)}"
            ),
            summary=" ".join(
                part
                for part in (
                    _padding(signals, padded, total),
                    _gain(signals, best, saving.expected_ns),
                    _batch(signals, padded),
                )
                if part
            ),
            saving=saving if has_saving else None,
            severity=None if has_saving else "low",
            evidence=(
                padding_table(signals, padded, fitted),
                costliest(
                    "Longest executions",
                    signals.worker,
                    rows,
                    signals.trace.events.duration_ns[rows],
                ),
            ),
            remedies=_remedies(best) if best is not None else advise("ask-tpu-compiler"),
        )


def _name(signals: Signals, operation: OperationPadding | FittedOperation) -> str:
    return signals.trace.text(int(signals.trace.hlo.name[operation.op]))


def _padding(signals: Signals, padded: Sequence[OperationPadding], total_ns: int) -> str:
    """Say how much of the work is padding, whatever it costs."""
    share = sum(o.wasted_ns for o in padded) / max(sum(o.total_ns for o in padded), 1)
    worst = padded[0]
    name = _name(signals, worst)
    what = "multiplications" if worst.padding.is_product else "bytes"
    return (
        f"Operations with padding take {per_step(total_ns, signals)}; {format_share(share)} of"
        f" their work is padding. Most is in {name}: {format_share(worst.padding.share)} of its"
        f" {what}, on {describe_array(worst.padding.worst_array)}."
    )


def _gain(signals: Signals, best: FittedOperation | None, expected_ns: int) -> str:
    """Say what other sizes bring: less time, or nothing."""
    if best is None:
        if costs_of(signals) is None:
            return "What other sizes would save is not known for this device."
        return "By a model of XLA's compiler, sizes nearby would save hardly any time."
    return (
        f"Sizes that fit would take {per_step(expected_ns, signals)} less, by a model of XLA's"
        f" compiler: {best.size.fits} instead of {best.size.size} makes"
        f" {_name(signals, best)}"
        f" {format_share(best.saved_share)} faster."
    )


def _batch(signals: Signals, padded: Sequence[OperationPadding]) -> str:
    """Say which batch takes as long, where convolutions reveal the batch."""
    time_by_batch: Counter[tuple[int, int]] = Counter()
    for operation in padded:
        if operation.batch is not None:
            time_by_batch[operation.batch] += operation.total_ns
    if not time_by_batch:
        return ""
    ((batch, room), _) = time_by_batch.most_common(1)[0]
    if room <= batch:
        return ""
    if (ratio := time_of_batch(signals, padded, batch, room)) is not None and ratio <= _AS_LONG:
        return (
            f"A batch of {room} per core takes as long as {batch}, by the model: more samples in"
            " the same time, where memory allows."
        )
    return f"A batch of {room} per core takes as much room as {batch}."


def _remedies(best: FittedOperation) -> tuple[Remedy, ...]:
    """The remedies, with the sizes of the operation that gains most."""
    values: dict[str, Value] = {"size": best.size.size, "fits": best.size.fits}
    if best.question:
        values["question"] = best.question
    return advise("fitting-sizes", "ask-tpu-compiler", **values)


_SUBLANES = 8
_MOST_OPERATIONS = 30


class SmallBatch(Rule):
    """The step reads all weights for a few rows, and more rows would take about as long."""

    id = "small-batch"
    title = "Process more samples in each step"
    refines = "low-matrix-unit-use"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PEAKS)

    minimum_weight_share = Limit(
        0.5, "share", "Where the weights take less of the step, more rows make it longer."
    )
    maximum_compute_share = Limit(
        0.5, "share", "Close to the limit of the matrix unit, more rows take longer."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
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
                _batch_table(signals, weights),
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


def _batch_table(signals: Signals, weights: ReadWeights) -> Table:
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


class ShortLoopTrips(Rule):
    """A loop spends much of its time on starting trips and on counting them."""

    id = "short-loop-trips"
    title = "Unroll loops of very short trips"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(0.1, "share", "A fifth of a smaller share is less than 2 % of the step.")
    maximum_trip_ns = Limit(
        200, "ns", "An unrolled scan over cells of 8 by 128 numbers takes longer for each trip."
    )
    minimum_trips = 8
    """Fewer trips start within a microsecond or two."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        found, events, window = loops(signals), signals.trace.events, signals.attribution
        is_short = found.trips >= self.minimum_trips
        is_short &= events.duration_ns[found.row] < self.maximum_trip_ns * found.trips
        rows, trips = found.row[is_short], found.trips[is_short]
        time = events.spans(rows)
        claims = clip(time, window.window_start_ns, window.window_end_ns)
        looped_ns = total_ns(claims)
        if self.is_minor(looped_ns, signals):
            return
        duration_ns = events.duration_ns[rows]
        trip_ns = int(duration_ns.sum()) // int(trips.sum())
        yield Finding(
            instance=f"{format_duration(trip_ns)} each",
            summary=(
                f"{per_step(looped_ns, signals)} goes into loops whose trips take"
                f" {format_duration(trip_ns)} on average ({int(trips.max())} trips at most)."
            ),
            saving=Saving(0, looped_ns // 5, looped_ns // 2, claims, "heuristic"),
            severity="low",
            evidence=(
                _trips_table(signals, rows, trips),
                costliest("Longest loops of short trips", signals.worker, rows, duration_ns),
            ),
            remedies=advise("unrolled-loop", "parallel-trips"),
        )


def _trips_table(signals: Signals, rows: Int32, trips: Int64) -> Table:
    """The loops by name, the costliest first."""
    trace = signals.trace
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    total = np.bincount(inverse, weights=trace.events.duration_ns[rows]).astype(np.int64)
    of_name = np.bincount(inverse, weights=trips).astype(np.int64)
    return Table(
        "Loops of short trips",
        (
            Column("loop", "Loop"),
            Column("trips", "Trips", "count"),
            Column("total_ns", "Time", "ns"),
            Column("trip_ns", "Time of a trip", "ns"),
        ),
        tuple(
            (
                trace.strings[names[index]],
                int(of_name[index]),
                int(total[index]),
                int(total[index]) // int(of_name[index]),
            )
            for index in np.argsort(-total, kind="stable").tolist()
        ),
    )
