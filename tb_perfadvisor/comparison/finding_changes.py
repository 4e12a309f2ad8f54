"""What became of each finding: fixed, gained, credited.

Divides the time that disappeared among the findings that claim it.

A comparison shows how much less time each cause takes, but not which change took it away. So each
finding, the best one first, is credited with as much of the time that disappeared from its causes
as it expected to save and no longer expects. If more disappeared, the same is done with the high
ends. What is still left belongs to a finding only if no other claims the same cause. So no
nanosecond is credited twice. The time that a cause takes more than before is divided in proportion
to the expected savings.

Compares predicted with achieved savings for each rule that found something in the base.

*Predicted* is what the finding in the base expects its remedy to save. *Achieved* is how much less
time the causes of the finding's claimed time take now, for whatever reason. If it claims any
compute, this includes all compute, because compute in fewer bits has a different cause. Where
several findings claim the same causes, `credit` divides the time among them: none of it counts
twice. A finding that refines another one is about the same time, which counts there; if it has no
saving of its own, it only says where to look further, and is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec
from msgspec import Struct

from tb_perfadvisor.comparison.differences import StepCounts
from tb_perfadvisor.comparison.interval import NOISE_SHARE
from tb_perfadvisor.comparison.run_facts import FindingFacts, RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import Severity
from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.units import format_duration, format_duration_range

COMPUTE_CAUSES = frozenset(cause.value for cause in COMPUTE)
_COMPUTE = "compute"


class Claim(Struct, frozen=True):
    """A finding of the base."""

    rule_id: str
    expected_ns: int
    """What it expects to save, per step."""
    gone_ns: int
    """How much of that the target no longer expects."""
    most_gone_ns: int
    """How much of its high end the target no longer has; at least as much."""
    causes: Sequence[str]
    """The causes of the time that it claims."""


def credit(claims: Sequence[Claim], change_ns: Mapping[str, int]) -> dict[str, int]:
    """How much time each finding is credited with, negative if its causes take more than before.

    Claims are findings of the base, each of another rule, the best one first. Changes are per step;
    less time is negative.
    """
    left_ns = {group: -change for group, change in _by_group(change_ns).items()}
    groups = {claim.rule_id: set(map(_group, claim.causes)) & set(left_ns) for claim in claims}
    credited = dict.fromkeys(groups, 0)

    def take(rule_id: str, most_ns: int) -> None:
        less = [group for group in sorted(groups[rule_id]) if left_ns[group] > 0]
        amounts = [left_ns[group] for group in less]
        parts = divided(min(max(most_ns, 0), sum(amounts)), amounts)
        for group, part in zip(less, parts, strict=True):
            left_ns[group] -= part
            credited[rule_id] += part

    for claim in claims:
        take(claim.rule_id, claim.gone_ns)
    for claim in claims:
        take(claim.rule_id, claim.most_gone_ns - credited[claim.rule_id])
    for group, rest_ns in left_ns.items():
        sharing = [claim for claim in claims if group in groups[claim.rule_id]]
        if len(sharing) == 1:
            credited[sharing[0].rule_id] += rest_ns
        elif rest_ns < 0 and sharing:
            parts = divided(rest_ns, [max(claim.expected_ns, 1) for claim in sharing])
            for claim, part in zip(sharing, parts, strict=True):
                credited[claim.rule_id] += part
    return credited


def divided(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide an amount in proportion to weights, without a remainder."""
    whole = max(sum(weights), 1)
    # Rounded down, a part never exceeds its weight if the amount does not exceed their sum.
    bounds = [amount * reached // whole for reached in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(bounds)]


def _by_group(change_ns: Mapping[str, int]) -> dict[str, int]:
    groups: dict[str, int] = {}
    for cause, change in change_ns.items():
        groups[_group(cause)] = groups.get(_group(cause), 0) + change
    return groups


def _group(cause: str) -> str:
    """All compute is one: in fewer bits it has another cause."""
    return _COMPUTE if cause in COMPUTE_CAUSES else cause


def compared_causes(claimed: Iterable[str]) -> list[str]:
    """The causes whose change belongs to a finding that claims some causes."""
    causes = list(claimed)
    if COMPUTE_CAUSES.isdisjoint(causes):
        return causes
    return [*causes, *sorted(COMPUTE_CAUSES.difference(causes))]


CLAIMED_SHARE = 0.05
"""Share of a finding's claims. A cause with less is ignored as accidental."""
CHANGED_SHARE = 0.1
"""Savings that differ by less count as unchanged: estimates are not more precise."""
_SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")


def finding_changes(
    base: RunFacts, target: RunFacts, counts: StepCounts, change_ns: Mapping[str, int]
) -> list[model.FindingChange]:
    """Compare the findings: first those of the base, then new ones of the target.

    `counts` are the steps of each. Changes are per step, by cause.
    """
    before, after = comparable_findings(base.findings), comparable_findings(target.findings)
    changes = [
        _finding_change(
            rule_id, before.get(rule_id, ()), after.get(rule_id, ()), (base, target), counts
        )
        for rule_id in dict.fromkeys((*before, *after))
    ]
    # Nobody acted on what is unchanged. If the rule could not check the target, its causes may not
    # be visible there either.
    known = [
        _claim(change, change.predicted)
        for change in changes
        if change.predicted is not None and change.causes
        if change.status in ("fixed", "changed") and change.refines is None
    ]
    achieved = credit(known, change_ns)
    return [
        _achieving(change, achieved[change.rule_id]) if change.rule_id in achieved else change
        for change in changes
    ]


def _claim(change: model.FindingChange, predicted: model.PredictedSaving) -> Claim:
    remaining = change.remaining
    expected_ns, high_ns = (remaining.expected_ns, remaining.high_ns) if remaining else (0, 0)
    gone_ns = max(predicted.expected_ns - expected_ns, 0)
    return Claim(
        change.rule_id,
        predicted.expected_ns,
        gone_ns,
        max(predicted.high_ns - high_ns, gone_ns),
        change.causes,
    )


def _achieving(change: model.FindingChange, achieved_ns: int) -> model.FindingChange:
    predicted = change.predicted
    assert predicted is not None
    return msgspec.structs.replace(
        change,
        achieved_ns=achieved_ns,
        is_in_range=predicted.low_ns <= achieved_ns <= predicted.high_ns,
    )


_Findings = Sequence[FindingFacts]


def comparable_findings(findings: Iterable[FindingFacts]) -> dict[str, _Findings]:
    """The findings to compare by rule, because a rule may have several."""
    rules: dict[str, list[FindingFacts]] = defaultdict(list)
    for finding in findings:
        if finding.saving is not None or finding.refines is None:
            rules[finding.rule_id].append(finding)
    return dict(rules)


def _finding_change(
    rule_id: str,
    before: _Findings,
    after: _Findings,
    runs: tuple[RunFacts, RunFacts],
    counts: StepCounts,
) -> model.FindingChange:
    predicted = saving_per_step(before, counts.base)
    remaining = saving_per_step(after, counts.target)
    status, reason = _status(rule_id, before, after, predicted, remaining, runs)
    return model.FindingChange(
        rule_id=rule_id,
        title=(before or after)[0].title,
        status=status,
        reason=reason,
        base_severity=highest_severity(before),
        target_severity=highest_severity(after),
        predicted=predicted,
        remaining=remaining,
        refines=before[0].refines if before else None,
        causes=compared_causes(_claimed(before)),
        achieved_ns=None,
        is_in_range=None,
        outcome="",
        summary="",
    )


def _status(
    rule_id: str,
    before: _Findings,
    after: _Findings,
    predicted: model.PredictedSaving | None,
    remaining: model.PredictedSaving | None,
    runs: tuple[RunFacts, RunFacts],
) -> tuple[model.FindingStatus, str | None]:
    if before and after:
        is_same = highest_severity(before) == highest_severity(after) and _is_close(
            predicted, remaining
        )
        return ("unchanged" if is_same else "changed"), None
    without_finding, side = (runs[1], "target") if before else (runs[0], "base")
    outcome = without_finding.outcomes.get(rule_id)
    # Only a rule that ran and found nothing shows that the finding is gone.
    if outcome is not None and outcome.status == "passed":
        return ("fixed" if before else "new"), None
    why = (outcome.reason if outcome else None) or "the rule did not run"
    return "unknown", f"not checked in the {side}: {why}"


def _is_close(
    predicted: model.PredictedSaving | None, remaining: model.PredictedSaving | None
) -> bool:
    if predicted is None or remaining is None:
        return predicted is remaining
    difference = abs(remaining.expected_ns - predicted.expected_ns)
    # If hardly any of a saving reaches the step, small changes of it do not matter.
    return difference <= CHANGED_SHARE * max(
        predicted.expected_ns,
        remaining.expected_ns,
        CHANGED_SHARE * predicted.high_ns,
        CHANGED_SHARE * remaining.high_ns,
    )


def _claimed(findings: _Findings) -> list[str]:
    """The causes of the time that the findings claim, the largest first."""
    claims: dict[str, int] = defaultdict(int)
    for finding in findings:
        for cause, claimed in (finding.saving.claims if finding.saving else {}).items():
            claims[cause] += claimed
    whole = sum(claims.values())
    return [
        cause
        for cause, claimed in sorted(claims.items(), key=lambda item: -item[1])
        if claimed >= CLAIMED_SHARE * whole
    ]


def highest_severity(findings: _Findings) -> Severity | None:
    """The highest severity of the findings of a rule; None without any."""
    severities = {finding.severity for finding in findings}
    return next((severity for severity in _SEVERITIES if severity in severities), None)


def saving_per_step(findings: _Findings, count: int) -> model.PredictedSaving | None:
    """What the findings of a rule save together, per step; None without a saving."""
    savings = [finding.saving for finding in findings if finding.saving is not None]
    if not savings:
        return None
    return model.PredictedSaving(
        low_ns=round(sum(saving.low_ns for saving in savings) / count),
        expected_ns=round(sum(saving.expected_ns for saving in savings) / count),
        high_ns=round(sum(saving.high_ns for saving in savings) / count),
        basis=savings[0].basis,
    )


_ALMOST = 0.9
"""Share of the low end. Two recordings of the same program differ by a few percent."""
_STATUS = {
    "fixed": "Fixed",
    "new": "New",
    "changed": "Changed",
    "unchanged": "Unchanged",
    "unknown": "Unknown",
}
_DESPITE = {
    "slower": ", but the step got slower",
    "inconclusive": ", but the step did not change clearly",
}


def outcome_of(change: model.FindingChange, verdict: model.Verdict) -> str:
    """What became of a finding, in a word. What is gone is no success by itself."""
    if change.status == "fixed" and verdict != "faster":
        return "Gone"
    return _STATUS[change.status]


def summary_of(change: model.FindingChange, verdict: model.Verdict) -> str:
    """What was predicted, achieved and is left; between numbers of devices, without a judgment."""
    parts = []
    if change.predicted is not None:
        parts.append(f"predicted {_range(change.predicted)} less")
    if change.achieved_ns is not None and change.achieved_ns < 0:
        parts.append(f"its time grew by {format_duration(-change.achieved_ns)}")
    elif change.achieved_ns is not None:
        achieved = f"achieved {format_duration(change.achieved_ns)} less"
        parts.append(achieved + _judgment(change, verdict))
    elif change.status == "fixed" and change.refines is not None:
        parts.append("achieved time counted above")
    if change.remaining is not None:
        parts.append(f"{_range(change.remaining)} left to save")
    if change.reason is not None:
        parts.append(change.reason)
    return "; ".join(parts)


def _judgment(change: model.FindingChange, verdict: model.Verdict) -> str:
    predicted, achieved_ns = change.predicted, change.achieved_ns
    if verdict != "faster" or predicted is None or achieved_ns is None:
        return _DESPITE.get(verdict, "")
    if change.is_in_range:
        return ", as predicted"
    if achieved_ns > predicted.high_ns:
        return ", more than predicted"
    is_almost = achieved_ns > _ALMOST * predicted.low_ns
    return ", almost as predicted" if is_almost else ", less than predicted"


def _range(saving: model.PredictedSaving) -> str:
    return format_duration_range(saving.low_ns, saving.high_ns)


_MAX_CERTAIN = 3


def _signed(change_ns: int) -> str:
    return f"{'+' if change_ns > 0 else '−'}{format_duration(abs(change_ns))}"


_ON_HOST = frozenset({Cause.HOST_COMPUTE.value})
_SHARED_CORES = "Loader workers and input threads may take cores from the step"


def explanation(
    verdict: model.Verdict, change: model.TimeChange, causes: Sequence[model.CauseChange]
) -> str | None:
    """What is certain by cause if the total is not; or what grew if the step did not get faster.

    The change is that of the step; those of causes are per step, too.
    """
    if verdict not in ("slower", "inconclusive"):
        return None
    least_ns = NOISE_SHARE * change.base_ns
    certain = [
        f"{cause.label} {'is gone' if not cause.target_ns else 'changed'}: "
        f"{_signed(cause.change_ns)}"
        for cause in causes
        if cause.is_certain and abs(cause.change_ns) > least_ns
    ]
    if verdict == "inconclusive" and certain:
        return f"Certain by cause: {'; '.join(certain[:_MAX_CERTAIN])}. The total is not certain."
    grown = max(causes, key=lambda cause: cause.change_ns, default=None)
    shrunk = min(causes, key=lambda cause: cause.change_ns, default=None)
    if grown is None or shrunk is None or grown.change_ns <= least_ns:
        return None
    more = format_duration(grown.change_ns)
    if shrunk.change_ns >= -least_ns:
        return f"{grown.label} grew by {more}." if verdict == "slower" else None
    less = format_duration(-shrunk.change_ns)
    # "Python" is a name.
    is_name = grown.cause == Cause.PYTHON.value
    label = grown.label if is_name else grown.label[:1].lower() + grown.label[1:]
    text = f"{shrunk.label} fell by {less}, but {label} grew by {more}."
    if shrunk.cause == Cause.INPUT.value and grown.cause in _ON_HOST:
        return f"{text} {_SHARED_CORES}."
    return text
