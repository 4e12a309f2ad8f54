"""What a program would save without some of its waits for the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, total_ns, union
from tb_perfadvisor.whatif import Async, Remove, Simulation, simulation


def saving_without_waits(signals: Signals, chosen: NDArray[np.bool_]) -> Saving:
    """What the steps would save without some waits.

    High is what they save if no value that the host waits for is needed. Expected leaves the waits
    whose values the host may work on before its next launch, but for the idle time that they
    induce. Low is the idle time that waits without a value induce.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (n,).
    """
    waits = signals.synchronizations
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    values = awaited_values(signals)
    induced = _induced_idle(signals, chosen)
    low_ns = total_ns(_induced_idle(signals, chosen & ~values.is_copied))
    replay = simulation(signals)
    claims = _closable_idle(signals)
    if isinstance(replay, Simulation):
        most_ns = replay.saved_ns(Async(waits.row[chosen]))
        if most_ns <= total_ns(claims):
            is_free = chosen & ~values.may_be_used
            fix = (Async(waits.row[is_free]),) if is_free.any() else ()
            freed_ns = min(replay.saved_ns(*fix), most_ns) if fix else 0
            stalled_ns = total_ns(_induced_idle(signals, chosen & values.may_be_used))
            expected_ns = min(freed_ns + stalled_ns, most_ns)
            return Saving(
                min(low_ns, expected_ns),
                expected_ns,
                most_ns,
                claims,
                "simulated",
                fix,
                unproven_ns=expected_ns - freed_ns,
            )
    high_ns = total_ns(induced)
    if not signals.device.is_host_only:
        return Saving(low_ns, high_ns, high_ns, induced, "measured")
    inside_ns = total_ns(intersect(induced, _inside(signals, chosen)))
    # What the host does after the wait would share the cores with the work that it overlaps.
    expected_ns = inside_ns + (high_ns - inside_ns) // 2
    low_ns = min(low_ns, expected_ns)
    return Saving(low_ns, expected_ns, high_ns, induced, "measured", (Remove(induced),))


def most_saved_ns(signals: Signals) -> int:
    """An upper bound on what `saving_without_waits` expects, known without a replay."""
    return total_ns(_closable_idle(signals)) if len(signals.synchronizations) else 0


def _closable_idle(signals: Signals) -> Intervals:
    # Without the waits the host runs ahead, which may close any idle that it causes later.
    return signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)


def _inside(signals: Signals, chosen: NDArray[np.bool_]) -> Intervals:
    events, rows = signals.trace.events, signals.synchronizations.row[chosen]
    return union(events.start_ns[rows], events.end_ns[rows])


def _induced_idle(signals: Signals, chosen: NDArray[np.bool_]) -> Intervals:
    waits = signals.synchronizations
    start_ns = signals.trace.events.start_ns[waits.row[chosen]]
    return intersect(signals.host_idle, union(start_ns, waits.until_ns[chosen]))
