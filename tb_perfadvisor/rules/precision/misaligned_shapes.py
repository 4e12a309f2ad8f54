"""Matrix products whose sizes are not multiples that tensor cores need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.matrix_products import product_text
from tb_perfadvisor.rules.evidence.tables import costliest_groups
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.work.achievable_time import LATENCY_BOUND
from tb_perfadvisor.signals.work.alignment import (
    is_misaligned_size,
    padded_sizes,
    sizes_of,
)
from tb_perfadvisor.signals.work.matrix_kernels import (
    MatrixKernels,
    fills_device,
    matrix_kernels,
)
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, roofline
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_share


class MisalignedShapes(Rule):
    """Sizes of matrix products are not multiples of what tensor cores read at once.

    What it finds
    -------------
    Slow matrix products in 16-bit, 8-bit or TF32 numbers with a size that is contiguous in memory
    but not a multiple of 16 bytes: 8 elements of 16 bits, 16 of 8 bits, 4 of TF32. The table names
    the operand and the size to pad to.

    Why it matters
    --------------
    Tensor cores read 16 aligned bytes at a time. With rows of 50,257 elements, the library falls
    back to kernels that read two bytes at a time; padded to 50,304, the product is several times
    faster.

    How it is measured
    ------------------
    In a product of (m, k) by (k, n), the columns n of the second operand count, and in the forward
    pass also the columns k of the first. Only kernels that reach less of the achievable rate than
    the limit and have a block for each multiprocessor count, because newer libraries make up for
    much of the misalignment, and small products are slow for other reasons. High is the time above
    the achievable one of the padded product. Expected is half of that, and low is 0. Where the
    profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the size comes from the data and padding would add as much work as it saves.

    How to verify
    -------------
    Kernel names end in `align8` instead of `align1` or `align2`, or change altogether, and the
    product reaches a larger share of its roofline.

    References:
    ----------
    NVIDIA, "Matrix multiplication background user's guide", requirements for tensor cores.
    """

    id = "misaligned-shapes"
    title = "Pad matrix sizes to fit the tensor cores"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    refines = "slow-matmul"
    is_preview = False

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the padding.")
    maximum_achieved_share = Limit(
        0.45, "share", "Aligned products that are bound by memory often reach no more."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when slow misaligned products take a good part of the step."""
        rooflines, kernels = roofline(signals), matrix_kernels(signals)
        achieved = rooflines.achievable_ns[kernels.entry] / np.maximum(kernels.duration_ns, 1)
        is_slow = achieved < self.maximum_achieved_share
        is_slow &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_slow &= fills_device(signals, kernels)
        slow, achieved = kernels.select(is_slow), achieved[is_slow]
        is_off = is_misaligned_size(signals, slow)
        is_misaligned = np.logical_or.reduce(is_off, axis=1)
        products, is_off, achieved = (
            slow.select(is_misaligned),
            is_off[is_misaligned],
            achieved[is_misaligned],
        )
        # Cheap check first: exclusive time cannot exceed the total duration.
        if self.is_minor(int(products.duration_ns.sum()), signals):
            return
        sizes, padded = sizes_of(signals, products), padded_sizes(signals, products, is_off)
        growth = np.prod(padded / np.maximum(sizes, 1), axis=1)
        best_ns = np.rint(rooflines.achievable_ns[products.entry] * growth).astype(np.int64)
        best_ns = np.minimum(best_ns, products.duration_ns)
        saving = halfway_to_best(signals, products.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, products.rows, saving.claims)
        worst = int(costliest_groups(sizes, cost_ns)[0][0][0])
        mean = float((achieved * products.duration_ns).sum() / products.duration_ns.sum())
        yield Finding(
            instance=_advice(sizes[worst], padded[worst]),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix products with misaligned sizes,"
                f" which reach {format_share(mean)} of the achievable rate. For the costliest one,"
                f" {_advice(sizes[worst], padded[worst])}."
            ),
            saving=saving,
            evidence=(
                _table(signals, products, sizes, padded, cost_ns),
                costliest("Longest misaligned products", signals.worker, products.rows, cost_ns),
            ),
            remedies=advise("aligned-shapes"),
        )


def _advice(sizes: Int64, padded: Int64) -> str:
    """For example `pad n (columns of the second operand) from 50257 to 50304`."""
    operands = ("m", "n (columns of the second operand)", "k (columns of the first operand)")
    changes = [
        f"{operand} from {size} to {to}"
        for operand, size, to in zip(operands, sizes.tolist(), padded.tolist(), strict=True)
        if size != to
    ]
    return f"pad {' and '.join(changes)}"


def _table(
    signals: Signals, kernels: MatrixKernels, sizes: Int64, padded: Int64, cost_ns: Int64
) -> Table:
    rooflines, trace = roofline(signals), signals.trace
    rows: list[tuple[Cell, ...]] = []
    for members, total_ns in costliest_groups(sizes, cost_ns):
        first = int(members[0])
        operator = int(rooflines.operator[kernels.entry[first]])
        row = int(kernels.rows[first])
        rows.append(
            (
                trace.name(operator) if operator >= 0 else trace.name(row),
                product_text(rooflines.sizes_of(kernels.entry[first]).tolist()),
                NUMBER_FORMATS[int(rooflines.number_format[kernels.entry[first]])],
                _advice(sizes[first], padded[first]),
                len(members),
                total_ns,
                trace.name(row),
                source_line(signals, row) or "",
            )
        )
    return Table(
        "Misaligned products",
        (
            Column("operator", "Operator"),
            Column("product", "Product (m, n, k)"),
            Column("format", "Data type"),
            Column("advice", "What to pad"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("kernel", "Kernel"),
            Column("source", "Source line"),
        ),
        tuple(rows),
    )
