"""The time of nested events, given to the innermost one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, union
from tb_perfadvisor.trace.tables import Int32


def innermost_time(
    trace: Trace, rows: Int32, group: NDArray[np.signedinteger], groups: int
) -> list[Intervals]:
    """When the innermost event belongs to each group.

    Args:
        trace: The trace.
        rows: Events of one thread, in order of start; shape (n,).
        group: The group of each; shape (n,).
        groups: The number of groups.
    """
    events = trace.events
    depth = np.zeros(len(rows), dtype=np.int64)
    is_among = np.zeros(len(events), dtype=bool)
    is_among[rows] = True
    ancestor = events.parent[rows]
    while (ancestor >= 0).any():
        depth += (ancestor >= 0) & is_among[ancestor]
        ancestor = np.where(ancestor >= 0, events.parent[ancestor], -1)
    parts: list[list[Intervals]] = [[EMPTY] for _ in range(groups)]
    deeper = EMPTY
    for level in range(int(depth.max(initial=-1)), -1, -1):
        is_level = depth == level
        for number in range(groups):
            chosen = rows[is_level & (group == number)]
            time = union(events.start_ns[chosen], events.end_ns[chosen])
            parts[number].append(minus(time, deeper))
        level_rows = rows[is_level]
        deeper = join(deeper, union(events.start_ns[level_rows], events.end_ns[level_rows]))
    return [join(*pieces) for pieces in parts]
