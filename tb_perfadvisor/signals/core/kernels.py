"""Compute kernels by name."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.trace import EventKind, KernelFamily, KernelTotal, Trace
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.tables import Int32


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
