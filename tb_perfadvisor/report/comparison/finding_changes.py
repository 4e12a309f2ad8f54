"""Compares predicted with achieved savings for each rule that found something in the base.

*Predicted* is what the finding in the base expects its remedy to save. *Achieved* is how much less
time the causes of the finding's claimed time take now. If it claims any compute, this includes all
compute, because compute in fewer bits has a different cause. The causes may have changed for other
reasons too, and findings that claim the same causes share the change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tb_perfadvisor.report.comparison import model
from tb_perfadvisor.report.comparison.operation_changes import StepCounts
from tb_perfadvisor.report.comparison.run_facts import FindingFacts, RunFacts
from tb_perfadvisor.report.model import Severity
from tb_perfadvisor.signals.core.attribution import COMPUTE

CLAIMED_SHARE = 0.05
"""Share of a finding's claims. A cause with less is ignored as accidental."""
CHANGED_SHARE = 0.1
"""Savings that differ by less count as unchanged: estimates are not more precise."""
_COMPUTE = frozenset(cause.value for cause in COMPUTE)
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
    before, after = _by_rule(base.findings), _by_rule(target.findings)
    return [
        _finding_change(
            rule_id,
            before.get(rule_id, ()),
            after.get(rule_id, ()),
            (base, target),
            counts,
            change_ns,
        )
        for rule_id in dict.fromkeys((*before, *after))
    ]


_Findings = Sequence[FindingFacts]


def _by_rule(findings: Iterable[FindingFacts]) -> dict[str, _Findings]:
    """Findings by rule, because a rule may have several."""
    rules: dict[str, list[FindingFacts]] = defaultdict(list)
    for finding in findings:
        rules[finding.rule_id].append(finding)
    return dict(rules)


def _finding_change(
    rule_id: str,
    before: _Findings,
    after: _Findings,
    runs: tuple[RunFacts, RunFacts],
    counts: StepCounts,
    change_ns: Mapping[str, int],
) -> model.FindingChange:
    predicted, remaining = _saving(before, counts.base), _saving(after, counts.target)
    causes = _claimed(before)
    status, reason = _status(rule_id, before, after, predicted, remaining, runs)
    # If the rule could not check the target, its causes may not be visible there either.
    is_known = bool(causes) and status != "unknown"
    achieved = -sum(change_ns.get(cause, 0) for cause in causes) if is_known else None
    return model.FindingChange(
        rule_id=rule_id,
        title=(before or after)[0].title,
        status=status,
        reason=reason,
        base_severity=_severity(before),
        target_severity=_severity(after),
        predicted=predicted,
        remaining=remaining,
        causes=causes,
        achieved_ns=achieved,
        is_in_range=(
            predicted.low_ns <= achieved <= predicted.high_ns
            if predicted is not None and achieved is not None
            else None
        ),
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
        is_same = _severity(before) == _severity(after) and _is_close(predicted, remaining)
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
    causes = [
        cause
        for cause, claimed in sorted(claims.items(), key=lambda item: -item[1])
        if claimed >= CLAIMED_SHARE * whole
    ]
    if _COMPUTE.isdisjoint(causes):
        return causes
    return [*causes, *sorted(_COMPUTE.difference(causes))]


def _severity(findings: _Findings) -> Severity | None:
    """The highest severity."""
    severities = {finding.severity for finding in findings}
    return next((severity for severity in _SEVERITIES if severity in severities), None)


def _saving(findings: _Findings, count: int) -> model.PredictedSaving | None:
    """What the findings save together, per step."""
    savings = [finding.saving for finding in findings if finding.saving is not None]
    if not savings:
        return None
    return model.PredictedSaving(
        low_ns=round(sum(saving.low_ns for saving in savings) / count),
        expected_ns=round(sum(saving.expected_ns for saving in savings) / count),
        high_ns=round(sum(saving.high_ns for saving in savings) / count),
        basis=savings[0].basis,
    )
