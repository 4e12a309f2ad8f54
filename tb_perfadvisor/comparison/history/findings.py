"""When each finding came and went over the recordings of a run, and what its end achieved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tb_perfadvisor.comparison.finding_changes import (
    comparable_findings,
    highest_severity,
    saving_per_step,
)
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import FindingHistory, Occurrence


def finding_histories(
    recordings: Sequence[RunFacts], compare: Callable[[int, int], model.ComparedTarget]
) -> list[FindingHistory]:
    """The history of each finding, those that the latest recordings have first.

    Args:
        recordings: The oldest first.
        compare: Compares two of them, by the indices of base and target.
    """
    found = [comparable_findings(facts.findings) for facts in recordings]
    rules = dict.fromkeys(rule for findings in reversed(found) for rule in findings)

    def history(rule: str) -> FindingHistory:
        states = [_state(rule, facts) for facts in recordings]
        savings = [
            saving_per_step(findings.get(rule, ()), facts.steps or 1)
            for findings, facts in zip(found, recordings, strict=True)
        ]
        latest = next(findings[rule] for findings in reversed(found) if rule in findings)
        occurrences = []
        for absent_before, first, last, gone in _runs_of(states):
            target = None if gone is None else compare(last, gone)
            changes = target.findings if target is not None else []
            occurrences.append(
                Occurrence(
                    absent_before=absent_before,
                    first=first,
                    last=last,
                    gone=gone,
                    saving=savings[last],
                    verdict=None if target is None else target.verdict,
                    change=next((each for each in changes if each.rule_id == rule), None),
                )
            )
        return FindingHistory(
            rule_id=rule,
            title=latest[0].title,
            refines=latest[0].refines,
            states=states,
            expected_ns=[None if saving is None else saving.expected_ns for saving in savings],
            severities=[highest_severity(findings.get(rule, ())) for findings in found],
            occurrences=occurrences,
        )

    return [history(rule) for rule in rules]


def _state(rule: str, facts: RunFacts) -> model.FindingState:
    if any(finding.rule_id == rule for finding in facts.findings):
        return "found"
    outcome = facts.outcomes.get(rule)
    # Only a rule that ran and found nothing shows that there is nothing.
    return "absent" if outcome is not None and outcome.status == "passed" else "unknown"


def _runs_of(
    states: Sequence[model.FindingState],
) -> list[tuple[int | None, int, int, int | None]]:
    """Absent before, first, last and gone of each occurrence."""
    runs: list[tuple[int | None, int, int, int | None]] = []
    absent: int | None = None
    first: int | None = None
    last = 0
    for place, state in enumerate(states):
        if state == "found":
            first, last = place if first is None else first, place
        elif state == "absent":
            if first is not None:
                runs.append((absent, first, last, place))
            first, absent = None, place
    if first is not None:
        runs.append((absent, first, last, None))
    return runs
