"""Time by compute kernel, and by XLA operation."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import EventKind, KernelFamily, KernelTotal, Trace
from tb_perfadvisor.trace.integer_groups import group_rows, row_mask, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


def kernel_totals(
    trace: Trace, rows: Int32, window_start_ns: int, window_end_ns: int
) -> tuple[KernelTotal, ...]:
    """Time of compute kernels in the used window by name, the costliest first.

    If the recorder summed them up, these are its sums over everything that it recorded.

    Args:
        trace: The trace.
        rows: The device's work.
        window_start_ns: Start of the used window.
        window_end_ns: End of the used window.
    """
    if trace.totals is not None:
        return trace.totals.kernels
    events = trace.events
    rows = rows[events.kind[rows] == EventKind.KERNEL]
    start = np.maximum(events.start_ns[rows], window_start_ns)
    end = np.minimum(events.end_ns[rows], window_end_ns)
    rows, duration = rows[end > start], (end - start)[end > start]
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    first, inverse = group_rows(events.name[rows])
    names, count = events.name[rows[first]], np.bincount(inverse, minlength=len(first))
    # Exact: float64 holds integers up to 2^53 ns, 104 days of kernel time.
    total = np.bincount(inverse, weights=duration, minlength=len(first)).astype(np.int64)
    order = np.lexsort((first, -total))  # on a tie, the kernel that ran first
    return tuple(
        KernelTotal(
            name=trace.strings[names[i]],
            family=KernelFamily(int(family[rows[first[i]]])).name.lower(),
            count=int(count[i]),
            total_ns=int(total[i]),
        )
        for i in order.tolist()
    )


class HloTotals(Struct, frozen=True):
    """Executions of each XLA operation in the used window; columns of shape (ops,)."""

    op: Int32
    """Row of the `HloTable`."""
    count: Int64
    total_ns: Int64
    """Total duration of the executions."""


def hlo_totals(trace: Trace, device_rows: Int32) -> HloTotals:
    """Time by XLA operation of some work of a device, the costliest first."""
    events, table = trace.events, trace.hlo_events
    on_device = row_mask(len(events), device_rows)
    keep = on_device[table.row]
    ops, code = unique_inverse(table.op[keep])
    count = np.bincount(code, minlength=len(ops))
    duration = events.duration_ns[table.row[keep]]
    total = np.bincount(code, weights=duration, minlength=len(ops)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return HloTotals(ops[order], count[order].astype(np.int64), total[order])
