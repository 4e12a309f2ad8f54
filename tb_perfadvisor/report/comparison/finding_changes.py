"""What became of the base's findings: predicted against achieved, per rule.

*Predicted* is what the base's finding says that its remedy saves. *Achieved* is how much less
time the causes take now in which the finding's claims lie: all of compute where it claims any,
since compute that moves to fewer bits changes its cause. It is the change of those causes for
whatever reason, so what else changed in them counts as well, and findings that claim the same
causes share it.
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
"""Of a finding's claims, below which a cause is one that they touch by chance."""
CHANGED_SHARE = 0.1
"""By which what a finding would save must differ to be called changed: estimates are no surer."""
_COMPUTE = frozenset(cause.value for cause in COMPUTE)
_SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")


def finding_changes(
    base: RunFacts, target: RunFacts, counts: StepCounts, change_ns: Mapping[str, int]
) -> list[model.FindingChange]:
    """The base's findings in its order, then the target's new ones.

    Args:
        base: The base.
        target: The target.
        counts: Steps of each.
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
    """A rule may find several things; together they are its finding."""
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
    # What the rule could not look at, its causes may not show either.
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
    silent, side = (runs[1], "target") if before else (runs[0], "base")
    outcome = silent.outcomes.get(rule_id)
    # Silence is no pass: only a rule that could look and found nothing says that it is gone.
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
    # Where next to nothing of a saving reaches the step, how much next to nothing tells nothing.
    return difference <= CHANGED_SHARE * max(
        predicted.expected_ns,
        remaining.expected_ns,
        CHANGED_SHARE * predicted.high_ns,
        CHANGED_SHARE * remaining.high_ns,
    )


def _claimed(findings: _Findings) -> list[str]:
    """The causes that hold what some findings claim, the largest part first."""
    claims: dict[str, int] = defaultdict(int)
    for finding in findings:
        for cause, claimed in (finding.saving.claims if finding.saving else {}).items():
            claims[cause] += claimed
    whole = sum(claims.values())
    causes = [
        cause
        for cause, claimed in sorted(claims.items(), key=lambda one: -one[1])
        if claimed >= CLAIMED_SHARE * whole
    ]
    if _COMPUTE.isdisjoint(causes):
        return causes
    return [*causes, *sorted(_COMPUTE.difference(causes))]


def _severity(findings: _Findings) -> Severity | None:
    """The highest."""
    found = {finding.severity for finding in findings}
    return next((one for one in _SEVERITIES if one in found), None)


def _saving(findings: _Findings, count: int) -> model.PredictedSaving | None:
    """What some findings save together, per step."""
    savings = [finding.saving for finding in findings if finding.saving is not None]
    if not savings:
        return None
    return model.PredictedSaving(
        low_ns=round(sum(one.low_ns for one in savings) / count),
        expected_ns=round(sum(one.expected_ns for one in savings) / count),
        high_ns=round(sum(one.high_ns for one in savings) / count),
        basis=savings[0].basis,
    )
