"""Runs of tf.data's user functions: whose they are, and when they are executed."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.input.tfdata_nodes import Nodes, enclosing
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32, Int64


class Functions(Struct, frozen=True):
    """What the user functions did in a stretch; columns are (nodes,)."""

    count: Int64
    total_ns: Int64
    work: tuple[Intervals, ...]
    start_ns: Int64
    """When a thread began to execute a run; sorted, shape (executions,)."""
    end_ns: Int64
    """When one was done with it; sorted by itself, shape (executions,)."""


def functions_of(
    trace: Trace, nodes: Nodes, of_event: Int32, start_ns: int, end_ns: int
) -> Functions:
    """What the user functions of each node took, wherever they were executed."""
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
    owner = _owners(trace, row[is_start], nodes, of_event)
    numbers, first = np.unique(run[is_start], return_index=True)
    own = is_in(names, executes) & is_in(run, numbers)
    own &= (events.end_ns[row] > start_ns) & (events.start_ns[row] < end_ns)
    executed = row[own]
    end = _ends(trace, executed, run[own], row, run, names)
    node = owner[first][np.searchsorted(numbers, run[own])] if numbers.size else executed * 0 - 1
    begun = row[is_start]
    inside = (events.start_ns[begun] >= start_ns) & (events.start_ns[begun] < end_ns) & (owner >= 0)
    has_owner = node >= 0
    # What is executed beyond the window's ends is cut off there.
    took = np.minimum(end, end_ns) - np.maximum(events.start_ns[executed], start_ns)
    return Functions(
        count=np.bincount(owner[inside], minlength=size).astype(np.int64),
        total_ns=np.rint(
            np.bincount(node[has_owner], weights=took[has_owner], minlength=size)
        ).astype(np.int64),
        work=tuple(
            union(events.start_ns[executed[node == one]], end[node == one]) for one in range(size)
        ),
        start_ns=np.sort(events.start_ns[executed[has_owner]]),
        end_ns=np.sort(end[has_owner]),
    )


def _ends(
    trace: Trace, executed: Int32, of_run: Int64, row: Int32, run: Int64, names: Int32
) -> Int64:
    """When the executor's work on a run ends: what is told that it is done may go on for long."""
    events = trace.events
    done = np.flatnonzero(
        is_in(names, [n for n in distinct(names).tolist() if "DoneCallback" in trace.strings[n]])
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


def _owners(trace: Trace, rows: Int32, nodes: Nodes, of_event: Int32) -> Int32:
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
    for track in distinct(trace.events.track[rows[free]]).tolist():
        fed = nodes.parent[of_event[outermost[trace.events.track[outermost] == track]]]
        fed = fed[fed >= 0]
        if fed.size:
            mine = free[trace.events.track[rows[free]] == track]
            owner[mine] = np.bincount(fed).argmax()
    return owner
