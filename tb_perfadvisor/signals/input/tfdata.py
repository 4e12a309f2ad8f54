"""tf.data pipelines as their events tell them: iterators, what each costs, which one is waited for.

An event's name is the chain from the pipeline's end to the iterator that is called:
`Iterator::Root::Prefetch::MapAndBatch::Range`. Iterators of one name under one root are one node
here, be they of several epochs (`ForeverRepeat[3]`) or files (`Interleave[7]`).

What the step waits for is followed down the chain: while a call of a node is waited for, the
time belongs to the child that is being called meanwhile, on whichever thread, else to the node's
own work. So each nanosecond of the stall has one iterator, and their sum is the stall.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import Cause
from tb_perfadvisor.signals.input.tfdata_nodes import (
    Nodes,
    enclosing,
    iterator_calls,
    kind_of,
    nodes_of,
)
from tb_perfadvisor.signals.input.tfdata_runs import functions_of
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

ASYNCHRONOUS = frozenset(
    {
        *("Prefetch", "ParallelMap", "ParallelInterleave", "LegacyParallelInterleave"),
        *("MapAndBatch", "ParallelBatch", "ParallelFilter", "ParseExample", "DataService"),
        *("PrefetchToDevice", "MultiDeviceIterator"),
    }
)
"""Transformations with threads of their own, which work ahead of the call (the list that
XProf's tf.data analysis leaves out when it looks for what blocks)."""
READERS = frozenset(
    {
        *("TFRecord", "TextLine", "FixedLengthRecord", "SSTable", "RecordIO", "ArrayRecord"),
        *("Sql", "LMDB", "CSV", "Parquet"),
    }
)
"""Sources that read files (XProf's list for its share of file reads, and others of TensorFlow)."""


class Pipelines(Struct, frozen=True):
    """The iterators of all pipelines, parents before their children. Columns are (nodes,).

    Counts and times are of calls that begin in the used window; unknown whole numbers are -1.
    """

    path: tuple[str, ...]
    """The chain without what tells epochs and files apart: `Root::Prefetch::MapAndBatch`."""
    kind: tuple[str, ...]
    """The last of the chain, without its version: `MapAndBatch`."""
    dataset: tuple[str, ...]
    """What made it, `fused(MapDataset:1,BatchDatasetV2:2)`; empty when unknown."""
    shapes: tuple[str, ...]
    types: tuple[str, ...]
    parent: Int32
    count: Int64
    total_ns: Int64
    """Summed durations of the calls."""
    self_ns: Int64
    """Without calls of other iterators on the same thread; waiting for other threads counts."""
    function_count: Int64
    """Runs of its user function."""
    function_ns: Int64
    """What executing it took, summed over threads."""
    parallelism: Int64
    is_autotuned: Int64
    batch_size: Int64
    buffer_size: Int64
    buffered: Int64
    buffered_bytes: Int64
    repeats: Int64
    """How many iterators there were: an epoch or a file makes a new one."""
    cores: int | None
    """What the pipelines may use of the machine."""
    threads: int | None
    memory_bytes: int | None
    stall: tuple[Intervals, ...]
    """When the step waits for this very iterator; disjoint over all nodes."""
    work: tuple[Intervals, ...]
    """When any thread executes its user function."""
    call_rows: tuple[Int32, ...]
    run_start_ns: Int64
    """When threads began to execute user functions, sorted; shape (executions,)."""
    run_end_ns: Int64
    """When they were done, sorted; shape (executions,)."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.path)

    def running(self, at_ns: Int64) -> Int64:
        """How many threads execute user functions at some instants."""
        begun = np.searchsorted(self.run_start_ns, at_ns, side="right")
        return begun - np.searchsorted(self.run_end_ns, at_ns, side="right")

    def stall_ns(self, node: int) -> int:
        """How long the step waits for this very iterator."""
        return total_ns(self.stall[node])

    def children(self, node: int) -> list[int]:
        """The nodes that feed one."""
        found: list[int] = np.flatnonzero(self.parent == node).tolist()
        return found

    def below(self, node: int) -> list[int]:
        """A node and all that feed it."""
        return [node, *(deeper for child in self.children(node) for deeper in self.below(child))]

    def above(self, node: int) -> list[int]:
        """What a node feeds, the nearest first."""
        parent = int(self.parent[node])
        return [parent, *self.above(parent)] if parent >= 0 else []

    def is_ahead(self, node: int) -> bool:
        """Whether another thread than the one that waits calls it."""
        return any(self.kind[above] in ASYNCHRONOUS for above in self.above(node))

    @property
    def bottleneck(self) -> int:
        """The node that the step waits for longest; -1 when it waits for none."""
        stalls = [self.stall_ns(node) for node in range(len(self))]
        return int(np.argmax(stalls)) if any(stalls) else -1


@memoized
def tfdata(signals: Signals) -> Pipelines:
    """The tf.data pipelines of the used window; without any, no nodes."""
    window = signals.attribution
    return find_pipelines(
        signals.trace,
        window.window_start_ns,
        window.window_end_ns,
        window.intervals[Cause.INPUT],
    )


def find_pipelines(trace: Trace, start_ns: int, end_ns: int, stall: Intervals) -> Pipelines:
    """The pipelines of a stretch of a trace.

    Args:
        trace: The trace.
        start_ns: Calls that begin from here on count,
        end_ns: up to here.
        stall: When the step waits for input.
    """
    events, table = trace.events, trace.iterators
    rows, place = iterator_calls(trace)
    nodes = nodes_of(trace, rows, place)
    of_event = np.full(len(events), -1, dtype=np.int32)
    of_event[rows] = nodes.of_row
    encloser = enclosing(trace, rows, of_event >= 0)
    inside = (events.start_ns[rows] >= start_ns) & (events.start_ns[rows] < end_ns)
    around = np.maximum(encloser, 0)
    size = len(nodes.path)

    def summed(of: NDArray[np.bool_], node: Int32, values: Int64) -> Int64:
        found = np.bincount(node[of], weights=values[of], minlength=size)
        return np.rint(found).astype(np.int64)

    duration = events.duration_ns[rows]
    total = summed(inside, nodes.of_row, duration)
    # What lies in a call that began before the window is in no sum of this one.
    nested = inside & (encloser >= 0) & (events.start_ns[around] >= start_ns)
    within = of_event[around]
    functions = functions_of(trace, nodes, of_event, start_ns, end_ns)

    def largest(column: NDArray[np.generic]) -> Int64:
        found = np.full(size, -1, dtype=np.int64)
        known = place >= 0
        np.maximum.at(found, nodes.of_row[known], column[place[known]].astype(np.int64))
        return found

    def root_fact(column: NDArray[np.generic]) -> int | None:
        value = int(largest(column).max(initial=-1))
        return value if value >= 0 else None

    calls = tuple(rows[nodes.of_row == node] for node in range(size))
    return Pipelines(
        path=nodes.path,
        kind=tuple(kind_of(path) for path in nodes.path),
        dataset=tuple(trace.text(index) for index in largest(table.dataset).tolist()),
        shapes=tuple(trace.text(index) for index in largest(table.shapes).tolist()),
        types=tuple(trace.text(index) for index in largest(table.types).tolist()),
        parent=nodes.parent,
        count=np.bincount(nodes.of_row[inside], minlength=size).astype(np.int64),
        total_ns=total,
        self_ns=total - summed(nested, within, duration),
        function_count=functions.count,
        function_ns=functions.total_ns,
        parallelism=largest(table.parallelism),
        is_autotuned=largest(table.is_autotuned),
        batch_size=largest(table.batch_size),
        buffer_size=largest(table.buffer_size),
        buffered=largest(table.buffered),
        buffered_bytes=largest(table.buffered_bytes),
        repeats=nodes.repeats,
        cores=root_fact(table.cores),
        threads=root_fact(table.threads),
        memory_bytes=root_fact(table.memory_bytes),
        stall=_stalls(trace, nodes, calls, stall),
        work=functions.work,
        call_rows=calls,
        run_start_ns=functions.start_ns,
        run_end_ns=functions.end_ns,
    )


def _stalls(
    trace: Trace, nodes: Nodes, calls: tuple[Int32, ...], stall: Intervals
) -> tuple[Intervals, ...]:
    """Split the stall among the nodes, from the roots down."""
    found: list[Intervals] = [EMPTY] * len(calls)
    if not len(stall):
        return tuple(found)
    events = trace.events
    called = [union(events.start_ns[rows], events.end_ns[rows]) for rows in calls]

    def descend(node: int, waited: Intervals) -> Intervals:
        """What of the time is a node's; returns what is left."""
        own = intersect(waited, called[node])
        left = minus(waited, own)
        for child in np.flatnonzero(nodes.parent == node).tolist():
            own = descend(child, own)
        found[node] = own
        return left

    for root in np.flatnonzero(nodes.parent < 0).tolist():
        stall = descend(root, stall)
    return tuple(found)
