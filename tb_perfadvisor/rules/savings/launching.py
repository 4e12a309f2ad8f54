"""The change that replaces all launches of a step by one."""

from __future__ import annotations

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.host_states import input_waits, states_of
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, join, minus
from tb_perfadvisor.whatif import Remove

_LAUNCHING = (EventKind.LAUNCH, EventKind.RUNTIME, EventKind.OPERATOR)


def without_launching(signals: Signals, idle: Intervals, others: Intervals) -> Remove:
    """The steps without any host time for launching, whether the device waits for it or not.

    With a single launch for all kernels, a faster device gains as well.

    Args:
        signals: The worker's facts.
        idle: Idle time that launching causes.
        others: Gaps with other causes, left as they are.
    """
    window, step_track = signals.attribution, signals.step_track
    calls = signals.trace.rows(EventKind.LAUNCH)
    tracks = (step_track, *distinct(signals.trace.events.track[calls]).tolist())
    not_launching = join(
        window.intervals[Cause.BETWEEN_STEPS],
        input_waits(signals.trace, tracks),
        states_of(signals.trace, (EventKind.COMPILE,), tracks),
        others,
    )
    host = minus(states_of(signals.trace, _LAUNCHING, tracks), not_launching)
    return Remove(join(host, idle), is_launching=True)
