"""Shapes that do not fill the TPU's tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tb_perfadvisor.advice import Remedy, Value, advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.padding import describe_array, padding_table
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.fitting_sizes import executions_of, saving_of_fitting_sizes
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time
from tb_perfadvisor.signals.tpu.fitting_sizes import (
    FittedOperation,
    costs_of,
    fit_operations,
    time_of_batch,
)
from tb_perfadvisor.signals.tpu.padding import OperationPadding, operation_paddings
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_share

_AS_LONG = 1.05
"""A batch that takes at most this much longer takes as long, as far as the model can tell."""


class PaddedShapes(Rule):
    """Arrays do not fill the TPU's tiles, so it computes and moves padding.

    What it finds
    -------------
    XLA operations whose results or operands have dimensions that are not multiples of the tile in
    their layout (usually 8 and 128): which ones, how many bytes of padding they move, which share
    of the matrix unit is left empty, and which sizes would fit. If such sizes would save time, the
    finding says how much. Otherwise it is shown for information, without a saving.

    Why it matters
    --------------
    A TPU stores and computes whole tiles. A batch of 9 per core often takes as long as one of 16:
    more samples in the same time, where memory allows. Whether other sizes take *less* time
    depends on the operation. Transfers may take longer than the arithmetic, padding or not, and XLA
    chooses layouts that need little padding.

    How it is measured
    ------------------
    Each array's layout and tiles, as in `{1,0:T(8,128)(2,1)}`, tell which dimension needs which
    multiple. For dots, convolutions and fusions whose FLOPs reveal the contracted dimensions, the
    padding is that of their multiplications: of the result and the contracted dimensions. For all
    others it is that of their bytes.

    The saving follows a model of what shapes cost, which was fitted to XLA's TPU compiler; see the
    documentation, "What shapes cost on TPUs". For each operation, the multiples of 8 and 128 next
    to its sizes are tried. The expected saving is what the model says for the best of them, but no
    operation gets faster than its bytes and its useful FLOPs allow. Of operations that are neither
    matrix products nor convolutions, only the time that their bytes explain gets shorter. Which
    kernel XLA chooses matters as much as padding, so low and high are those parts and multiples of
    the expected saving between which the compiler's answers lie in four of five cases. If the model
    does not know the device, or is too far off for a kind of operation, only transfers count.

    When to ignore
    --------------
    When the problem dictates the size (a vocabulary, an image), or when something else limits the
    operation.

    How to verify
    -------------
    After the change, the dimensions in the table are multiples of the tile, and the operation takes
    less time, or does more useful work in the same time.

    References:
    ----------
    XLA documentation, "Tiled layout"; Google Cloud, "Cloud TPU performance guide": XLA
    efficiencies, which advises multiples of 8 and 128.
    """

    id = "padded-shapes"
    title = "Fit shapes to the TPU's tiles"
    category = "xla"
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
        """Yield a finding when operations on padding take a good part of the step."""
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
