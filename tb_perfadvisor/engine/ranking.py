"""Ranks findings by what they save, without counting the same time twice.

Findings rank by what they are expected to save. Of those that are expected to save about the same,
the one that is sure to save most leads. If nothing tells how much that is, the bounds do:
such a finding ranks by their middle, and its severity is one degree below that of its high end. It
does not lead while another one is rated high. What the timers of the whole run show ranks by its
share of the run.

The marginal saving of a finding is what it adds to the findings above it. The marginal savings
add up to the combined saving: see `combination`.

A finding that refines another one is nested under it, adds nothing, and saves at most what that one
saves. If most of the time that it claims is not the other one's, it stands for itself.

A finding whose advice costs accuracy or information does not lead while one whose advice does not
would save half as much.

A finding that is expected to save nothing, neither alone nor after the findings above it, is not
shown. One without an estimate is.

Severity follows from the saved share of the step. It is one degree lower, once, if the low end is
less than a quarter of what is expected, or if the steps vary so much that the saving minus its
standard error falls below the limit of the degree: what one or two steps show may not happen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import CombinedSaving, RankedFinding
from tb_perfadvisor.engine.change_model import Combination, limits_of
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving, Severity, severity_by_share
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.trace.intervals import (
    Intervals,
    overlap_ns,
    shared_ns,
)
from tb_perfadvisor.whatif import Fix

SURE_SHARE = 0.25
"""If less of the expected saving is sure, the change may well save next to nothing."""
FEWEST_STEPS = 3
"""Two steps do not tell how much steps vary."""
LEADS_SHARE = 0.5
"""Losing accuracy or information needs the user's judgment. Other advice that saves this share of
it is the better start."""
SIMILAR_SHARE = 0.9
"""Estimates this close tell no order; what is sure to be saved then decides."""
PART_SHARE = 0.5
"""A finding of which more than half is about other time does not explain the general one."""
SPEAKS_FOR_SHARE = 0.8
"""A more specific finding stands for a general one if it would save nearly as much."""
_ONE_LOWER: dict[Severity, Severity] = {"high": "medium", "medium": "low", "low": "low"}

_CONFIDENCE = {"measured": 0, "simulated": 1, "modeled": 2, "heuristic": 3}
_SEVERITY = {"high": 0, "medium": 1, "low": 2}


def severity_of(saving: Saving, window_ns: int, steps: Steps | None = None) -> Severity:
    """Severity by the expected share of the step, one degree lower if that is not sure.

    The saving is a total over the window.
    """
    usual = _severity_by_share(saving.expected_ns, window_ns)
    # What it may cost where it does not fit is said beside it.
    if saving.low_ns + saving.may_cost_ns < SURE_SHARE * saving.expected_ns:
        return _ONE_LOWER[usual]
    if steps is None or len(steps) < FEWEST_STEPS:
        return usual
    sure = _severity_by_share(saving.expected_ns - _standard_error_ns(saving, steps), window_ns)
    return usual if sure == usual else _ONE_LOWER[usual]


def _severity_by_share(saved_ns: float, window_ns: int) -> Severity:
    return severity_by_share(saved_ns / window_ns if window_ns else 0.0)


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

    The findings to show come best first, each followed by those that refine it. Their combined
    saving is None when none has a saving or bounds: then its high end is unknown. `saved_ns`
    and `most_ns` (by default the whole window) are those of `Combination`.
    """
    while True:
        ranked, combined = _rank_all(found, window_ns, saved_ns, steps, most_ns)
        idle = [entry for entry in ranked if entry.saves_nothing]
        if not idle:
            return _without_excess(ranked, window_ns, steps), combined
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
    sort_key = partial(_sort_key, window_ns)
    parents = _best_by_rule(found, sort_key)
    nested = [(r, f) for r, f in found if _is_part(f, parents.get(r.refines or ""))]
    general = [(r, f) for r, f in found if not any(f is part for _, part in nested)]
    ranked: list[RankedFinding] = []
    union = Combination(window_ns, saved_ns, most_ns or (lambda claims: window_ns))
    ordered = _surest_first(sorted(general, key=sort_key), window_ns, steps)
    for rule, finding in _lossless_first(ordered):
        marginal = union.add(finding)
        ranked.append(
            RankedFinding(rule, finding, _severity(finding, window_ns, steps), marginal, None)
        )
        # A rule may have several findings: nest those that refine it under the best one.
        if finding is not parents[rule.id]:
            continue
        ranked.extend(
            RankedFinding(r, f, _severity(f, window_ns, steps), 0, rule.id)
            for r, f in sorted(nested, key=sort_key)
            if r.refines == rule.id
        )
    has_limits = any(limits_of(finding) is not None for _, finding in found)
    return _with_groups(ranked), union.combined if has_limits else None


