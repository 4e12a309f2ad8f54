"""Tables of device work: by the call site that launches it, and by the size of matrix products."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.finding import Cell, Column, Events, Evidence, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import (
    counters_while,
    operator_around,
    operators_of,
    time_within,
)
from tb_perfadvisor.signals.host.call_tree import source_line
from tb_perfadvisor.signals.work.matrix_kernels import MatrixKernels
from tb_perfadvisor.signals.work.roofline import BOUNDS, NUMBER_FORMATS, roofline
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import Int32, Int64

MOST_SITES = 30


def costly_work(
    noun: str, signals: Signals, rows: Int32, claims: Intervals, operators: Int32 | None = None
) -> tuple[Table, Events]:
    """Device work by call site, and its longest events, both by their time in some intervals.

    `noun` is the plural of what the events are, for the titles. A saving is taken from `claims`.
    `operators` are those of `work_by_call_site`.
    """
    cost_ns = time_within(signals, rows, claims)
    title = f"{noun[0].upper()}{noun[1:]} by call site"
    return (
        work_by_call_site(title, signals, rows, cost_ns, operators),
        costliest(f"Longest {noun}", signals.worker, rows, cost_ns),
    )


def work_by_call_site(
    title: str, signals: Signals, rows: Int32, cost_ns: Int64, operators: Int32 | None = None
) -> Table:
    """Device work by operator, what calls it, its input shapes and source line; costliest first.

    Each event counts to one of `operators`, by default the innermost one that launched it. Events
    without an operator count to their kernel.
    """
    trace = signals.trace
    operators = operators_of(signals, rows) if operators is None else operators
    around = operator_around(signals, operators)
    name = np.where(operators >= 0, trace.events.name[operators], trace.events.name[rows])
    caller = np.where(around >= 0, trace.events.name[around], -1)
    table, has_operator = trace.operators, operators >= 0
    shape = np.where(has_operator, trace.by_event(table.row, table.shapes, -1)[operators], -1)
    frame = np.where(has_operator, trace.by_event(table.row, table.frame, -1)[operators], -1)
    sites, inverse = group_rows(name, caller, shape, frame, trace.operations(rows))
    total = np.bincount(inverse, weights=cost_ns, minlength=len(sites)).astype(np.int64)
    count = np.bincount(inverse, minlength=len(sites))
    lines: list[tuple[Cell, ...]] = []
    for site in np.argsort(-total, kind="stable")[:MOST_SITES].tolist():
        members = np.flatnonzero(inverse == site)
        example = int(rows[members[cost_ns[members].argmax()]])
        first = sites[site]
        lines.append(
            (
                trace.text(int(name[first])),
                trace.text(int(caller[first])),
                trace.text(int(shape[first])),
                source_line(signals, example) or "",
                int(count[site]),
                int(total[site]),
            )
        )
    return Table(
        title,
        (
            Column("operator", "Operator or kernel"),
            Column("caller", "Called by"),
            Column("shapes", "Input shapes"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
        ),
        tuple(lines),
        names_instance=True,
    )


MOST_PRODUCTS = 30
_TOTALS = (Column("count", "Kernels", "count"), Column("total_ns", "Time in the trace", "ns"))


def matrix_products_by_size(title: str, signals: Signals, kernels: MatrixKernels) -> Table:
    """Matrix kernels by operator, size and number format, the costliest first.

    The FLOPs of all kernels must be known.
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
                min(float(least[group] / total[group]), 1.0),
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

    `products` multiply 32-bit numbers; `rows` are these and other 32-bit kernels.
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


def counter_tables(signals: Signals, rows: Int32) -> tuple[Table, ...]:
    """What hardware counters measured while some kernels ran, if they were sampled."""
    found = counters_while(signals, rows)
    if not found:
        return ()
    columns = (
        Column("counter", "Of the peak"),
        Column("share", "Mean", "share"),
        Column("samples", "Samples", "count"),
        Column("metric", "Counter"),
    )
    cells = tuple((each.label, each.share, each.samples, each.metric) for each in found)
    return (Table("Hardware counters while they ran", columns, cells),)
