"""Ranks findings by what they save, without counting the same time twice.

The marginal saving of a finding is what it adds to the findings above it. If its fix was
simulated, that is what simulating all fixes so far saves beyond the fixes above. Otherwise it is
the finding's saving times the share of its claimed time that no finding above has claimed. The
marginal savings add up to the combined saving by construction. A finding that refines another one
is nested under it and adds nothing.

A finding whose advice costs accuracy or information does not lead while one whose advice does not
would save half as much.

A finding that is expected to save nothing, alone or after the findings above it, is not shown. One
without an estimate is.

Severity follows from the saved share of the step. It is one degree lower, once, if the low end is
less than a quarter of what is expected, or if the steps vary so much that the saving minus its
standard error falls below the limit of the degree: what one or two steps show may not happen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import CombinedSaving, RankedFinding
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving, Severity
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, overlap_ns, total_ns
from tb_perfadvisor.whatif import Fix

HIGH_SHARE = 0.10
MEDIUM_SHARE = 0.03
SURE_SHARE = 0.25
"""If less of the expected saving is sure, the change may well save next to nothing."""
FEWEST_STEPS = 3
"""Two steps do not tell how much steps vary."""
LEADS_SHARE = 0.5
"""Losing accuracy or information needs the user's judgment. Other advice that saves this share of
it is the better start."""
SPEAKS_FOR_SHARE = 0.8
"""A more specific finding stands for a general one if it would save nearly as much."""
_ONE_LOWER: dict[Severity, Severity] = {"high": "medium", "medium": "low", "low": "low"}

_CONFIDENCE = {"measured": 0, "simulated": 1, "modeled": 2, "heuristic": 3}
_SEVERITY = {"high": 0, "medium": 1, "low": 2}


def severity_of(saving: Saving, window_ns: int, steps: Steps | None = None) -> Severity:
    """Severity by the expected share of the step, one degree lower if that is not sure.

    Args:
        saving: Totals over the window.
        window_ns: Length of the window.
        steps: The steps of the window; their variation tells how certain the share is.
    """
    usual = _severity_by_share(saving.expected_ns, window_ns)
    if saving.low_ns < SURE_SHARE * saving.expected_ns:
        return _ONE_LOWER[usual]
    if steps is None or len(steps) < FEWEST_STEPS:
        return usual
    sure = _severity_by_share(saving.expected_ns - _standard_error_ns(saving, steps), window_ns)
    return usual if sure == usual else _ONE_LOWER[usual]


def _severity_by_share(saved_ns: float, window_ns: int) -> Severity:
    share = saved_ns / window_ns if window_ns else 0.0
    if share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"


def _standard_error_ns(saving: Saving, steps: Steps) -> float:
    """Standard error of the saving over the recorded steps."""
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
        saved_ns: Simulates what fixes save together, for findings whose fix was simulated.
        steps: The steps of the window.
        most_ns: The most that can be saved by findings that claim these intervals; by default,
            the whole window.

    Returns:
        The findings to show, best first, each followed by those that refine it; and their combined
        saving, None when no finding has a saving.
    """
    while True:
        ranked, combined = _rank_all(found, window_ns, saved_ns, steps, most_ns)
        idle = [entry for entry in ranked if entry.saves_nothing]
        if not idle:
            return ranked, combined
        # Without them, findings that refine them stand alone, and what they claim is unclaimed.
        found = [pair for pair in found if not any(pair[1] is entry.finding for entry in idle)]


def _rank_all(
    found: Sequence[tuple[Rule, Finding]],
    window_ns: int,
    saved_ns: Callable[[Sequence[Fix]], int] | None,
    steps: Steps | None,
    most_ns: Callable[[Intervals], int] | None,
) -> tuple[tuple[RankedFinding, ...], CombinedSaving | None]:
    """Rank findings as `rank` does, including those that save nothing."""
    found_ids = {rule.id for rule, _ in found}
    general = [(r, f) for r, f in found if r.refines is None or r.refines not in found_ids]
    ranked: list[RankedFinding] = []
    nested: set[str] = set()
    union = _Union(window_ns, saved_ns, most_ns or (lambda claims: window_ns))
    for rule, finding in _lossless_first(sorted(general, key=_sort_key)):
        marginal = 0 if finding.saving is None else union.add(finding.saving)
        ranked.append(
            RankedFinding(rule, finding, _severity(finding, window_ns, steps), marginal, None)
        )
        # A rule may have several findings: nest those that refine it once, under the best one.
        refining = [(r, f) for r, f in found if r.refines == rule.id and rule.id not in nested]
        nested.add(rule.id)
        ranked.extend(
            RankedFinding(r, f, _severity(f, window_ns, steps), 0, rule.id)
            for r, f in sorted(refining, key=_sort_key)
        )
    has_saving = any(finding.saving is not None for _, finding in found)
    return _with_groups(ranked), union.combined if has_saving else None


