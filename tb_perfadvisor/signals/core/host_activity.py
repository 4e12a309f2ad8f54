"""The busiest host thread, and what a host thread did during some intervals."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.intervals import Intervals, contains, intersect, overlap_ns, union
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
        covered=intersect(intervals, union(events.start_ns[rows], events.end_ns[rows])),
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
