"""What counts as right in programs of several ranks."""

from __future__ import annotations

from rank_causes import CAUSES, Verdict, page
from tb_perfadvisor.rules.registry import find_rule


def test_causes_name_rules_that_exist() -> None:
    for cause in CAUSES:
        for rule in cause.rules:
            assert find_rule(rule).id == rule


def test_a_page_counts_first_findings_ranks_and_false_alarms() -> None:
    late = next(cause for cause in CAUSES if cause.has_odd_rank)
    balanced = next(cause for cause in CAUSES if not cause.rules)
    verdicts = [
        Verdict(late, "late-01", "straggler", True, True),
        Verdict(late, "late-02", "step-gap", True, False),
        Verdict(balanced, "balanced-01", "exposed-communication", False, None),
        Verdict(balanced, "balanced-02", "straggler", True, None),
    ]
    lines = list(page(verdicts))
    assert f"| {late.what} | 2 | 1 of 2 | 1 of 2 | – |" in lines
    assert f"| {balanced.what} | 2 | – | – | 1 |" in lines
    assert "| **all** | 4 | 50% | 50% | 1 |" in lines
    assert [line for line in lines if "first is" in line] == [
        "\n- late-02: first is step-gap",
        "\n- balanced-02: first is straggler",
    ]