def _best_by_rule(
    found: Sequence[tuple[Rule, Finding]], sort_key: Callable[[tuple[Rule, Finding]], Any]
) -> dict[str, Finding]:
    """The best finding of each rule, which those that refine the rule are nested under."""
    best: dict[str, Finding] = {}
    for rule, finding in sorted(found, key=sort_key):
        best.setdefault(rule.id, finding)
    return best


def _is_part(finding: Finding, general: Finding | None) -> bool:
    """Whether a finding explains another one: most of the time that it claims is the other's."""
    if general is None:
        return False
    part, whole = limits_of(finding), limits_of(general)
    if part is None or whole is None:
        return True
    inside_ns = shared_ns(part.claims, whole.claims)
    return inside_ns >= PART_SHARE * part.claimed_ns


def _without_excess(
    ranked: Sequence[RankedFinding], window_ns: int, steps: Steps | None
) -> tuple[RankedFinding, ...]:
    """The same findings; those that explain another one save at most what that one saves."""
    general = {entry.rule.id: entry.finding for entry in reversed(ranked) if entry.refines is None}
    return tuple(
        entry
        if entry.refines is None
        else _with_finding(entry, _within(entry.finding, general[entry.refines]), window_ns, steps)
        for entry in ranked
    )


def _with_finding(
    entry: RankedFinding, finding: Finding, window_ns: int, steps: Steps | None
) -> RankedFinding:
    if finding is entry.finding:
        return entry
    return replace(entry, finding=finding, severity=_severity(finding, window_ns, steps))


def _within(finding: Finding, general: Finding) -> Finding:
    """A finding that saves at most what the one that it explains saves."""
    part, whole = finding.saving, limits_of(general)
    if part is None or whole is None:
        return finding
    most_ns = whole.high_ns if general.saving is None else whole.expected_ns
    if part.expected_ns <= most_ns and part.high_ns <= whole.high_ns:
        return finding
    expected_ns, high_ns = min(part.expected_ns, most_ns), min(part.high_ns, whole.high_ns)
    # What is expected is then the general finding's figure.
    basis = whole.basis if expected_ns < part.expected_ns else part.basis
    return replace(
        finding, saving=replace(part, expected_ns=expected_ns, high_ns=high_ns, basis=basis)
    )


def _with_groups(ranked: Sequence[RankedFinding]) -> tuple[RankedFinding, ...]:
    """The same findings, with those marked for which a specific one speaks."""
    return tuple(
        replace(entry, is_group=_speaker(ranked, index) is not None)
        for index, entry in enumerate(ranked)
    )


def _speaker(ranked: Sequence[RankedFinding], index: int) -> int | None:
    """The best finding that refines one, if it would save nearly as much; else None."""
    general = ranked[index]
    worth_ns = _worth_ns(general.finding)
    if worth_ns is None:
        return None
    for place in range(index + 1, len(ranked)):
        saving = ranked[place].finding.saving
        if ranked[place].refines != general.rule.id:
            return None
        if ranked[place].finding.is_lossy and not general.finding.is_lossy:
            continue
        if saving is not None and ranked[place].finding.remedies:
            enough_ns = SPEAKS_FOR_SHARE * worth_ns
            return place if saving.expected_ns >= enough_ns else None
    return None


def _worth_ns(finding: Finding) -> int | None:
    """What a finding ranks by: what it is expected to save, or the middle of its bounds."""
    if finding.saving is not None:
        return finding.saving.expected_ns
    return None if finding.bounds is None else finding.bounds.high_ns // 2


