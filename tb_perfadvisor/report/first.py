"""Which finding to name first, where there is room for one."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.report.model import FindingInfo

_NEARLY = 0.8
"""A more specific finding speaks for a general one if it would save nearly as much."""


def first_change(findings: Sequence[FindingInfo]) -> int | None:
    """Find the change to begin with: of what ranks first, the most specific that stands for it.

    Args:
        findings: Of a report, as they are ranked.

    Returns:
        Its place; None where there is no finding.
    """
    if not findings:
        return None
    first = findings[0]
    if first.saving is not None:
        for place, finding in enumerate(findings):
            if finding.refines != first.rule_id or finding.saving is None:
                continue
            if finding.saving.expected_ns >= _NEARLY * first.saving.expected_ns:
                return place
    return 0


def first_line(findings: Sequence[FindingInfo]) -> tuple[str, str] | None:
    """The change to begin with, and where it stands: `finding 2`.

    Args:
        findings: Of a report, as they are ranked.

    Returns:
        Both in words; None where there is nothing to choose from.
    """
    place = first_change(findings)
    if place is None or len(findings) == 1:
        return None
    return findings[place].title, f"finding {place + 1}"
