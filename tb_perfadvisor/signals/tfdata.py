"""tf.data pipelines as their events tell them: iterators, what each costs, which one is waited for.

An event's name is the chain from the pipeline's end to the iterator that is called:
`Iterator::Root::Prefetch::MapAndBatch::Range`. Iterators of one name under one root are one node
here, be they of several epochs (`ForeverRepeat[3]`) or files (`Interleave[7]`).

What the step waits for is followed down the chain: while a call of a node is waited for, the
time belongs to the child that is being called meanwhile, on whichever thread, else to the node's
own work. So each nanosecond of the stall has one iterator, and their sum is the stall.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.attribution import Cause
from tb_perfadvisor.signals.derived import derived
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

if TYPE_CHECKING:
    from tb_perfadvisor.signals.signals import Signals

PREFIX = "Iterator::"
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
_VERSION = re.compile(r"V\d+$")
_INDEX = re.compile(r"\[[^\]]*\]")


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

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.path)

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


@derived
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
    rows, place = _places(trace)
    nodes = _nodes(trace, rows, place)
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
    functions = _functions(trace, nodes, of_event, start_ns, end_ns)

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
    )


def kind_of(path: str) -> str:
    """What the last iterator of a chain does: `ParallelMap` of `Root::ParallelMapV2`."""
    return _VERSION.sub("", path.rsplit("::", 1)[-1])


def _places(trace: Trace) -> tuple[Int32, Int32]:
    """Rows of iterators' calls, and for each its place in the table; -1 for none."""
    names = trace.events.name
    of_work = trace.rows(EventKind.INPUT_WORK)
    known = np.unique(names[of_work])
    is_call = np.zeros(len(trace.strings) + 1, dtype=bool)
    is_call[[name for name in known.tolist() if trace.strings[name].startswith(PREFIX)]] = True
    rows = of_work[is_call[names[of_work]]]
    place = trace.by_event(
        trace.iterators.row, np.arange(len(trace.iterators.row), dtype=np.int32), -1
    )[rows]
    return rows, place


class _Nodes(Struct, frozen=True):
    path: tuple[str, ...]
    parent: Int32
    repeats: Int64
    of_row: Int32
    """For each call its node; shape (calls,)."""


