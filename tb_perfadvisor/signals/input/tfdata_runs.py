"""Runs of tf.data's user functions: which iterator they belong to, and when they execute."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.input.tfdata_nodes import Nodes, enclosing
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32, Int64


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
    names = events.name[row]
    starts = [
        name
        for name in distinct(names).tolist()
        if trace.strings[name].startswith("InstantiatedCapturedFunction::")
    ]
    executes = [
        name for name in distinct(names).tolist() if trace.strings[name].endswith("::Process")
    ]
    is_start = is_in(names, starts)
    owner = _owners(trace, row[is_start], nodes, node_of_event)
    numbers, first = np.unique(run[is_start], return_index=True)
    is_executed = is_in(names, executes) & is_in(run, numbers)
    is_executed &= (events.end_ns[row] > start_ns) & (events.start_ns[row] < end_ns)
    executed, executed_run = row[is_executed], run[is_executed]
    end = _ends(trace, executed, executed_run, row, run, names)
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


def _ends(
    trace: Trace, executed: Int32, executed_run: Int64, row: Int32, run: Int64, names: Int32
) -> Int64:
    """When executions end: at the callback of their run, after which an executor may go on."""
    events = trace.events
    done = np.flatnonzero(
        is_in(names, [n for n in distinct(names).tolist() if "DoneCallback" in trace.strings[n]])
    )
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
