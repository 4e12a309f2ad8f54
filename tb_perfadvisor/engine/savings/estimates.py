"""The savings that a report shows, from the rules' estimates."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.savings.contention import widen
from tb_perfadvisor.engine.savings.simulated import Found, simulate
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns
from tb_perfadvisor.whatif import Remove, Simulation, simulation

_WIDEST = 4
"""The width of a range in terms of the expected saving, above which it is a heuristic."""


def estimated(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Findings with their final savings.

    They are simulated where possible, do without the cost of recording, are wider on the CPU, and
    are heuristics if their range is too wide for anything else. A saving without a price is
    none: its finding keeps the bounds.
    """
    found = [(rule, _without_unknown(finding)) for rule, finding in found]
    simulated = zip(found, simulate(found, signals), strict=True)
    recorded = [
        (rule, finding)
        if finding.saving is None or original.saving is None
        else (
            rule,
            replace(
                finding,
                saving=_without_recording(
                    finding.saving, _recorded_host_code(original.saving, signals), signals
                ),
            ),
        )
        for (_, original), (rule, finding) in simulated
    ]
    return mark_wide_ranges(widen(recorded, signals))


def _without_unknown(finding: Finding) -> Finding:
    """A finding whose saving has no price keeps its bounds."""
    if finding.saving is None or not finding.saving.has_no_price:
        return finding
    return replace(finding, saving=None, bounds=replace(finding.saving, fix=()))


def _recorded_host_code(saving: Saving, signals: Signals) -> Intervals:
    """The idle time of a rule's saving that comes from host code which the change removes.

    Args:
        saving: As the rule estimates it.
        signals: The worker's facts.
    """
    if signals.trace.totals is not None or not any(isinstance(fix, Remove) for fix in saving.fix):
        return saving.claims[:0]
    return intersect(saving.claims, signals.attribution.of(*HOST_CAUSED, Cause.BETWEEN_STEPS))


def _without_recording(saving: Saving, host_code: Intervals, signals: Signals) -> Saving:
    """Subtract the cost of recording.

    A change that removes host code also removes the recording of that code, which takes time only
    while a profiler runs. A replay may leave it out already.

    Args:
        saving: Simulated if possible.
        host_code: What `_recorded_host_code` found for the rule's saving.
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


def mark_wide_ranges(found: Sequence[Found]) -> list[Found]:
    """Call the basis of each saving a heuristic if its range is too wide for anything else.

    Of a saving of 20 ms between 0 and 144 ms, the profile tells the direction and the limit, but
    not the amount: something that decides it is not recorded, such as whether the program needs a
    value that it copies. Cutting the range would leave the truth outside. So it stays.
    """
    return [
        (rule, replace(finding, saving=replace(finding.saving, basis="heuristic")))
        if finding.saving is not None and _is_wide(finding.saving)
        else (rule, finding)
        for rule, finding in found
    ]


def _is_wide(saving: Saving) -> bool:
    """Whether a range is wider than four times the expected saving."""
    return saving.high_ns - saving.low_ns > _WIDEST * saving.expected_ns
