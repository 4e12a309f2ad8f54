"""Keeps a finding and those that refine it from proposing different code for the same change."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import RankedFinding


def agreeing(findings: Sequence[RankedFinding]) -> tuple[RankedFinding, ...]:
    """Findings whose remedies agree with those of the findings that refine them.

    The refining finding knows more, so the general one drops what contradicts it, unless it would
    be left without a remedy.

    Args:
        findings: As `rank` returns them.
    """
    proposed: dict[str, dict[str, set[str]]] = {}
    for ranked in findings:
        if ranked.refines is not None:
            changes = proposed.setdefault(ranked.refines, {})
            for remedy in ranked.finding.remedies:
                changes.setdefault(remedy.subject, set()).add(remedy.snippet)
    return tuple(
        _without_contradictions(ranked, proposed.get(ranked.rule.id, {})) for ranked in findings
    )


def _without_contradictions(ranked: RankedFinding, proposed: dict[str, set[str]]) -> RankedFinding:
    """A finding without remedies for the proposed changes that have other code.

    Args:
        ranked: The general finding.
        proposed: For each change, the code that the refining findings propose.
    """
    remedies = ranked.finding.remedies
    kept = tuple(
        remedy
        for remedy in remedies
        if not remedy.subject or remedy.snippet in proposed.get(remedy.subject, {remedy.snippet})
    )
    if len(kept) in (0, len(remedies)):
        return ranked
    return replace(ranked, finding=replace(ranked.finding, remedies=kept))
