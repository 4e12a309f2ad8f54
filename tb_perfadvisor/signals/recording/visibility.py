"""What a profile shows at all: what it does not show may still have happened."""

from __future__ import annotations

from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import Aspect, EventKind


def shows_work(signals: Signals) -> bool:
    """Whether the profile has events of the device, or operators of a program without one."""
    device = signals.device
    return not device.is_missing and (not device.is_host_only or shows_host_events(signals))


def shows_host_events(signals: Signals) -> bool:
    """Whether host operators, launches or annotations were recorded."""
    trace = signals.trace
    if trace.totals is not None:
        return Aspect.HOST in trace.totals.shows
    kinds = (EventKind.OPERATOR, EventKind.LAUNCH, EventKind.ANNOTATION, EventKind.STEP)
    return len(trace.rows(*kinds)) > 0


def shows_input(signals: Signals) -> bool:
    """Whether the profile shows any fetching; without it, waiting for input is unknown."""
    trace = signals.trace
    if not shows_work(signals):
        return False
    if trace.totals is not None:
        return Aspect.INPUT in trace.totals.shows
    kinds = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.INFEED_WAIT)
    return len(trace.rows(*kinds)) > 0


def shows_communication(signals: Signals) -> bool:
    """Whether communication is known: recorded, or impossible with one rank."""
    trace = signals.trace
    if not shows_work(signals):
        return False
    if trace.totals is not None:
        return Aspect.COMMUNICATION in trace.totals.shows
    ranks = trace.source.world_size or len(signals.run.traces)
    return ranks <= 1 or len(trace.collectives.row) > 0


def shows_copies(signals: Signals) -> bool:
    """Whether the profile would show copies if there were any."""
    totals = signals.trace.totals
    return totals is None or Aspect.COPIES in totals.shows
