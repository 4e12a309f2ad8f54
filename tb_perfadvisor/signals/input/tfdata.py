"""tf.data pipelines: their iterators, what each costs, and which one the step waits for.

An event's name is the chain from the end of the pipeline to the called iterator:
`Iterator::Root::Prefetch::MapAndBatch::Range`. Iterators with the same name under the same root
form one node, even across epochs (`ForeverRepeat[3]`) and files (`Interleave[7]`).

The wait of the step is followed down the chain. While the step waits for a node, the time belongs
to the child that is being called meanwhile, on any thread; without such a child, it belongs to
the node itself. So each nanosecond of the stall belongs to exactly one iterator.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.tfdata_nodes import (
    Nodes,
    enclosing,
    iterator_calls,
    kind_of,
    nodes_of,
)
from tb_perfadvisor.signals.input.tfdata_runs import function_runs
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
"""Transformations that produce elements ahead of the call, on threads of their own. XProf's
tf.data analysis skips the same list when it searches for the blocking iterator."""
READERS = frozenset(
    {
        *("TFRecord", "TextLine", "FixedLengthRecord", "SSTable", "RecordIO", "ArrayRecord"),
        *("Sql", "LMDB", "CSV", "Parquet"),
    }
)
"""Sources that read files: XProf's list for its share of file reads, and others of TensorFlow."""


class Pipelines(Struct, frozen=True):
    """The iterators of all pipelines, parents before their children. Columns are (nodes,).

    Counts and times cover calls that begin in the used window; unknown integers are -1.
    """

    path: tuple[str, ...]
    """The chain without the numbers of epochs and files: `Root::Prefetch::MapAndBatch`."""
    kind: tuple[str, ...]
    """The last element of the chain, without its version: `MapAndBatch`."""
    dataset: tuple[str, ...]
    """The dataset that made it, `fused(MapDataset:1,BatchDatasetV2:2)`; empty if unknown."""
    shapes: tuple[str, ...]
    types: tuple[str, ...]
    parent: Int32
    count: Int64
    total_ns: Int64
    """Summed duration of the calls."""
    self_ns: Int64
    """Excludes calls of other iterators on the same thread; includes waiting for other threads."""
    function_count: Int64
    """Number of runs of its user function."""
    function_ns: Int64
    """Execution time of the user function, summed over threads."""
    parallelism: Int64
    is_autotuned: Int64
    batch_size: Int64
    buffer_size: Int64
    buffered: Int64
    buffered_bytes: Int64
    repeats: Int64
    """Number of iterators: each epoch or file makes a new one."""
    cores: int | None
    """Number of cores that the pipelines may use."""
    threads: int | None
    memory_bytes: int | None
    stall: tuple[Intervals, ...]
    """When the step waits for this node itself; disjoint over all nodes."""
    work: tuple[Intervals, ...]
    """When at least one thread executes its user function."""
    call_rows: tuple[Int32, ...]
    run_start_ns: Int64
    """When threads began to execute user functions, sorted; shape (executions,)."""
    run_end_ns: Int64
    """When they finished, sorted; shape (executions,)."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.path)

    def running(self, at_ns: Int64) -> Int64:
        """Number of threads that execute user functions at each time."""
        begun = np.searchsorted(self.run_start_ns, at_ns, side="right")
        return begun - np.searchsorted(self.run_end_ns, at_ns, side="right")

    def stall_ns(self, node: int) -> int:
        """How long the step waits for a node itself."""
        return total_ns(self.stall[node])

    def children(self, node: int) -> list[int]:
        """The nodes that feed a node directly."""
        nodes: list[int] = np.flatnonzero(self.parent == node).tolist()
        return nodes

    def below(self, node: int) -> list[int]:
        """A node and all nodes that feed it."""
        return [node, *(deeper for child in self.children(node) for deeper in self.below(child))]

    def above(self, node: int) -> list[int]:
        """The nodes that a node feeds, nearest first."""
        parent = int(self.parent[node])
        return [parent, *self.above(parent)] if parent >= 0 else []

    def is_ahead(self, node: int) -> bool:
        """Whether a background thread calls it, rather than the thread that waits."""
        return any(self.kind[above] in ASYNCHRONOUS for above in self.above(node))

    @property
    def bottleneck(self) -> int:
        """The node that the step waits for longest; -1 if it waits for none."""
        stalls = [self.stall_ns(node) for node in range(len(self))]
        return int(np.argmax(stalls)) if any(stalls) else -1


@memoized
def tfdata(signals: Signals) -> Pipelines:
    """The tf.data pipelines of the used window; has no nodes if there are none."""
    window = signals.attribution
    return find_pipelines(
        signals.trace,
        window.window_start_ns,
        window.window_end_ns,
        window.intervals[Cause.INPUT],
    )


def find_pipelines(trace: Trace, start_ns: int, end_ns: int, stall: Intervals) -> Pipelines:
    """The pipelines of a time range of a trace.

    Args:
        trace: The trace.
        start_ns: Start of the range: calls that begin in it count.
        end_ns: End of the range, exclusive.
        stall: When the step waits for input.
    """
    events, table = trace.events, trace.iterators
    rows, entry = iterator_calls(trace)
    nodes = nodes_of(trace, rows, entry)
    node_of_event = np.full(len(events), -1, dtype=np.int32)
    node_of_event[rows] = nodes.of_row
    caller = enclosing(trace, rows, node_of_event >= 0)
    inside = (events.start_ns[rows] >= start_ns) & (events.start_ns[rows] < end_ns)
    caller_row = np.maximum(caller, 0)
    size = len(nodes.path)

    def sum_by_node(mask: NDArray[np.bool_], node: Int32, values: Int64) -> Int64:
        sums = np.bincount(node[mask], weights=values[mask], minlength=size)
        return np.rint(sums).astype(np.int64)

    duration = events.duration_ns[rows]
    total = sum_by_node(inside, nodes.of_row, duration)
    # Callers that began before the range are in no sum, so subtract nothing from them.
    is_nested = inside & (caller >= 0) & (events.start_ns[caller_row] >= start_ns)
    functions = function_runs(trace, nodes, node_of_event, start_ns, end_ns)

    def largest(column: NDArray[np.generic]) -> Int64:
        values = np.full(size, -1, dtype=np.int64)
        known = entry >= 0
        np.maximum.at(values, nodes.of_row[known], column[entry[known]].astype(np.int64))
        return values

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
        self_ns=total - sum_by_node(is_nested, node_of_event[caller_row], duration),
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
    stall_of_node: list[Intervals] = [EMPTY] * len(calls)
    if not len(stall):
        return tuple(stall_of_node)
    events = trace.events
    called = [union(events.start_ns[rows], events.end_ns[rows]) for rows in calls]

    def descend(node: int, stall: Intervals) -> Intervals:
        """Give a node and the nodes below it their parts of the stall; return the remainder."""
        node_stall = intersect(stall, called[node])
        remainder = minus(stall, node_stall)
        for child in np.flatnonzero(nodes.parent == node).tolist():
            node_stall = descend(child, node_stall)
        stall_of_node[node] = node_stall
        return remainder

    for root in np.flatnonzero(nodes.parent < 0).tolist():
        stall = descend(root, stall)
    return tuple(stall_of_node)
