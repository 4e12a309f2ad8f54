"""What a program would save without some of its waits for the device."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.signals.host.wait_prices import Mask, wait_prices
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, total_ns, union
from tb_perfadvisor.whatif import Async, Remove, Simulation, simulation


def saving_without_waits(signals: Signals, chosen: Mask) -> Saving:
    """What the steps would save without some waits.

    High is what they save if no value that the host waits for is needed, by a replay without the
    waits. Expected is what the waits cost one by one (`wait_prices`). Low is the idle time that
    waits without a value induce.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (n,).
    """
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    values = awaited_values(signals)
    induced = _induced_idle(signals, chosen)
    low_ns = total_ns(_induced_idle(signals, chosen & ~values.is_copied))
    replay, claims = simulation(signals), _closable_idle(signals)
    if isinstance(replay, Simulation):
        replayed_ns = replay.saved_ns(Async(signals.synchronizations.row[chosen]))
        if replayed_ns <= total_ns(claims):
            prices = wait_prices(signals, chosen)
            expected_ns = int(prices.expected_ns.sum())
            return Saving(
                min(low_ns, expected_ns),
                expected_ns,
                max(replayed_ns, int(prices.if_free_ns.sum()), expected_ns),
                claims,
                "simulated",
                priced=prices.expected_from,
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


def _inside(signals: Signals, chosen: Mask) -> Intervals:
    events, rows = signals.trace.events, signals.synchronizations.row[chosen]
    return union(events.start_ns[rows], events.end_ns[rows])


def _induced_idle(signals: Signals, chosen: Mask) -> Intervals:
    waits = signals.synchronizations
    start_ns = signals.trace.events.start_ns[waits.row[chosen]]
    return intersect(signals.host_idle, union(start_ns, waits.until_ns[chosen]))
