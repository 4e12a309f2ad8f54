"""Tables of matrix kernels: by the size of their products, and by what they use."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Cell, Column, Evidence, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.work.achievable_time import BOUNDS
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS, roofline
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.tables import Int32

MOST_PRODUCTS = 30
_TOTALS = (Column("count", "Kernels", "count"), Column("total_ns", "Time in the trace", "ns"))


def matrix_products_by_size(title: str, signals: Signals, kernels: MatrixKernels) -> Table:
    """Matrix kernels by operator, size and number format, the costliest first.

    Args:
        title: Of the table.
        signals: The worker's facts.
        kernels: Kernels whose FLOPs are known, shape (n,).
    """
    bounds, trace = roofline(signals), signals.trace
    entry = kernels.entry
    operator = bounds.operator[entry]
    name = np.where(operator >= 0, trace.events.name[operator], trace.events.name[kernels.rows])
    keys = np.column_stack((name, bounds.number_format[entry], bounds.sizes_of(entry)))
    first, inverse = group_rows(*keys.T)
    groups = keys[first]
    total = np.bincount(inverse, weights=kernels.duration_ns, minlength=len(groups))
    least = np.bincount(inverse, weights=bounds.achievable_ns[entry], minlength=len(groups))
    count = np.bincount(inverse, minlength=len(groups))
    rows: list[tuple[Cell, ...]] = []
    for group in np.argsort(-total, kind="stable")[:MOST_PRODUCTS].tolist():
        example = int(first[group])
        label, number_format, *sizes = groups[group].tolist()
        rows.append(
            (
                trace.text(label),
                product_text(sizes),
                NUMBER_FORMATS[number_format],
                BOUNDS.get(int(bounds.bound[entry[example]])),
                int(count[group]),
                int(total[group]),
                float(least[group] / total[group]),
                trace.name(int(kernels.rows[example])),
                source_line(signals, int(kernels.rows[example])) or "",
            )
        )
    return Table(
        title,
        (
            Column("operator", "Operator"),
            Column("product", "Product (m, n, k)"),
            Column("format", "Data type"),
            Column("bound", "Bound by"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time in the trace", "ns"),
            Column("achieved", "Share of achievable rate", "share"),
            Column("kernel", "Kernel"),
            Column("source", "Source line"),
        ),
        tuple(rows),
        names_instance=True,
    )


def product_text(sizes: list[int]) -> str:
    """`16 × (197, 64, 197)`, or `(788, 3072, 768)` for a single product; empty for none."""
    batch, m, n, k = sizes
    text = f"({m}, {n}, {k})" if m else ""
    return f"{batch} × {text}" if text and batch > 1 else text


def wide_kernels(signals: Signals, products: MatrixKernels, rows: Int32) -> tuple[Evidence, ...]:
    """32-bit kernels by what they do and use, and the longest of those that multiply.

    Args:
        signals: The worker's facts.
        products: Kernels that multiply 32-bit numbers, shape (n,).
        rows: These and other 32-bit kernels, shape (m,).
    """
    return (
        _by_type_of_work("32-bit kernels by type of work", signals, rows),
        _by_tensor_core_use("32-bit matrix kernels by use of tensor cores", products),
        costliest(
            "Longest 32-bit matrix kernels", signals.worker, products.rows, products.duration_ns
        ),
    )


def _by_type_of_work(title: str, signals: Signals, rows: Int32) -> Table:
    """Number and total time of kernels by their family, the longest time first."""
    trace = signals.trace
    duration_ns = trace.events.duration_ns[rows]
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    cells: list[tuple[str, int, int]] = []
    for code in distinct(family).tolist():
        chosen = family == code
        name = KernelFamily(code).name.lower()
        cells.append((name, int(chosen.sum()), int(duration_ns[chosen].sum())))
    cells.sort(key=lambda row: -row[2])
    return Table(title, (Column("family", "Type of work"), *_TOTALS), tuple(cells))


def _by_tensor_core_use(title: str, kernels: MatrixKernels) -> Table:
    """Number and total time of matrix kernels that use tensor cores, do not, or may."""
    use, duration_ns = kernels.tensor_cores, kernels.duration_ns
    return Table(
        title,
        (Column("use", "Tensor cores"), *_TOTALS),
        tuple(
            (text, int((use == code).sum()), int(duration_ns[use == code].sum()))
            for code, text in ((1, "used"), (0, "not used"), (-1, "unknown"))
        ),
    )
