"""Totals of kernels by type of work, and by their use of tensor cores."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32

_TOTALS = (Column("count", "Kernels", "count"), Column("total_ns", "Time in the trace", "ns"))


def kernels_by_type_of_work(title: str, signals: Signals, rows: Int32) -> Table:
    """Number and total time of kernels by their family, the longest time first.

    Args:
        title: Of the table.
        signals: The worker's facts.
        rows: Kernels, shape (n,).
    """
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


def kernels_by_tensor_core_use(title: str, kernels: MatrixKernels) -> Table:
    """Number and total time of matrix kernels that use tensor cores, do not, or may.

    Args:
        title: Of the table.
        kernels: Matrix kernels, shape (n,).
    """
    use, duration_ns = kernels.tensor_cores, kernels.duration_ns
    return Table(
        title,
        (Column("use", "Tensor cores"), *_TOTALS),
        tuple(
            (text, int((use == code).sum()), int(duration_ns[use == code].sum()))
            for code, text in ((1, "used"), (0, "not used"), (-1, "unknown"))
        ),
    )
