"""Subtracts the cost of recording from savings.

A change that removes host code also removes the recording of that code, which takes time only
while a profiler runs. So the estimated cost of recording is subtracted from the expected saving,
once, for all rules. A replay may leave it out already.
"""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns
from tb_perfadvisor.whatif import Remove, Simulation, simulation


def recorded_host_code(saving: Saving, signals: Signals) -> Intervals:
    """The idle time of a rule's saving that comes from host code which the change removes.

    Args:
        saving: As the rule estimates it.
        signals: The worker's facts.
    """
    if signals.trace.totals is not None or not any(isinstance(fix, Remove) for fix in saving.fix):
        return saving.claims[:0]
    return intersect(saving.claims, signals.attribution.of(*HOST_CAUSED, Cause.BETWEEN_STEPS))


def without_recording(saving: Saving, host_code: Intervals, signals: Signals) -> Saving:
    """Subtract the cost of recording.

    Args:
        saving: Simulated if possible.
        host_code: What `recorded_host_code` found for the rule's saving.
        signals: The worker's facts.
    """
    cost_ns = profiler_overhead(signals).within_ns(host_code)
    steps = simulation(signals) if cost_ns and saving.fix else None
    if isinstance(steps, Simulation) and steps.leaves_out_pauses(*saving.fix):
        cost_ns = max(cost_ns - total_ns(intersect(steps.pauses, host_code)), 0)
    if cost_ns == 0:
        return saving
    expected_ns = max(saving.expected_ns - cost_ns, 0)
    return replace(
        saving,
        low_ns=min(saving.low_ns, expected_ns),
        expected_ns=expected_ns,
        unproven_ns=min(saving.unproven_ns, expected_ns),
        recording_ns=cost_ns,
    )
