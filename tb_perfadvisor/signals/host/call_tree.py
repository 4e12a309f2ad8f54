"""The host's calls as a tree: own time, lines, operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.operators import CallNodes, fold_calls, operator_self_ns
from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.host.loops import DISPATCH_NS, LONGEST_GAP_NS
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop, zeroing_loop
from tb_perfadvisor.signals.launch.delays import short_and_long_gaps, stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, contains, join, minus, overlap_ns, total_ns
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

_LIKE = 3.0
"""Operators of a loop whose calls are alike differ by less than this, forward and backward."""
_MARKS = (EventKind.STEP,)
"""Their names count up, so that below them each step would have a node of its own."""


class ThreadCalls(Struct, frozen=True):
    """The calls of a thread."""

    track: int
    nodes: CallNodes
    """Names are strings of the trace; examples are rows of its events."""


@memoized
def call_trees(signals: Signals) -> tuple[ThreadCalls, ...]:
    """The calls of each host thread: that of the steps first, then the busiest.

    Python functions, modules, operators, annotations and runtime calls all count as calls. Time is
    cut to the used window. A call that reaches beyond its caller by a rounded clock counts for no
    more than its caller has.
    """
    trace, window = signals.trace, signals.attribution
    events = trace.events
    is_host = trace.tracks.kind[events.track] == TrackKind.HOST_THREAD
    start_ns = np.maximum(events.start_ns, window.window_start_ns)
    end_ns = np.minimum(events.end_ns, window.window_end_ns)
    is_call = is_host & (end_ns > start_ns) & ~np.isin(events.kind, _MARKS)
    rows = np.flatnonzero(is_call)
    if not rows.size:
        return ()
    around = np.where(
        events.parent[rows] >= 0, nearest(events.parent, is_call)[events.parent[rows]], -1
    )
    place = np.full(len(events), -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    parent = np.where(around >= 0, place[around], -1)
    self_ns = end_ns[rows] - start_ns[rows]
    inside = np.bincount(
        parent[parent >= 0], weights=self_ns[parent >= 0], minlength=rows.size
    ).astype(np.int64)
    self_ns = np.maximum(self_ns - inside, 0)
    found = []
    for track, places in places_by_value(events.track[rows]):
        local = np.full(rows.size, -1, dtype=np.int64)
        local[places] = np.arange(places.size)
        above = np.where(parent[places] >= 0, local[parent[places]], -1)
        nodes, _ = fold_calls(above, events.name[rows[places]], self_ns[places])
        nodes = CallNodes(
            parent=nodes.parent,
            name=nodes.name,
            count=nodes.count,
            self_ns=nodes.self_ns,
            total_ns=nodes.total_ns,
            example=rows[places[nodes.example]],
        )
        found.append(ThreadCalls(track, nodes))

    def order(thread: ThreadCalls) -> tuple[bool, int]:
        return thread.track != signals.step_track, -int(thread.nodes.self_ns.sum())

    return tuple(sorted(found, key=order))


_NAMES_WORK = (
    EventKind.OPERATOR,
    EventKind.ANNOTATION,
    EventKind.PYTHON,
    EventKind.HOST_COLLECTIVE,
)


class SelfTime(Struct, frozen=True):
    """Innermost events of a thread during some intervals, by name, the costliest first."""

    names: tuple[str, ...]
    count: tuple[int, ...]
    self_ns: tuple[int, ...]
    """Time of the intervals that they cover without the events inside them."""
    rows: Int32
    row_self_ns: Int64


def self_time(trace: Trace, track: int, intervals: Intervals) -> SelfTime:
    """Self time of a thread's events during some intervals, as in a profile of a call stack."""
    # Skip runtime calls between an event and the event around it that names work.
    rows, row_self_ns = self_times(trace, track, _NAMES_WORK, intervals)
    names, inverse = unique_inverse(trace.events.name[rows])
    count = np.bincount(inverse, minlength=len(names))
    total = np.bincount(inverse, weights=row_self_ns, minlength=len(names)).astype(np.int64)
    order = [i for i in np.argsort(-total, kind="stable").tolist() if total[i] > 0]
    return SelfTime(
        names=tuple(trace.strings[names[i]] for i in order),
        count=tuple(int(count[i]) for i in order),
        self_ns=tuple(int(total[i]) for i in order),
        rows=rows,
        row_self_ns=row_self_ns,
    )


def self_times(
    trace: Trace, track: int, kinds: Sequence[EventKind], intervals: Intervals
) -> tuple[Int32, Int64]:
    """A thread's events of some kinds, and the time of each without that of those inside it."""
    events = trace.events
    rows = trace.rows(*kinds)
    rows = rows[events.track[rows] == track]
    inside = overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    self_ns = np.zeros(len(events), dtype=np.int64)
    self_ns[rows] = inside
    counted = np.zeros(len(events), dtype=bool)
    counted[rows] = True
    above = events.parent[rows]
    parent = np.where(above >= 0, nearest(events.parent, counted)[above], -1)
    np.subtract.at(self_ns, parent[parent >= 0], inside[parent >= 0])
    return rows, self_ns[rows]


_PYTHON = int(EventKind.PYTHON)


def source_line(signals: Signals, row: int) -> str | None:
    """The source line of an event: from its operator, its HLO, or the Python frames around it.

    A device event has the line of the call that launched it.
    """
    trace = signals.trace
    launch = int(trace.events.launched_by[row])
    host_row = launch if launch >= 0 else row
    slot = _slot(trace.operators.row, signals.launching_operator[host_row])
    if slot >= 0:
        frame = trace.text(int(trace.operators.frame[slot]))
        if frame:
            return frame
    slot = _slot(trace.hlo_events.row, row)
    if slot >= 0:
        line = trace.text(int(trace.hlo.source_line[trace.hlo_events.op[slot]]))
        return line or None
    return _user_frame(trace, host_row)


