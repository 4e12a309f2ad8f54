"""Which host threads take turns, so that a delay of one delays the others.

Autograd runs the backward pass on its own thread while the calling thread waits, and files do not
record that hand-over. Threads whose work does not overlap are assumed to hand over to one another:
together they are one line of host work.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, intersect, join, total_ns, union
from tb_perfadvisor.trace.tables import Int32

OVERLAP_SHARE = 0.05
"""Threads that hand over still overlap a little: one returns while the other continues."""

_ACTIVE = (
    EventKind.OPERATOR,
    EventKind.LAUNCH,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.RUNTIME,
    EventKind.INPUT_WAIT,
    EventKind.COMPILE,
)


def turn_taking(
    trace: Trace, first: int, candidates: list[int], start_ns: int, end_ns: int
) -> tuple[int, ...]:
    """Find the tracks that form one line of host work with a first track, which is included.

    Args:
        trace: The trace.
        first: Track of the thread that runs the steps.
        candidates: Other tracks, those with the most launches first.
        start_ns: Start of the window.
        end_ns: End of the window.
    """
    line = [first]
    busy = _activity(trace, first, start_ns, end_ns)
    for track in candidates:
        active = _activity(trace, track, start_ns, end_ns)
        overlap = total_ns(intersect(busy, active))
        if overlap <= OVERLAP_SHARE * min(total_ns(busy), total_ns(active)):
            line.append(track)
            busy = join(busy, active)
    return tuple(line)


def _activity(trace: Trace, track: int, start_ns: int, end_ns: int) -> Intervals:
    """When a thread runs leaf events. An outer event may be waiting for another thread."""
    rows = trace.rows(*_ACTIVE)
    rows = rows[trace.events.track[rows] == track]
    rows = rows[_is_leaf(trace, rows)]
    if len(rows) == 0:
        return EMPTY
    events = trace.events
    return clip(union(events.start_ns[rows], events.end_ns[rows]), start_ns, end_ns)


def _is_leaf(trace: Trace, rows: Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    holds = np.zeros(len(trace.events) + 1, dtype=np.bool_)
    holds[trace.events.parent[rows]] = True
    return np.asarray(~holds[rows])
