"""What a program would save without some of its waits for the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, total_ns, union
from tb_perfadvisor.whatif import Async, Simulation, simulation


def saving_without_waits(signals: Signals, chosen: NDArray[np.bool_]) -> Saving:
    """What the steps would save without some waits.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (n,).
    """
    waits = signals.synchronizations
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    induced = _induced_idle(signals, chosen)
    replay = simulation(signals)
    claims = _closable_idle(signals)
    if isinstance(replay, Simulation):
        fix = Async(waits.row[chosen])
        saved_ns = replay.saved_ns(fix)
        if saved_ns <= total_ns(claims):
            low_ns = min(total_ns(induced), saved_ns)
            return Saving(low_ns, saved_ns, saved_ns, claims, "simulated", (fix,))
    inside_calls = intersect(induced, signals.attribution.intervals[Cause.SYNCHRONIZATION])
    return Saving(total_ns(inside_calls), total_ns(induced), total_ns(induced), induced, "measured")


def most_saved_ns(signals: Signals) -> int:
    """An upper bound on what `saving_without_waits` expects, known without a replay."""
    return total_ns(_closable_idle(signals)) if len(signals.synchronizations) else 0


def _closable_idle(signals: Signals) -> Intervals:
    # Without the waits the host runs ahead, which may close any idle that it causes later.
    return signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)


def _induced_idle(signals: Signals, chosen: NDArray[np.bool_]) -> Intervals:
    waits = signals.synchronizations
    start_ns = signals.trace.events.start_ns[waits.row[chosen]]
    return intersect(signals.host_idle, union(start_ns, waits.until_ns[chosen]))
