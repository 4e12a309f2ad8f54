"""The critical path: the longest path through the dependency graph, as recorded.

It leads from the window's end on the thread that runs the steps back to its start, always along
the edge that was decisive: the thread's own work, the device work that it waited for, the launch
that this work waited for. Shortening anything else changes nothing, unless the path moves.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import Intervals, clip, total_ns, union
from tb_perfadvisor.trace.tables import Int8, Int32, Int64
from tb_perfadvisor.whatif.graph import EdgeKind, Graph, NodeKind


class PathKind(IntEnum):
    """What a stretch of the path is spent on."""

    HOST = 0
    """Host work between calls."""
    LAUNCH = 1
    """From a launch to the start of its work."""
    GAP = 2
    """Between two pieces of work on a stream."""
    SIGNAL = 3
    """From the end of work to the start of what waited for it on another stream."""
    WORK = 4
    """Device work."""
    RETURN = 5
    """From the end of what a call waits for to its return."""
    BATCH = 6
    """Loading processes make a batch."""


_KINDS = {
    EdgeKind.HOST: PathKind.HOST,
    EdgeKind.LAUNCH: PathKind.LAUNCH,
    EdgeKind.STREAM: PathKind.GAP,
    EdgeKind.CROSS: PathKind.SIGNAL,
    EdgeKind.WAIT: PathKind.RETURN,
}


class CriticalPath(Struct, frozen=True):
    """Stretches in order of time, without gaps; columns of shape (stretches,)."""

    kind: Int8
    """`PathKind`."""
    row: Int32
    """The event that the stretch leads to: a call, or the work; -1 for the window's end."""
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        """Number of stretches."""
        return len(self.kind)

    def of(self, *kinds: PathKind) -> Intervals:
        """When the path is spent on some kinds."""
        chosen = is_in(self.kind, kinds)
        return union(self.start_ns[chosen], self.end_ns[chosen])

    def total_ns(self, *kinds: PathKind, start_ns: int, end_ns: int) -> int:
        """How much of [start_ns, end_ns), such as a step, is spent on some kinds."""
        return total_ns(clip(self.of(*kinds), start_ns, end_ns))


def find_critical_path(graph: Graph) -> CriticalPath:
    """Find the critical path of a graph as it was recorded."""
    first = np.searchsorted(graph.target, np.arange(len(graph) + 1))
    at_ns = np.concatenate((graph.at_ns, graph.tail_ns)).tolist()
    begun_ns = (graph.at_ns - graph.duration_ns).tolist()
    kinds, rows, starts, ends = [], [], [], []

    def add(kind: PathKind, row: int, start: int, end: int) -> None:
        if end > start:
            kinds.append(kind)
            rows.append(row)
            starts.append(start)
            ends.append(end)

    node = int(np.flatnonzero((graph.kind == NodeKind.END) & (graph.chain == 0))[0])
    while node < len(graph):
        edges = range(int(first[node]), int(first[node + 1]))
        begun, row = begun_ns[node], int(graph.row[node])
        if graph.kind[node] == NodeKind.WORK:
            add(PathKind.WORK, row, begun, at_ns[node])
        # If two edges are decisive, take the device's.
        decisive = max(
            edges,
            key=lambda edge: (
                at_ns[graph.source[edge]] + int(graph.delay_ns[edge]),
                int(graph.edge_kind[edge]),
            ),
        )
        kind = _KINDS[EdgeKind(graph.edge_kind[decisive])]
        if graph.kind[node] == NodeKind.BATCH:
            kind = PathKind.BATCH
        node = int(graph.source[decisive])
        add(kind, row, at_ns[node], begun)
    window_ns = int(graph.tail_ns[0])
    start = np.maximum(np.array(starts[::-1], dtype=np.int64), window_ns)
    end = np.array(ends[::-1], dtype=np.int64)
    inside = end > start
    return CriticalPath(
        kind=np.array(kinds[::-1], dtype=np.int8)[inside],
        row=np.array(rows[::-1], dtype=np.int32)[inside],
        start_ns=start[inside],
        end_ns=end[inside],
    )
