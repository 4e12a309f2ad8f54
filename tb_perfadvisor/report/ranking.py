"""Ranks findings by what they save, and never counts the same time twice.

Each finding's marginal saving is what it adds to those ranked above it: its saving times the
share of its claimed time that none of them has claimed. The marginal savings add up to the
combined saving by construction. A finding that refines another is nested under it and adds
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tb_perfadvisor.rules.base import Finding, Rule, Saving, Severity
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, total_ns

HIGH_SHARE = 0.10
MEDIUM_SHARE = 0.03

_CONFIDENCE = {"measured": 0, "simulated": 1, "modelled": 2, "heuristic": 3}
_SEVERITY = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding in its place. Totals over the used window."""

    rule: Rule
    finding: Finding
    severity: Severity
    marginal_ns: int
    refines: str | None
    """The finding that it is nested under; None when that one was not found."""


@dataclass(frozen=True, slots=True)
class Combined:
    """All findings together: totals over the used window."""

    low_ns: int
    expected_ns: int
    high_ns: int


def severity_of(saving: Saving, window_ns: int) -> Severity:
    """Severity by the expected share of the step."""
    share = saving.expected_ns / window_ns if window_ns else 0.0
    if share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"


def rank(
    found: Sequence[tuple[Rule, Finding]], window_ns: int
) -> tuple[tuple[Ranked, ...], Combined | None]:
    """Put findings in order and combine their savings.

    Args:
        found: Every finding with its rule.
        window_ns: Length of the used window.

    Returns:
        The findings, best first, each refining one right after what it refines; and their
        combined saving, None when none has a saving.
    """
    found_ids = {rule.id for rule, _ in found}
    general = [(r, f) for r, f in found if r.refines is None or r.refines not in found_ids]
    ranked: list[Ranked] = []
    nested: set[str] = set()
    claimed: Intervals = EMPTY
    low = expected = high = 0
    for rule, finding in sorted(general, key=_order):
        saving = finding.saving
        marginal = 0
        if saving is not None:
            fresh, whole = total_ns(minus(saving.claims, claimed)), total_ns(saving.claims)
            # Integer arithmetic, rounded down: what is claimed twice is never saved twice.
            marginal = saving.expected_ns * fresh // whole if whole else 0
            low += saving.low_ns * fresh // whole if whole else 0
            high += saving.high_ns * fresh // whole if whole else 0
            expected += marginal
            claimed = join(claimed, saving.claims)
        ranked.append(Ranked(rule, finding, _rate(finding, window_ns), marginal, None))
        # A rule may find several things: what refines it stands once, under the best of them.
        refining = [(r, f) for r, f in found if r.refines == rule.id and rule.id not in nested]
        nested.add(rule.id)
        ranked.extend(
            Ranked(r, f, _rate(f, window_ns), 0, rule.id) for r, f in sorted(refining, key=_order)
        )
    has_saving = any(finding.saving is not None for _, finding in found)
    return tuple(ranked), Combined(low, expected, high) if has_saving else None


def _order(entry: tuple[Rule, Finding]) -> tuple[int, int, int, str]:
    rule, finding = entry
    if finding.saving is None:
        return 1, _SEVERITY[finding.severity or "low"], 0, rule.id
    return 0, -finding.saving.expected_ns, _CONFIDENCE[finding.saving.basis], rule.id


def _rate(finding: Finding, window_ns: int) -> Severity:
    if finding.saving is not None:
        return severity_of(finding.saving, window_ns)
    return finding.severity or "low"