def _nodes(trace: Trace, rows: Int32, place: Int32) -> _Nodes:
    """Group calls by chain and pipeline."""
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    full = [trace.strings[name][len(PREFIX) :] for name in names.tolist()]
    root, iterator = _roots(trace, place)
    known: dict[tuple[int, str], int] = {}
    keys, which = np.unique(root * len(names) + inverse, return_inverse=True)
    first = [(key // len(names), _INDEX.sub("", full[key % len(names)])) for key in keys.tolist()]
    for pair in sorted(set(first), key=lambda pair: (pair[0], pair[1].count("::"), pair[1])):
        known[pair] = len(known)
    of_row = np.array([known[pair] for pair in first], dtype=np.int32)[which]
    parents = []
    for number, path in known:
        above = path.rpartition("::")[0]
        while above and (number, above) not in known:
            above = above.rpartition("::")[0]
        parents.append(known.get((number, above), -1))
    repeats = np.zeros(len(known), dtype=np.int64)
    count = int(iterator.max(initial=0)) + 1
    np.add.at(repeats, np.unique(of_row * np.int64(count) + iterator) // count, 1)
    return _Nodes(
        path=tuple(path for _, path in known),
        parent=np.array(parents, dtype=np.int32),
        repeats=repeats,
        of_row=of_row,
    )


def _roots(trace: Trace, place: Int32) -> tuple[Int64, Int64]:
    """For each call a number of its pipeline and one of its iterator, counted from 0."""
    table = trace.iterators
    is_known = place >= 0
    iterator = np.where(is_known, table.iterator[place], 0) if len(table.row) else 0 * place
    numbers, first, inverse = np.unique(iterator, return_index=True, return_inverse=True)
    parent: dict[int, int] = {}
    label: dict[int, int] = {}
    for number, at in zip(numbers.tolist(), place[first].tolist(), strict=True):
        if number:
            parent[number] = int(table.parent[at])
            label[number] = int(table.dataset[at])
    found = []
    for number in numbers.tolist():
        seen = set()
        while parent.get(number) in parent and number not in seen:
            seen.add(number)
            number = parent[number]
        # Iterators of a later epoch are made of the same dataset.
        found.append(label.get(number, -1) + 1 if not parent.get(number) else 0)
    return np.array(found, dtype=np.int64)[inverse], np.asarray(inverse, dtype=np.int64)


def enclosing(trace: Trace, rows: Int32, is_call: NDArray[np.bool_]) -> Int32:
    """For each row the nearest call of an iterator around it, on its thread; -1 for none."""
    parent = trace.events.parent
    found = parent[rows]
    while (outside := (found >= 0) & ~is_call[np.maximum(found, 0)]).any():
        found = np.where(outside, parent[np.maximum(found, 0)], found)
    return found


class _Functions(Struct, frozen=True):
    count: Int64
    total_ns: Int64
    work: tuple[Intervals, ...]


def _functions(
    trace: Trace, nodes: _Nodes, of_event: Int32, start_ns: int, end_ns: int
) -> _Functions:
    """What the user functions of each node took, wherever they were executed."""
    events, table = trace.events, trace.iterators
    size = len(nodes.path)
    row, run = table.row[table.run != 0], table.run[table.run != 0]
    names = events.name[row]
    starts = [
        name
        for name in np.unique(names).tolist()
        if trace.strings[name].startswith("InstantiatedCapturedFunction::")
    ]
    executes = [
        name for name in np.unique(names).tolist() if trace.strings[name].endswith("::Process")
    ]
    is_start = np.isin(names, starts)
    owner = _owners(trace, row[is_start], nodes, of_event)
    numbers, first = np.unique(run[is_start], return_index=True)
    own = np.isin(names, executes) & np.isin(run, numbers)
    own &= (events.end_ns[row] > start_ns) & (events.start_ns[row] < end_ns)
    executed = row[own]
    end = _ends(trace, executed, run[own], row, run, names)
    node = owner[first][np.searchsorted(numbers, run[own])] if numbers.size else executed * 0 - 1
    begun = row[is_start]
    inside = (events.start_ns[begun] >= start_ns) & (events.start_ns[begun] < end_ns) & (owner >= 0)
    has_owner = node >= 0
    # What is executed beyond the window's ends is cut off there.
    took = np.minimum(end, end_ns) - np.maximum(events.start_ns[executed], start_ns)
    return _Functions(
        count=np.bincount(owner[inside], minlength=size).astype(np.int64),
        total_ns=np.rint(
            np.bincount(node[has_owner], weights=took[has_owner], minlength=size)
        ).astype(np.int64),
        work=tuple(
            union(events.start_ns[executed[node == one]], end[node == one]) for one in range(size)
        ),
    )


def _ends(
    trace: Trace, executed: Int32, of_run: Int64, row: Int32, run: Int64, names: Int32
) -> Int64:
    """When the executor's work on a run ends: what is told that it is done may go on for long."""
    events = trace.events
    done = np.flatnonzero(
        np.isin(names, [n for n in np.unique(names).tolist() if "DoneCallback" in trace.strings[n]])
    )
    end = events.end_ns[executed]
    if not done.size:
        return end
    numbers, first = np.unique(run[done], return_index=True)
    slot = np.minimum(np.searchsorted(numbers, of_run), numbers.size - 1)
    told = events.start_ns[row[done[first]]][slot]
    is_cut = (numbers[slot] == of_run) & (told > events.start_ns[executed])
    cut: Int64 = np.where(is_cut, np.minimum(end, told), end)
    return cut


def _owners(trace: Trace, rows: Int32, nodes: _Nodes, of_event: Int32) -> Int32:
    """Which node starts each run: the call around it, else the one whose thread this is.

    A thread of an asynchronous iterator calls what feeds it.
    """
    around = enclosing(trace, rows, of_event >= 0)
    owner = np.where(around >= 0, of_event[np.maximum(around, 0)], -1).astype(np.int32)
    free = np.flatnonzero(owner < 0)
    if not free.size:
        return owner
    calls = np.flatnonzero(of_event >= 0).astype(np.int32)
    outermost = calls[enclosing(trace, calls, of_event >= 0) < 0]
    for track in np.unique(trace.events.track[rows[free]]).tolist():
        fed = nodes.parent[of_event[outermost[trace.events.track[outermost] == track]]]
        fed = fed[fed >= 0]
        if fed.size:
            mine = free[trace.events.track[rows[free]] == track]
            owner[mine] = np.bincount(fed).argmax()
    return owner


def _stalls(
    trace: Trace, nodes: _Nodes, calls: tuple[Int32, ...], stall: Intervals
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
