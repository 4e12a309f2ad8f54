"""Which host threads take turns, so that a delay of one delays the others.

Autograd runs the backward pass on its own thread while the calling thread waits, and files do not
record that hand-over. Threads whose work does not overlap are assumed to hand over to one another:
together they are one line of host work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, clip, intersect, join, total_ns, union

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
    trace: Trace, tracks: Sequence[int], start_ns: int, end_ns: int
) -> tuple[tuple[int, ...], ...]:
    """Split tracks into lines of host work.

    The first track is that of the thread that runs the steps; then come those with the most
    launches.
    """
    active = _activity(trace, tracks, start_ns, end_ns)
    left = list(tracks)
    lines = []
    while left:
        line, others = [left[0]], []
        busy = active[left[0]]
        for track in left[1:]:
            overlap = total_ns(intersect(active[track], busy))
            if overlap <= OVERLAP_SHARE * min(total_ns(busy), total_ns(active[track])):
                line.append(track)
                busy = join(busy, active[track])
            else:
                others.append(track)
        lines.append(tuple(line))
        left = others
    return tuple(lines)


def _activity(
    trace: Trace, tracks: Sequence[int], start_ns: int, end_ns: int
) -> dict[int, Intervals]:
    """When each thread runs leaf events. An outer event may be waiting for another thread."""
    events, rows = trace.events, trace.rows(*_ACTIVE)
    rows = rows[is_in(events.track[rows], tracks)]
    holds = np.zeros(len(events) + 1, dtype=np.bool_)
    holds[events.parent[rows]] = True
    rows = rows[~holds[rows]]
    found = dict.fromkeys(tracks, EMPTY)
    for track, places in places_by_value(events.track[rows]):
        leaves = rows[places]
        busy = union(events.start_ns[leaves], events.end_ns[leaves])
        found[track] = clip(busy, start_ns, end_ns)
    return found
