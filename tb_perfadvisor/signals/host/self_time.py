"""Self time: the time of an event without the events inside it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

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
    events = trace.events
    rows = trace.rows(*_NAMES_WORK)
    rows = rows[events.track[rows] == track]
    inside = overlap_ns(intervals, events.start_ns[rows], events.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    self_ns = np.zeros(len(events), dtype=np.int64)
    self_ns[rows] = inside
    # Skip runtime calls between an event and the event around it that names work.
    named = np.zeros(len(events), dtype=bool)
    named[rows] = True
    above = events.parent[rows]
    parent = np.where(above >= 0, nearest(events.parent, named)[above], -1)
    nested = parent >= 0
    np.subtract.at(self_ns, parent[nested], inside[nested])
    row_self_ns = self_ns[rows]
    names, inverse = unique_inverse(events.name[rows])
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