def place_of(signals: Signals, row: int) -> str:
    """The line, module or annotation of an operator, if any is known: `train.py:12 step`.

    A backward operator has the place of its forward operator.
    """
    forward = int(signals.origins.forward[row])
    row = forward if forward >= 0 else row
    return source_line(signals, row) or signals.origins.module_of(row) or _annotation(signals, row)


def _annotation(signals: Signals, row: int) -> str:
    """The innermost annotation around an event; empty if there is none."""
    events = signals.trace.events
    while row >= 0 and events.kind[row] != EventKind.ANNOTATION:
        row = int(events.parent[row])
    return signals.trace.name(row) if row >= 0 else ""


def _slot(rows: Int32, row: int | np.integer) -> int:
    """Index of a row among sorted rows; -1 if it is not there."""
    # With the dtype of `rows`; otherwise numpy converts all of them for each look-up.
    slot = int(np.searchsorted(rows, rows.dtype.type(row)))
    return slot if slot < len(rows) and rows[slot] == row else -1


def _user_frame(trace: Trace, row: int) -> str | None:
    """The innermost Python frame of user code around an event.

    Only the last two parts of its path are kept, so that no directory of the recording machine
    leaks.
    """
    parent, kind = trace.events.parent, trace.events.kind
    at = int(parent[row])
    while at >= 0:
        if kind[at] == _PYTHON:
            line = user_line(trace.name(at))
            if line is not None:
                return line
        at = int(parent[at])
    return None


_NOT_THE_STEP = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.COMPILE)
_XLA_NUMBER = regex(r"\.\d+$")


class HostOperators(Struct, frozen=True):
    """Executions of operators in the used steps; columns of shape (n,)."""

    rows: Int32
    self_ns: Int64
    """Without the operators inside."""
    name: Int32
    """Index into `names`."""
    names: tuple[str, ...]
    """Kinds of operators: `aten::mm`, `Conv2D`, `dot`."""


@memoized
def host_operators(signals: Signals) -> HostOperators:
    """The operators of the step, without those of the input pipeline; none with device events."""
    trace, window = signals.trace, signals.attribution
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    if signals.device.index is not None:
        rows = rows[:0]
    is_used = signals.steps.owner[rows] >= 0
    if trace.source.framework == "pytorch":
        is_used &= events.track[rows] == signals.step_track
    rows = rows[is_used]
    rows = rows[~has_ancestor(events.parent, rows, is_in(events.kind, _NOT_THE_STEP))]
    working = window.intervals[Cause.HOST_COMPUTE]
    rows = rows[overlap_ns(working, events.start_ns[rows], events.end_ns[rows]) > 0]
    kinds: dict[str, int] = {}
    by_name = {
        name: kinds.setdefault(operator_kind(trace.strings[name]), len(kinds))
        for name in distinct(events.name[rows]).tolist()
    }
    name_of = np.zeros(len(trace.strings), dtype=np.int32)
    name_of[list(by_name)] = list(by_name.values())
    return HostOperators(
        rows=rows,
        self_ns=operator_self_ns(trace, rows, signals.launching_operator),
        name=name_of[events.name[rows]],
        names=tuple(kinds),
    )


def operator_kind(name: str) -> str:
    """`Conv2D` of TensorFlow's `model/conv/Conv2D:Conv2D`, `dot` of XLA's `dot.3`."""
    if "::" in name:
        return name
    return _XLA_NUMBER.sub("", name.rpartition(":")[2] or name)


class Dispatch(Struct, frozen=True):
    """The forward and backward passes of the used steps."""

    spans: Intervals
    """When their operators run, with the short gaps between them."""
    calling_ns: int
    """The part of that time in which operators are called, and not yet compute."""
    gaps_ns: int
    """The short gaps between operators."""
    own_ns: Int64
    """The own time of each operator."""
    kind: Int32
    """Index into `kinds`, for each operator."""
    kinds: tuple[str, ...]

    def like(self, kind: str) -> int:
        """The time that they take if none computes longer than one of a kind usually does."""
        usual = self.own_ns[self.kind == self.kinds.index(kind)] if kind in self.kinds else None
        if usual is None or not usual.size:
            return total_ns(self.spans)
        most_ns = int(_LIKE * np.median(usual))
        return min(self.gaps_ns + int(np.minimum(self.own_ns, most_ns).sum()), total_ns(self.spans))


@memoized
def dispatch(signals: Signals) -> Dispatch:
    """What calling operators takes, without those of optimizers; nothing on a device."""
    operators = host_operators(signals)
    updating = join(optimizer_loop(signals).steps, zeroing_loop(signals).steps)
    longest_ns = stretched_ns(LONGEST_GAP_NS, signals.trace)
    gaps, _ = short_and_long_gaps(signals.attribution.idle, longest_ns)
    gaps = minus(gaps, updating)
    starts = signals.trace.events.start_ns[operators.rows]
    is_used = ~contains(updating, starts)
    own_ns = operators.self_ns[is_used]
    most_ns = stretched_ns(DISPATCH_NS, signals.trace)
    working = minus(signals.attribution.intervals[Cause.HOST_COMPUTE], updating)
    return Dispatch(
        spans=join(working, gaps),
        calling_ns=total_ns(gaps) + int(np.minimum(own_ns, most_ns).sum()),
        gaps_ns=total_ns(gaps),
        own_ns=own_ns,
        kind=operators.name[is_used],
        kinds=operators.names,
    )
