"""Compares predicted with achieved savings for each rule that found something in the base.

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

import msgspec

from tb_perfadvisor.comparison.credit import Claim, compared_causes, credit
from tb_perfadvisor.comparison.operation_changes import StepCounts
from tb_perfadvisor.comparison.run_facts import FindingFacts, RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import Severity

CLAIMED_SHARE = 0.05
"""Share of a finding's claims. A cause with less is ignored as accidental."""
CHANGED_SHARE = 0.1
"""Savings that differ by less count as unchanged: estimates are not more precise."""
_SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")


def finding_changes(
    base: RunFacts, target: RunFacts, counts: StepCounts, change_ns: Mapping[str, int]
) -> list[model.FindingChange]:
    """Compare the findings: first those of the base, then new ones of the target.

    Args:
        base: The base.
        target: The target.
        counts: The number of steps of each.
        change_ns: The change of each cause, per step.
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
    """What the findings of a rule save together, per step; None without a saving.

    Args:
        findings: Their savings are totals.
        count: The number of steps.
    """
    savings = [finding.saving for finding in findings if finding.saving is not None]
    if not savings:
        return None
    return model.PredictedSaving(
        low_ns=round(sum(saving.low_ns for saving in savings) / count),
        expected_ns=round(sum(saving.expected_ns for saving in savings) / count),
        high_ns=round(sum(saving.high_ns for saving in savings) / count),
        basis=savings[0].basis,
    )
