"""Idle time of the device that a host that is ahead would not cause."""

from __future__ import annotations

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, minus


@memoized
def closable_idle(signals: Signals) -> Intervals:
    """Idle time that the host causes, or that work in the queue does, except for first calls.

    A host that saves time runs ahead, which may close any of it later.
    """
    idle = signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)
    return minus(idle, first_calls(signals).idle)
