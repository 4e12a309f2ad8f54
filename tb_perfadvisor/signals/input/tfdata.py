"""tf.data pipelines: their iterators, what each costs, and which one the step waits for.

An event's name is the chain from the end of the pipeline to the called iterator:
`Iterator::Root::Prefetch::MapAndBatch::Range`. Iterators with the same name under the same root
form one node, even across epochs (`ForeverRepeat[3]`) and files (`Interleave[7]`).

The wait of the step is followed down the chain. While the step waits for a node, the time belongs
to the child that is being called meanwhile, on any thread; without such a child, it belongs to
the node itself. So each nanosecond of the stall belongs to exactly one iterator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, join, minus, total_ns, union
from tb_perfadvisor.trace.names import named, rows_named
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

PREFIX = "Iterator::"
_VERSION = regex(r"V\d+$")
_INDEX = regex(r"\[[^\[\]]*\]")
_STARTS = regex(r"^InstantiatedCapturedFunction::")
_EXECUTES, _DONE = regex(r"::Process$"), regex("DoneCallback")


class Nodes(Struct, frozen=True):
    """The iterators of all pipelines, parents before their children; columns are (nodes,)."""

    path: tuple[str, ...]
    parent: Int32
    repeats: Int64
    of_row: Int32
    """Node of each call; shape (calls,)."""


def kind_of(path: str) -> str:
    """The kind of the last iterator of a chain: `ParallelMap` for `Root::ParallelMapV2`."""
    return _VERSION.sub("", path.rsplit("::", 1)[-1])


def parents_of_paths(paths: Sequence[tuple[int, str]]) -> list[int]:
    """The place of the nearest chain of the same pipeline that each one continues; -1 for none.

    Paths are distinct pairs of a pipeline's number and a chain, such as `Root::Map`.
    """
    parts = [(number, *path.split("::")) for number, path in paths]
    parents = [-1] * len(paths)
    above: list[int] = []
    # Sorted, each chain comes directly before those that continue it.
    for place in sorted(range(len(paths)), key=parts.__getitem__):
        while above and parts[place][: len(parts[above[-1]])] != parts[above[-1]]:
            above.pop()
        parents[place] = above[-1] if above else -1
        above.append(place)
    return parents


def iterator_calls(trace: Trace) -> tuple[Int32, Int32]:
    """Rows of iterator calls, and their entries in the iterator table; -1 for none."""
    names = trace.events.name
    work = trace.rows(EventKind.INPUT_WORK)
    known = distinct(names[work])
    is_call = np.zeros(len(trace.strings) + 1, dtype=bool)
    is_call[[name for name in known.tolist() if trace.strings[name].startswith(PREFIX)]] = True
    rows = work[is_call[names[work]]]
    entry = trace.by_event(
        trace.iterators.row, np.arange(len(trace.iterators.row), dtype=np.int32), -1
    )[rows]
    return rows, entry


def nodes_of(trace: Trace, rows: Int32, entry: Int32) -> Nodes:
    """Group calls by chain and pipeline."""
    names, inverse = unique_inverse(trace.events.name[rows])
    full = [trace.strings[name][len(PREFIX) :] for name in names.tolist()]
    root, iterator = _roots(trace, entry)
    known: dict[tuple[int, str], int] = {}
    keys, key_of_row = unique_inverse(root * len(names) + inverse)
    pairs = [(key // len(names), _INDEX.sub("", full[key % len(names)])) for key in keys.tolist()]
    for pair in sorted(set(pairs), key=lambda pair: (pair[0], pair[1].count("::"), pair[1])):
        known[pair] = len(known)
    of_row = np.array([known[pair] for pair in pairs], dtype=np.int32)[key_of_row]
    parents = parents_of_paths(list(known))
    repeats = np.zeros(len(known), dtype=np.int64)
    count = int(iterator.max(initial=0)) + 1
    np.add.at(repeats, distinct(of_row * np.int64(count) + iterator) // count, 1)
    return Nodes(
        path=tuple(path for _, path in known),
        parent=np.array(parents, dtype=np.int32),
        repeats=repeats,
        of_row=of_row,
    )


def _roots(trace: Trace, entry: Int32) -> tuple[Int64, Int64]:
    """Numbers of the pipeline and the iterator of each call, counted from 0."""
    table = trace.iterators
    is_known = entry >= 0
    iterator = np.where(is_known, table.iterator[entry], 0) if len(table.row) else 0 * entry
    numbers, first, inverse = np.unique(iterator, return_index=True, return_inverse=True)
    parent: dict[int, int] = {}
    label: dict[int, int] = {}
    for number, at in zip(numbers.tolist(), entry[first].tolist(), strict=True):
        if number:
            parent[number] = int(table.parent[at])
            label[number] = int(table.dataset[at])
    roots = []
    root_of: dict[int, int] = {}
    for number in numbers.tolist():
        passed, seen = [], set()
        while number not in root_of and parent.get(number) in parent and number not in seen:
            seen.add(number)
            passed.append(number)
            number = parent[number]
        number = root_of.get(number, number)
        root_of.update(dict.fromkeys(passed, number))
        # A later epoch makes new iterators from the same dataset.
        roots.append(label.get(number, -1) + 1 if not parent.get(number) else 0)
    return np.array(roots, dtype=np.int64)[inverse], np.asarray(inverse, dtype=np.int64)


def enclosing(trace: Trace, rows: Int32, is_call: NDArray[np.bool_]) -> Int32:
    """The innermost call around each row, on its thread; -1 for none.

    `is_call` has shape (events,).
    """
    above = trace.events.parent[rows]
    around = nearest(trace.events.parent, is_call)
    return np.where(above >= 0, around[above], np.int32(-1))


class FunctionRuns(Struct, frozen=True):
    """Runs of user functions in a time range; columns are (nodes,)."""

    count: Int64
    total_ns: Int64
    work: tuple[Intervals, ...]
    start_ns: Int64
    """When threads began to execute runs; sorted, shape (executions,)."""
    end_ns: Int64
    """When they finished; sorted separately, shape (executions,)."""


def function_runs(
    trace: Trace, nodes: Nodes, node_of_event: Int32, start_ns: int, end_ns: int
) -> FunctionRuns:
    """Runs and execution time of each node's user function, on all threads."""
    events, table = trace.events, trace.iterators
    size = len(nodes.path)
    row, run = table.row[table.run != 0], table.run[table.run != 0]
    is_start = named(trace, row, _STARTS)
    owner = _owners(trace, row[is_start], nodes, node_of_event)
    numbers, first = np.unique(run[is_start], return_index=True)
    is_executed = named(trace, row, _EXECUTES) & is_in(run, numbers)
    is_executed &= (events.end_ns[row] > start_ns) & (events.start_ns[row] < end_ns)
    executed, executed_run = row[is_executed], run[is_executed]
    end = _ends(trace, executed, executed_run, row, run)
    node = (
        owner[first][np.searchsorted(numbers, executed_run)] if numbers.size else executed * 0 - 1
    )
    begun = row[is_start]
    inside = (events.start_ns[begun] >= start_ns) & (events.start_ns[begun] < end_ns) & (owner >= 0)
    has_owner = node >= 0
    duration_ns = np.minimum(end, end_ns) - np.maximum(events.start_ns[executed], start_ns)
    return FunctionRuns(
        count=np.bincount(owner[inside], minlength=size).astype(np.int64),
        total_ns=np.rint(
            np.bincount(node[has_owner], weights=duration_ns[has_owner], minlength=size)
        ).astype(np.int64),
        work=tuple(
            union(events.start_ns[executed[node == number]], end[node == number])
            for number in range(size)
        ),
        start_ns=np.sort(events.start_ns[executed[has_owner]]),
        end_ns=np.sort(end[has_owner]),
    )


