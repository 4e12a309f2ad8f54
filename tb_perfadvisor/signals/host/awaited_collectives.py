"""Idle time in which a launched collective has not begun."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, union


@memoized
def awaited_collectives(signals: Signals) -> Intervals:
    """Queued idle time that ends with a collective: it was launched, and the device is free for it.

    A collective waits for the stream that made its input, or for earlier collectives. The idle time
    is one of communication as much as the time in which the collective waits for its peers.
    """
    idle, events = signals.attribution.idle, signals.trace.events
    gaps = np.flatnonzero(idle.next_row >= 0)
    gaps = gaps[events.kind[idle.next_row[gaps]] == EventKind.COLLECTIVE]
    if not len(gaps):
        return EMPTY
    waiting = union(idle.queued_from_ns[gaps], idle.end_ns[gaps])
    return intersect(signals.attribution.intervals[Cause.QUEUED], waiting)
