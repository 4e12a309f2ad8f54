"""The busiest host thread, and what a host thread did during some intervals."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value, row_mask
from tb_perfadvisor.trace.intervals import (
    Intervals,
    contains,
    intersect,
    join,
    minus,
    overlap_ns,
)
from tb_perfadvisor.trace.tables import Int32

_DESCRIPTIVE_KINDS = (
    EventKind.OPERATOR,
    EventKind.ANNOTATION,
    EventKind.PYTHON,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.COMPILE,
    EventKind.HOST_COLLECTIVE,
)


class HostActivity(Struct, frozen=True):
    """Outermost events that began during the intervals; the columns by name are costliest first."""

    rows: Int32
    """All of them, in order of start."""
    names: tuple[str, ...]
    count: tuple[int, ...]
    inside_ns: tuple[int, ...]
    """Time of the intervals that the events of each name cover."""
    covered: Intervals
    """The parts of the intervals that any event covers."""


def host_activity(trace: Trace, track: int, intervals: Intervals) -> HostActivity:
    """What one host thread did during the intervals.

    An event that was running before an interval began says nothing about the interval, so it does
    not count. Events inside a counted event are part of it.
    """
    events = trace.events
    rows = trace.rows(*_DESCRIPTIVE_KINDS)
    rows = rows[events.track[rows] == track]
    rows = rows[contains(intervals, events.start_ns[rows])]
    began_inside = np.zeros(len(events), dtype=bool)
    began_inside[rows] = True
    parent = events.parent[rows]
    rows = rows[~((parent >= 0) & began_inside[parent])]
    inside = overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
    names, inverse, count = np.unique(events.name[rows], return_inverse=True, return_counts=True)
    total = np.bincount(inverse, weights=inside, minlength=len(names)).astype(np.int64)
    order = np.argsort(-total, kind="stable").tolist()
    return HostActivity(
        rows=rows,
        names=tuple(trace.strings[names[i]] for i in order),
        count=tuple(int(count[i]) for i in order),
        inside_ns=tuple(int(total[i]) for i in order),
        covered=intersect(intervals, events.spans(rows)),
    )


def busiest_host_track(trace: Trace) -> int:
    """The host thread with the most launch time, else operator time; -1 without host events."""
    for kinds in (
        (EventKind.LAUNCH,),
        (EventKind.OPERATOR,),
        (EventKind.ANNOTATION,),
        (EventKind.PYTHON,),
        (EventKind.COMPILE,),
    ):
        rows = trace.rows(*kinds)
        rows = rows[trace.tracks.kind[trace.events.track[rows]] == TrackKind.HOST_THREAD]
        if len(rows):
            top = rows[trace.events.parent[rows] < 0] if kinds[0] != EventKind.LAUNCH else rows
            top = top if len(top) else rows
            weight = trace.events.duration_ns[top].astype(np.float64) + 1.0
            return int(np.argmax(np.bincount(trace.events.track[top], weights=weight)))
    return -1


def host_operations(trace: Trace) -> Int32:
    """Operations of XLA that the CPU executes, in order of start; loops and calls aside."""
    events = trace.events
    rows: Int32 = distinct(trace.hlo_events.row)
    parents = events.parent[rows]
    return rows[~row_mask(len(events), parents[parents >= 0])[rows]]


def host_work(trace: Trace, step_track: int) -> Intervals:
    """The work of a CPU-only capture.

    In PyTorch, the operators of the step thread. In TensorFlow and JAX, those of the executor on
    every thread. Operators inside the input pipeline are input, not work. Operators that
    torch.compile calls while tracing compute nothing.
    """
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    if trace.source.framework == "pytorch":
        rows = rows[events.track[rows] == step_track]
        feeding = trace.rows(EventKind.INPUT_WAIT, EventKind.COMPILE)
        feeding = feeding[events.track[feeding] == step_track]
        waits = events.spans(feeding)
        return minus(events.spans(rows), waits)
    input_rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INPUT_WORK)
    input_by_track = {
        track: input_rows[places] for track, places in places_by_value(events.track[input_rows])
    }
    busy = []
    for track, places in places_by_value(events.track[rows]):
        own, feeding = rows[places], input_by_track.get(track, input_rows[:0])
        feeding_time = events.spans(feeding)
        busy.append(minus(events.spans(own), feeding_time))
    return join(*busy)