def _ends(trace: Trace, executed: Int32, executed_run: Int64, row: Int32, run: Int64) -> Int64:
    """When executions end: at the callback of their run, after which an executor may go on."""
    events = trace.events
    done = np.flatnonzero(named(trace, row, _DONE))
    end = events.end_ns[executed]
    if not done.size:
        return end
    numbers, first = np.unique(run[done], return_index=True)
    slot = np.minimum(np.searchsorted(numbers, executed_run), numbers.size - 1)
    callback_ns = events.start_ns[row[done[first]]][slot]
    is_cut = (numbers[slot] == executed_run) & (callback_ns > events.start_ns[executed])
    cut_end: Int64 = np.where(is_cut, np.minimum(end, callback_ns), end)
    return cut_end


def _owners(trace: Trace, rows: Int32, nodes: Nodes, node_of_event: Int32) -> Int32:
    """The node that starts each run: that of the call around it, else that of the thread.

    The thread of an asynchronous iterator calls the iterators that feed it, so their parent owns
    the thread.
    """
    call = enclosing(trace, rows, node_of_event >= 0)
    owner = np.where(call >= 0, node_of_event[np.maximum(call, 0)], -1).astype(np.int32)
    free = np.flatnonzero(owner < 0)
    if not free.size:
        return owner
    calls = np.flatnonzero(node_of_event >= 0).astype(np.int32)
    outermost = calls[enclosing(trace, calls, node_of_event >= 0) < 0]
    track = trace.events.track
    fed_by_track = {
        number: nodes.parent[node_of_event[outermost[places]]]
        for number, places in places_by_value(track[outermost])
    }
    for number, places in places_by_value(track[rows[free]]):
        fed = fed_by_track.get(number, owner[:0])
        fed = fed[fed >= 0]
        if fed.size:
            values, count = np.unique(fed, return_counts=True)
            owner[free[places]] = values[count.argmax()]
    return owner


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

    Calls that begin in the range count; its end is exclusive. The step waits for input in `stall`.
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
    called = [events.spans(rows) for rows in calls]

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


