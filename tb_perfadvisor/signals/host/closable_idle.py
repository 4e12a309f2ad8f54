"""Idle time of the device that a host that is ahead would not cause."""

from __future__ import annotations

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.host.idle_owners import IdleOwner, idle_owners
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, join, minus


@memoized
def closable_idle(signals: Signals) -> Intervals:
    """Idle time that the host causes, or that work in the queue does, and that has no owner.

    A host that saves time runs ahead, which may close any of it later. What has an owner is left to
    the findings about that. Waits are no such owner: a host that is ahead waits less.
    """
    idle = signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)
    owned = idle_owners(signals)
    kinds = owned.keys() - {IdleOwner.SYNCHRONIZATION}
    return minus(idle, join(*(owned[kind] for kind in kinds)))