def first_finding(findings: Sequence[RankedFinding]) -> int | None:
    """Find the change to begin with: the top-ranked finding, or the best one that refines it.

    The finding that refines it is chosen if it saves nearly as much, because its advice is more
    specific.

    The result is an index; None when there is no finding.
    """
    if not findings:
        return None
    speaker = _speaker(findings, 0)
    if speaker is None and findings[0].finding.is_lossy:
        speaker = _lossless_part(findings)
    return 0 if speaker is None else speaker


def leaders_of(findings: Sequence[RankedFinding]) -> dict[int, int]:
    """The change to begin with in each group of findings, by the general one; both are indices."""
    starts = [place for place, entry in enumerate(findings) if entry.refines is None]
    ends = [*starts, len(findings)]
    return {
        start: start + (first_finding(findings[start:end]) or 0)
        for start, end in zip(starts, ends[1:], strict=True)
    }


def _lossless_part(ranked: Sequence[RankedFinding]) -> int | None:
    """The best finding that refines a lossy first one without loss, if it saves enough to lead."""
    saving = ranked[0].finding.saving
    for place, entry in enumerate(ranked[1:], start=1):
        if saving is None or entry.refines != ranked[0].rule.id:
            return None
        part = entry.finding
        if part.saving is not None and part.remedies and not part.is_lossy:
            return place if part.saving.expected_ns >= LEADS_SHARE * saving.expected_ns else None
    return None


def _surest_first(
    ordered: Sequence[tuple[Rule, Finding]], window_ns: int, steps: Steps | None
) -> list[tuple[Rule, Finding]]:
    """The same findings; the one that is sure to save most leads, if it saves about as much.

    If nothing tells what the first one saves, the best one that is rated high leads.
    """
    found = list(ordered)
    if not found:
        return found
    first, rated = found[0][1].saving, _SEVERITY[_severity(found[0][1], window_ns, steps)]
    best, surest_ns = 0, 0 if first is None else first.low_ns
    for place, (_, finding) in enumerate(found):
        saving, severity = finding.saving, _SEVERITY[_severity(finding, window_ns, steps)]
        if saving is None:
            continue
        if first is None:
            if severity == _SEVERITY["high"]:
                best = place
                break
            continue
        if saving.expected_ns < SIMILAR_SHARE * first.expected_ns:
            break
        if saving.low_ns > surest_ns and severity <= rated and not finding.is_lossy:
            best, surest_ns = place, saving.low_ns
    return [found[best], *found[:best], *found[best + 1 :]]


def _lossless_first(ordered: Sequence[tuple[Rule, Finding]]) -> list[tuple[Rule, Finding]]:
    """The same findings; if the first one is lossy, the best other one leads if it saves enough.

    The best come first.
    """
    found = list(ordered)
    if not found or not found[0][1].is_lossy or found[0][1].saving is None:
        return found
    enough_ns = LEADS_SHARE * found[0][1].saving.expected_ns
    for place, (_, finding) in enumerate(found):
        if finding.saving is None or finding.is_lossy:
            continue
        if finding.saving.expected_ns < enough_ns:
            break
        return [found[place], *found[:place], *found[place + 1 :]]
    return found


def _sort_key(window_ns: int, entry: tuple[Rule, Finding]) -> tuple[int, int, int, str]:
    rule, finding = entry
    if finding.run_share:  # as if the recorded steps were like those of the run
        return 0, -round(finding.run_share * window_ns), len(_CONFIDENCE), rule.id
    if finding.saving is not None:
        return 0, -finding.saving.expected_ns, _CONFIDENCE[finding.saving.basis], rule.id
    if finding.bounds is not None:
        return 0, -finding.bounds.high_ns // 2, len(_CONFIDENCE), rule.id
    freed_bytes = finding.memory.bytes if finding.memory is not None else 0
    return 1, _SEVERITY[finding.severity or "low"], -freed_bytes, rule.id


def _severity(finding: Finding, window_ns: int, steps: Steps | None) -> Severity:
    if finding.saving is not None:
        rated = severity_of(finding.saving, window_ns, steps)
        return max(rated, finding.severity or rated, key=_SEVERITY.__getitem__)
    if finding.bounds is not None and finding.severity is None:
        return _ONE_LOWER[_severity_by_share(finding.bounds.high_ns, window_ns)]
    return finding.severity or "low"