# Of a size of 64 bits; Python refuses to parse thousands of digits.
_MOST_DIGITS = 20
_BYTES = {
    **{"float": 4, "double": 8, "half": 2, "bfloat16": 2, "bool": 1},
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"complex64": 8, "complex128": 16},
}


def element_bytes(shapes: str, types: str, *, batch_size: int = -1) -> int | None:
    """The size of an element in bytes; None if the size of a dimension or a type is unknown.

    Shapes and types are those of its components: `[?,32,32,3] [?]` and `float int64`. Strings have
    no fixed size. `batch_size` replaces an unknown first dimension; -1 if unknown.
    """
    components = re.findall(r"\[([^\[\]]*)\]", shapes)
    names = types.split()
    if not components or len(components) != len(names) or "unknown" in shapes:
        return None
    total = 0
    for dimensions, name in zip(components, names, strict=True):
        if name not in _BYTES:
            return None
        size = _BYTES[name]
        for position, text in enumerate(filter(None, dimensions.split(","))):
            if text.isdecimal() and len(text) <= _MOST_DIGITS:
                size *= int(text)
            elif position == 0 and batch_size > 0:
                size *= batch_size
            else:
                return None
        total += size
    return total


# tensorflow/python/ops/script_ops.py: py_function, numpy_function and from_generator.
_PYTHON_NAMES = regex(r":(Eager)?PyFunc(Stateless)?$")


@memoized
def python_functions(signals: Signals) -> Int32:
    """Rows of Python functions that tf.data calls.

    Excludes TensorFlow's own `Generator`s, which distribute batches to devices without Python.
    """
    return _in_pipelines(signals.trace, python_calls(signals.trace))


def python_calls(trace: Trace) -> Int32:
    """Rows of Python functions that TensorFlow calls, in pipelines and in steps."""
    return rows_named(trace, _PYTHON_NAMES, EventKind.OPERATOR, EventKind.INPUT_WORK)


@memoized
def file_reads(signals: Signals) -> Int32:
    """Rows of whole files read by user functions (`tf.io.read_file`)."""
    return _in_pipelines(
        signals.trace,
        rows_named(signals.trace, _READ_NAMES, EventKind.OPERATOR, EventKind.INPUT_WORK),
    )


_READ_NAMES = regex(r":ReadFile$")


@memoized
def function_operators(signals: Signals) -> Int32:
    """Rows of all operators that tf.data's user functions run."""
    trace = signals.trace
    return _in_pipelines(trace, trace.rows(EventKind.OPERATOR, EventKind.INPUT_WORK))


def _in_pipelines(trace: Trace, rows: Int32) -> Int32:
    """The rows on tf.data's own threads or inside a run of one of its functions."""
    table = trace.iterators
    is_run = np.zeros(len(trace.events), dtype=bool)
    is_run[table.row[table.run != 0]] = True
    in_pipeline = trace.events.kind[rows] == EventKind.INPUT_WORK
    in_pipeline |= enclosing(trace, rows, is_run) >= 0
    pipeline_rows: Int32 = rows[in_pipeline]
    return pipeline_rows


class StallParts(Struct, frozen=True):
    """The stall, split by what the pipelines do meanwhile; disjoint."""

    reading_on_demand: Intervals
    """File reads on the thread that waits."""
    reading_ahead: Intervals
    """File reads on background threads, which started too late."""
    preprocessing: Intervals
    """User functions, batching, shuffling and all other work of iterators."""
    unattributed: Intervals
    """The step waits, but no call of an iterator is visible."""


@memoized
def stall_parts(signals: Signals) -> StallParts:
    """What the pipelines do while the step waits for input."""
    pipelines, events = tfdata(signals), signals.trace.events
    reads = file_reads(signals)
    reading = events.spans(reads)
    on_demand, ahead, preprocessing = EMPTY, EMPTY, EMPTY
    for node in range(len(pipelines)):
        stall = pipelines.stall[node]
        read = stall if pipelines.kind[node] in READERS else intersect(stall, reading)
        if pipelines.is_ahead(node) or pipelines.kind[node] in ASYNCHRONOUS:
            ahead = join(ahead, read)
        else:
            on_demand = join(on_demand, read)
        preprocessing = join(preprocessing, minus(stall, read))
    attributed = join(on_demand, ahead, preprocessing)
    unattributed = minus(signals.attribution.intervals[Cause.INPUT], attributed)
    return StallParts(on_demand, ahead, preprocessing, unattributed)
