"""The savings that a report shows, from the rules' estimates."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.savings.contention import widen
from tb_perfadvisor.engine.savings.recording import recorded_host_code, without_recording
from tb_perfadvisor.engine.savings.simulated import Found, simulate
from tb_perfadvisor.engine.savings.wide_ranges import mark_wide_ranges
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Signals


def estimated(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Findings with their final savings.

    They are simulated where possible, do without the cost of recording, are wider on the CPU, and
    are heuristics if their range is too wide for anything else. An unknown saving is none: its
    finding informs.
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
                saving=without_recording(
                    finding.saving, recorded_host_code(original.saving, signals), signals
                ),
            ),
        )
        for (_, original), (rule, finding) in simulated
    ]
    return mark_wide_ranges(widen(recorded, signals))


def _without_unknown(finding: Finding) -> Finding:
    if finding.saving is None or not finding.saving.is_unknown:
        return finding
    return replace(finding, saving=None, severity=finding.severity or "low")
