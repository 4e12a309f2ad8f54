"""Long stretches in which the host launches nothing, told from launching that is merely slow."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.attribution import Idle
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

LONGEST_LAUNCH_GAP_NS = 2_000_000
"""An eager operator costs the host 5 to 20 microseconds, and the longest chains of views and
checks between two launches some hundreds: two milliseconds without one are something else."""

_NAMES_WORK = (
    EventKind.OPERATOR,
    EventKind.ANNOTATION,
    EventKind.PYTHON,
    EventKind.HOST_COLLECTIVE,
)


def gaps_of(idle: Idle, longest_ns: float) -> tuple[Intervals, Intervals]:
    """Gaps that the host caused: those up to a length, and the longer ones."""
    length = idle.end_ns - idle.start_ns
    short = ~idle.is_queued & (length <= longest_ns)
    long = ~idle.is_queued & (length > longest_ns)
    return (
        union(idle.start_ns[short], idle.end_ns[short]),
        union(idle.start_ns[long], idle.end_ns[long]),
    )


class OwnTime(Struct, frozen=True):
    """Innermost events of a thread during some intervals, by name, the costliest first."""

    names: tuple[str, ...]
    count: tuple[int, ...]
    own_ns: tuple[int, ...]
    """What of the intervals they cover, and none of what they enclose."""
    rows: Int32
    row_own_ns: Int64


def own_time(trace: Trace, track: int, intervals: Intervals) -> OwnTime:
    """What a thread was innermost in: of a stack of frames the one that took the time."""
    events = trace.events
    rows = trace.rows(*_NAMES_WORK)
    rows = rows[events.track[rows] == track]
    inside = overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    own = np.zeros(len(events), dtype=np.int64)
    own[rows] = inside
    # Between an event and the next one that names work there may be runtime calls: skip them.
    named = np.zeros(len(events), dtype=bool)
    named[rows] = True
    parent = events.parent[rows]
    while (passing := (parent >= 0) & ~named[parent]).any():
        parent = np.where(passing, events.parent[parent], parent)
    nested = parent >= 0
    np.subtract.at(own, parent[nested], inside[nested])
    row_own = own[rows]
    names, inverse = unique_inverse(events.name[rows])
    count = np.bincount(inverse, minlength=len(names))
    total = np.bincount(inverse, weights=row_own, minlength=len(names)).astype(np.int64)
    order = [i for i in np.argsort(-total, kind="stable").tolist() if total[i] > 0]
    return OwnTime(
        names=tuple(trace.strings[names[i]] for i in order),
        count=tuple(int(count[i]) for i in order),
        own_ns=tuple(int(total[i]) for i in order),
        rows=rows,
        row_own_ns=row_own,
    )
