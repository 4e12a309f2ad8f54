"""Launched work that an idle device starts late, every time.

An idle GPU starts a kernel 2 to 10 microseconds after its launch. Where it takes far longer each
time, nothing blocks the stream: the machine passes launches on late, as virtual machines, Windows
and remote GPUs do. That delay is hidden while work is queued, and shows each time that the host has
let the queue run empty. So it is a price of waiting for the device.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, union

MIN_START_NS = 50_000
"""Five times what an idle GPU takes at most."""
MIN_STARTS = 8
"""Fewer late starts may have reasons of their own."""


@memoized
def slow_starts(signals: Signals) -> Intervals:
    """Idle time while launched work is on its way to the device, and the host waits for it.

    Empty if the usual launch reaches an idle device at once.
    """
    events, gaps = signals.trace.events, signals.attribution.idle
    launched = np.flatnonzero((gaps.launch_row >= 0) & (gaps.next_row >= 0))
    launch, work = gaps.launch_row[launched], gaps.next_row[launched]
    into_idle = (events.start_ns[launch] >= gaps.start_ns[launched]) & (
        events.kind[work] != EventKind.COLLECTIVE
    )
    delay_ns = gaps.end_ns[launched] - events.end_ns[launch]
    if int(into_idle.sum()) < MIN_STARTS or np.median(delay_ns[into_idle]) < MIN_START_NS:
        return EMPTY
    waits = signals.synchronizations.row
    waiting = union(events.start_ns[waits], events.end_ns[waits])
    return intersect(signals.attribution.intervals[Cause.QUEUED], waiting)
