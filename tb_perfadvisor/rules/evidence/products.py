"""A table of matrix work by the size of its products."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels
from tb_perfadvisor.signals.work.roofline import BOUNDS, NUMBER_FORMATS, roofline

MOST_PRODUCTS = 30


def by_product(title: str, signals: Signals, kernels: MatrixKernels) -> Table:
    """Matrix kernels by operator, sizes and number format, the costliest first.

    Args:
        title: Of the table.
        signals: The worker's facts.
        kernels: Kernels of known work, shape (n,).
    """
    found, trace = roofline(signals), signals.trace
    entry = kernels.entry
    operator = found.operator[entry]
    name = np.where(operator >= 0, trace.events.name[operator], trace.events.name[kernels.rows])
    keys = np.column_stack((name, found.number_format[entry], found.sizes_of(entry)))
    groups, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    total = np.bincount(inverse, weights=kernels.duration_ns, minlength=len(groups))
    least = np.bincount(inverse, weights=found.achievable_ns[entry], minlength=len(groups))
    count = np.bincount(inverse, minlength=len(groups))
    rows: list[tuple[Cell, ...]] = []
    for group in np.argsort(-total, kind="stable")[:MOST_PRODUCTS].tolist():
        example = int(np.flatnonzero(inverse == group)[0])
        what, form, *sizes = groups[group].tolist()
        rows.append(
            (
                trace.text(what),
                product_text(sizes),
                NUMBER_FORMATS[form],
                BOUNDS.get(int(found.bound[entry[example]])),
                int(count[group]),
                int(total[group]),
                float(least[group] / total[group]),
                trace.name(int(kernels.rows[example])),
                signals.source_line(int(kernels.rows[example])) or "",
            )
        )
    return Table(
        title,
        (
            Column("operator", "Operator"),
            Column("product", "Product (m, n, k)"),
            Column("format", "Numbers"),
            Column("bound", "Bound by"),
            Column("count", "Times", "count"),
            Column("total_ns", "Time in the trace", "ns"),
            Column("achieved", "Of achievable", "share"),
            Column("kernel", "Kernel"),
            Column("source", "Source"),
        ),
        tuple(rows),
    )


def product_text(sizes: list[int]) -> str:
    """`16 x (197, 64, 197)`, or `(788, 3072, 768)` for one product; empty for none."""
    batch, m, n, k = sizes
    text = f"({m}, {n}, {k})" if m else ""
    return f"{batch} × {text}" if text and batch > 1 else text