def _with_groups(ranked: Sequence[RankedFinding]) -> tuple[RankedFinding, ...]:
    """The same findings, with those marked for which a specific one speaks."""
    return tuple(
        replace(entry, is_group=_speaker(ranked, index) is not None)
        for index, entry in enumerate(ranked)
    )


def _speaker(ranked: Sequence[RankedFinding], index: int) -> int | None:
    """The best finding that refines one, if it would save nearly as much; else None."""
    general = ranked[index]
    if general.finding.saving is None:
        return None
    for place in range(index + 1, len(ranked)):
        saving = ranked[place].finding.saving
        if ranked[place].refines != general.rule.id:
            return None
        if ranked[place].finding.is_lossy and not general.finding.is_lossy:
            continue
        if saving is not None and ranked[place].finding.remedies:
            enough_ns = SPEAKS_FOR_SHARE * general.finding.saving.expected_ns
            return place if saving.expected_ns >= enough_ns else None
    return None


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
    speaker = _speaker(findings, 0)
    return 0 if speaker is None else speaker


class _Union:
    """Adds up savings one by one without counting any time twice."""

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
        self._saved_by_fixes = 0
        self._low = self._expected = self._high = self._beside = 0

    @property
    def combined(self) -> CombinedSaving:
        # Freed cores speed up the rest of the step only once, however many changes free them.
        high_ns = min(self._high + self._beside, self._window_ns)
        return CombinedSaving(self._low, self._expected, high_ns)

    def add(self, saving: Saving) -> int:
        """Add a saving and return what it adds to the expected total."""
        if saving.fix and self._saved_ns is not None:
            marginal = self._add_simulated(saving, self._saved_ns)
        else:
            fresh, whole = _unclaimed(saving, self._claimed)
            # Round down, so that time claimed twice is never saved twice.
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
        before = self._saved_by_fixes
        self._saved_by_fixes = max(saved_ns(self._fixes), before)
        # The simulation knows what the fixes add to each other. Subtract only the time that
        # findings without a simulated fix have claimed.
        fresh, whole = _unclaimed(saving, self._not_simulated)
        added_ns = max(self._saved_by_fixes - before - saving.recording_ns, 0)
        marginal = min(added_ns, whole) * fresh // whole
        unclaimed, _ = _unclaimed(saving, self._claimed)
        marginal += saving.unproven_ns * unclaimed // whole
        marginal = min(marginal, self._window_ns - self._expected)
        self._low += min(saving.low_ns * fresh // whole, marginal)
        self._high += max(saving.high_ns * fresh // whole, marginal)
        return marginal


def _unclaimed(saving: Saving, claimed: Intervals) -> tuple[int, int]:
    """How much of a saving's claimed time is not yet claimed, and all of its claimed time."""
    return total_ns(minus(saving.claims, claimed)), max(saving.claimed_ns, 1)


def _lossless_first(ordered: Sequence[tuple[Rule, Finding]]) -> list[tuple[Rule, Finding]]:
    """The same findings; if the first one is lossy, the best other one leads if it saves enough.

    Args:
        ordered: Best first.
    """
    found = list(ordered)
    if not found or not found[0][1].is_lossy or found[0][1].saving is None:
        return found
    enough_ns = LEADS_SHARE * found[0][1].saving.expected_ns
    for place, (_, finding) in enumerate(found):
        if finding.saving is None or finding.saving.expected_ns < enough_ns:
            break
        if not finding.is_lossy:
            return [found[place], *found[:place], *found[place + 1 :]]
    return found


def _sort_key(entry: tuple[Rule, Finding]) -> tuple[int, int, int, str]:
    rule, finding = entry
    if finding.saving is None:
        freed_bytes = finding.memory.bytes if finding.memory is not None else 0
        return 1, _SEVERITY[finding.severity or "low"], -freed_bytes, rule.id
    return 0, -finding.saving.expected_ns, _CONFIDENCE[finding.saving.basis], rule.id


def _severity(finding: Finding, window_ns: int, steps: Steps | None) -> Severity:
    if finding.saving is not None:
        return severity_of(finding.saving, window_ns, steps)
    return finding.severity or "low"
