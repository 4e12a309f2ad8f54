"""What a program would save without some of its waits for the device."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.signals.host.closable_idle import closable_idle
from tb_perfadvisor.signals.host.wait_prices import Mask, wait_prices
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, total_ns, union
from tb_perfadvisor.whatif import Async, Remove, Simulation, simulation


def saving_without_waits(signals: Signals, chosen: Mask) -> Saving:
    """What the steps would save without some waits.

    High is what they save if no value that the host waits for is needed: by a replay without the
    waits, or else the idle time that they induce. Expected is what the waits cost one by one
    (`wait_prices`). Low is the idle time that waits without a value induce.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (n,).
    """
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    values = awaited_values(signals)
    induced = _induced_idle(signals, chosen)
    is_idle = ~values.is_copied & ~values.is_needed_at_once
    low_ns = total_ns(_induced_idle(signals, chosen & is_idle))
    if not signals.device.is_host_only:
        prices = wait_prices(signals, chosen)
        expected_ns, if_free_ns = int(prices.expected_ns.sum()), int(prices.if_free_ns.sum())
        claims, replayed_ns = closable_idle(signals), _replayed_ns(signals, chosen)
        most_ns = total_ns(induced) if replayed_ns is None else replayed_ns
        if replayed_ns is None and expected_ns > low_ns:
            # What else holds the host up is unknown, so the model may hold or not.
            expected_ns = (low_ns + expected_ns) // 2
        return Saving(
            min(low_ns, expected_ns),
            expected_ns,
            min(max(most_ns, if_free_ns), total_ns(claims)),
            claims,
            "modeled" if replayed_ns is None else "simulated",
            priced=prices.expected_from,
        )
    high_ns = total_ns(induced)
    inside_ns = total_ns(intersect(induced, _inside(signals, chosen)))
    # What the host does after the wait would share the cores with the work that it overlaps.
    expected_ns = inside_ns + (high_ns - inside_ns) // 2
    low_ns = min(low_ns, expected_ns)
    return Saving(low_ns, expected_ns, high_ns, induced, "measured", (Remove(induced),))


def _replayed_ns(signals: Signals, chosen: Mask) -> int | None:
    """What a replay without some waits saves; None if the profile cannot be replayed."""
    replay = simulation(signals)
    if not isinstance(replay, Simulation):
        return None
    saved_ns = replay.saved_ns(Async(signals.synchronizations.row[chosen]))
    return saved_ns if saved_ns <= total_ns(closable_idle(signals)) else None


def most_saved_ns(signals: Signals) -> int:
    """An upper bound on what `saving_without_waits` expects, known without a replay."""
    return total_ns(closable_idle(signals)) if len(signals.synchronizations) else 0


def _inside(signals: Signals, chosen: Mask) -> Intervals:
    events, rows = signals.trace.events, signals.synchronizations.row[chosen]
    return union(events.start_ns[rows], events.end_ns[rows])


def _induced_idle(signals: Signals, chosen: Mask) -> Intervals:
    waits = signals.synchronizations
    start_ns = signals.trace.events.start_ns[waits.row[chosen]]
    idle = minus(signals.host_idle, first_calls(signals).idle)
    return intersect(idle, union(start_ns, waits.until_ns[chosen]))
