"""Shapes that do not fill the TPU's tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.hlo import Shape
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.tpu.padding import OperationPadding, operation_paddings
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share

_REMEDIES = (
    Remedy(
        text="Choose batch sizes per core that are multiples of 8 (128 if you can) and feature "
        "sizes that are multiples of 128; pad the vocabulary and heads to such sizes.",
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
        text="Use a fixed batch size that is a multiple of 8 per core, and drop the remainder.",
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


class PaddedShapes(Rule):
    """Arrays do not fill the TPU's tiles, so it computes and moves padding.

    What it finds
    -------------
    XLA operations whose results or operands have dimensions that are not multiples of the tile in
    their layout (usually 8 and 128), with the share of their time that goes into padding.

    Why it matters
    --------------
    A TPU stores and computes whole tiles. A feature size of 130 costs as much as 256, and a batch
    of 9 per core as much as 16.

    How it is measured
    ------------------
    Each array's layout and tiles, as in `{1,0:T(8,128)(2,1)}`, tell which dimension needs which
    multiple. For dots, convolutions and fusions whose FLOPs reveal the contracted dimensions, the
    wasted share is that of their multiplications: true divided by padded sizes of the result and
    the contracted dimensions. For all others it is that of their bytes: true divided by padded
    bytes of results and operands. The saving is that share of each operation's time, for the same
    useful work. Low is half of it, because latency rather than size limits small operations.

    When to ignore
    --------------
    When the problem dictates the size (a vocabulary, an image) and rounding it up would add as much
    work as it saves, or when something else limits the operation.

    How to verify
    -------------
    After the change, the dimensions in the table are multiples of the tile, and the operation takes
    less time, or does more useful work in the same time.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide": XLA efficiencies, tensor dimensions of 8 and
    128; XLA documentation, "Tiled layout".
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

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when padding takes a good part of the step."""
        wasted = [
            o for o in operation_paddings(signals) if o.padding.share >= self.minimum_op_share
        ]
        if not wasted:
            return
        trace = signals.trace
        rows, share = _executions(signals, wasted)
        now_ns = trace.events.duration_ns[rows]
        # Round the running sum, so that the total is off by at most a nanosecond.
        reached_ns = np.rint(np.cumsum(now_ns * (1 - share)))
        without_ns = np.diff(reached_ns, prepend=0).astype(np.int64)
        saving = faster_device_work(
            signals,
            rows,
            without_ns,
            basis="modeled",
            least_then_ns=without_ns,
            most_then_ns=(now_ns + without_ns) // 2,
        )
        if not rows.size or self.is_minor(saving.high_ns, signals):
            return
        worst = wasted[0]
        name = trace.text(int(trace.hlo.name[worst.op]))
        yield Finding(
            summary=(
                f"{per_step(saving.high_ns, signals)} goes into computing or moving padding;"
                f" worst is {name}, which wastes {format_share(worst.padding.share)} of its time"
                f" on {_describe(worst.padding.worst_array)}.{_batch(wasted)}"
            ),
            saving=saving,
            evidence=(
                _table(signals, wasted),
                costliest("Most wasteful executions", signals.worker, rows, now_ns - without_ns),
            ),
            remedies=_REMEDIES,
        )


def _executions(
    signals: Signals, wasted: list[OperationPadding]
) -> tuple[Int32, NDArray[np.float64]]:
    """Executions of these operations on the device, and the share of each that is padding."""
    hlo = signals.trace.hlo_events
    share = np.zeros(len(signals.trace.hlo.name))
    share[[o.op for o in wasted]] = [o.padding.share for o in wasted]
    is_wasteful = share[hlo.op] > 0
    rows, of_op = hlo.row[is_wasteful], share[hlo.op[is_wasteful]]
    is_work = is_in(rows, work_rows(signals))
    return rows[is_work], of_op[is_work]


def _batch(wasted: list[OperationPadding]) -> str:
    """Say which batch size would cost nothing extra, where convolutions reveal the batch."""
    time_by_batch: Counter[tuple[int, int]] = Counter()
    for operation in wasted:
        if operation.batch is not None:
            time_by_batch[operation.batch] += operation.total_ns
    if not time_by_batch:
        return ""
    ((batch, room), _) = time_by_batch.most_common(1)[0]
    return f" A batch of {room} per core takes as much room as {batch}." if room > batch else ""


def _describe(shape: Shape) -> str:
    """A shape and its misfits: `bf16[100,30] (30 is not a multiple of 128)`."""
    misfits = ", ".join(f"{size} is not a multiple of {tile}" for _, size, tile in shape.misfits)
    return f"{shape} ({misfits})" if misfits else str(shape)


def _table(signals: Signals, wasted: list[OperationPadding]) -> Table:
    hlo, text = signals.trace.hlo, signals.trace.text
    return Table(
        "Operations that work on padding",
        (
            Column("op", "Operation"),
            Column("shape", "Worst array"),
            Column("fits", "Padded to"),
            Column("of", "What is padded"),
            Column("share", "Wasted share", "share"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("wasted_ns", "Wasted time", "ns"),
            Column("source", "Source line"),
        ),
        tuple(
            (
                text(int(hlo.name[operation.op])),
                _describe(operation.padding.worst_array),
                str(
                    replace(
                        operation.padding.worst_array,
                        dims=operation.padding.worst_array.padded_dims,
                    )
                ),
                "multiplications" if operation.padding.is_product else "bytes",
                operation.padding.share,
                operation.count,
                operation.total_ns,
                round(operation.wasted_ns),
                text(int(hlo.source_line[operation.op])) or None,
            )
            for operation in wasted
        ),
    )
