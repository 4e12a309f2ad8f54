"""Ranks findings by what they save, and never counts the same time twice.

Each finding's marginal saving is what it adds to those ranked above it. Where the steps were
re-timed with its fix, it is what re-timing with all fixes so far saves beyond those above;
otherwise its saving times the share of its claimed time that none above has claimed. The marginal
savings add up to the combined saving by construction. A finding that refines another is nested
under it and adds nothing.

Severity follows the share of the step. Where the steps differ so much that their standard error
reaches below a degree's limit, it is one degree lower: what a step or two show may not come again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving, Severity
from tb_perfadvisor.signals.core.steps import Steps
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, overlap_ns, total_ns
from tb_perfadvisor.whatif import Fix

HIGH_SHARE = 0.10
MEDIUM_SHARE = 0.03
FEWEST_STEPS = 3
"""Of two steps nobody can say which is the usual one."""
SPEAKS_FOR_SHARE = 0.8
"""A more specific finding stands for a general one if it would save nearly as much."""
_ONE_LOWER: dict[Severity, Severity] = {"high": "medium", "medium": "low", "low": "low"}

_CONFIDENCE = {"measured": 0, "simulated": 1, "modeled": 2, "heuristic": 3}
_SEVERITY = {"high": 0, "medium": 1, "low": 2}


class RankedFinding(Struct, frozen=True):
    """A finding in its place. Totals over the used window."""

    rule: Rule
    finding: Finding
    severity: Severity
    marginal_ns: int
    refines: str | None
    """Id of the rule whose finding it is nested under; None when that rule found nothing."""

    @property
    def claims(self) -> Intervals:
        """The time that its saving is taken from; empty without a saving."""
        return EMPTY if self.finding.saving is None else self.finding.saving.claims


class CombinedSaving(Struct, frozen=True):
    """All findings together: totals over the used window."""

    low_ns: int
    expected_ns: int
    high_ns: int


def severity_of(saving: Saving, window_ns: int, steps: Steps | None = None) -> Severity:
    """Severity by the expected share of the step, at most one degree lower where steps differ.

    Args:
        saving: What is saved of the window.
        window_ns: The window's length.
        steps: Those of the window, whose differences tell how sure the share is.
    """
    usual = _by_share(saving.expected_ns, window_ns)
    if steps is None or len(steps) < FEWEST_STEPS:
        return usual
    sure = _by_share(saving.expected_ns - _standard_error_ns(saving, steps), window_ns)
    return usual if sure == usual else _ONE_LOWER[usual]


def _by_share(saved_ns: float, window_ns: int) -> Severity:
    share = saved_ns / window_ns if window_ns else 0.0
    if share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"


def _standard_error_ns(saving: Saving, steps: Steps) -> float:
    """How far what is saved of the steps recorded may be from what as many others would show."""
    claimed = overlap_ns(saving.claims, steps.start_ns, steps.end_ns)
    total_ns = int(claimed.sum())
    if total_ns == 0:
        return 0.0
    error_ns = float(claimed.std(ddof=1)) * math.sqrt(len(steps))
    return error_ns * saving.expected_ns / total_ns


def rank(
    found: Sequence[tuple[Rule, Finding]],
    window_ns: int,
    saved_ns: Callable[[Sequence[Fix]], int] | None = None,
    steps: Steps | None = None,
    most_ns: Callable[[Intervals], int] | None = None,
) -> tuple[tuple[RankedFinding, ...], CombinedSaving | None]:
    """Put findings in order and combine their savings.

    Args:
        found: Every finding with its rule.
        window_ns: Length of the used window.
        saved_ns: What fixes save together, for findings whose fix has been re-timed.
        steps: Those of the window.
        most_ns: What can be saved of a window at the most by who claims some of its time; all of
            it without.

    Returns:
        The findings, best first, each refining one right after what it refines; and their
        combined saving, None when none has a saving.
    """
    found_ids = {rule.id for rule, _ in found}
    general = [(r, f) for r, f in found if r.refines is None or r.refines not in found_ids]
    ranked: list[RankedFinding] = []
    nested: set[str] = set()
    union = _Union(window_ns, saved_ns, most_ns or (lambda claims: window_ns))
    for rule, finding in sorted(general, key=_order):
        marginal = 0 if finding.saving is None else union.add(finding.saving)
        ranked.append(
            RankedFinding(rule, finding, _rate(finding, window_ns, steps), marginal, None)
        )
        # A rule may find several things: what refines it stands once, under the best of them.
        refining = [(r, f) for r, f in found if r.refines == rule.id and rule.id not in nested]
        nested.add(rule.id)
        ranked.extend(
            RankedFinding(r, f, _rate(f, window_ns, steps), 0, rule.id)
            for r, f in sorted(refining, key=_order)
        )
    has_saving = any(finding.saving is not None for _, finding in found)
    return tuple(ranked), union.combined if has_saving else None


def first_finding(findings: Sequence[RankedFinding]) -> int | None:
    """Find the change to begin with: the top-ranked finding, or the best one that refines it.

    The finding that refines it is chosen if it saves nearly as much, because its advice is more
    specific.

    Args:
        findings: As `rank` returns them.

    Returns:
        An index; None when there is no finding.
    """
    if not findings:
        return None
    top = findings[0].finding.saving
    if top is not None:
        for index, ranked in enumerate(findings):
            saving = ranked.finding.saving
            if ranked.refines != findings[0].rule.id or saving is None:
                continue
            if saving.expected_ns >= SPEAKS_FOR_SHARE * top.expected_ns:
                return index
    return 0


class _Union:
    """Savings added one after the other, no time twice."""

    def __init__(
        self,
        window_ns: int,
        saved_ns: Callable[[Sequence[Fix]], int] | None,
        most_ns: Callable[[Intervals], int],
    ) -> None:
        self._window_ns, self._saved_ns, self._most_ns = window_ns, saved_ns, most_ns
        self._claimed: Intervals = EMPTY
        self._not_simulated: Intervals = EMPTY
        self._fixes: list[Fix] = []
        self._by_fixes = 0
        self._low = self._expected = self._high = self._beside = 0

    @property
    def combined(self) -> CombinedSaving:
        # The rest of the step runs faster once, however many changes leave it more of its cores.
        high_ns = min(self._high + self._beside, self._window_ns)
        return CombinedSaving(self._low, self._expected, high_ns)

    def add(self, saving: Saving) -> int:
        """Add one; returns what it adds to the expected."""
        if saving.fix and self._saved_ns is not None:
            marginal = self._add_simulated(saving, self._saved_ns)
        else:
            fresh, whole = _fresh(saving, self._claimed)
            # Integer arithmetic, rounded down: what is claimed twice is never saved twice.
            marginal = saving.expected_ns * fresh // whole
            self._low += saving.low_ns * fresh // whole
            self._high += (saving.high_ns - saving.outside_claims_ns) * fresh // whole
            self._beside = max(self._beside, saving.outside_claims_ns)
            self._not_simulated = join(self._not_simulated, saving.claims)
        self._claimed = join(self._claimed, saving.claims)
        marginal = min(marginal, max(self._most_ns(self._claimed) - self._expected, 0))
        self._expected += marginal
        self._low = min(self._low, self._expected)
        self._high = min(self._high, self._window_ns)
        return marginal

    def _add_simulated(self, saving: Saving, saved_ns: Callable[[Sequence[Fix]], int]) -> int:
        self._fixes += saving.fix
        before = self._by_fixes
        self._by_fixes = max(saved_ns(self._fixes), before)
        # Among themselves the simulation knows what they add; of the others' time they get none.
        fresh, whole = _fresh(saving, self._not_simulated)
        marginal = min(self._by_fixes - before, whole) * fresh // whole
        unclaimed, _ = _fresh(saving, self._claimed)
        marginal += saving.unproven_ns * unclaimed // whole
        marginal = min(marginal, self._window_ns - self._expected)
        self._low += min(saving.low_ns * fresh // whole, marginal)
        self._high += max(saving.high_ns * fresh // whole, marginal)
        return marginal


def _fresh(saving: Saving, claimed: Intervals) -> tuple[int, int]:
    """How much of what a saving claims is not claimed yet, and how much it claims."""
    return total_ns(minus(saving.claims, claimed)), max(saving.claimed_ns, 1)


def _order(entry: tuple[Rule, Finding]) -> tuple[int, int, int, str]:
    rule, finding = entry
    if finding.saving is None:
        return 1, _SEVERITY[finding.severity or "low"], 0, rule.id
    return 0, -finding.saving.expected_ns, _CONFIDENCE[finding.saving.basis], rule.id


def _rate(finding: Finding, window_ns: int, steps: Steps | None) -> Severity:
    if finding.saving is not None:
        return severity_of(finding.saving, window_ns, steps)
    return finding.severity or "low"
