"""The advice on the demo captures, judged by what was measured when they were recorded."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.rules.registry import all_rules

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
NAMES = sorted(path.parent.name for path in DEMO_LOGS.glob("*/label.json"))
RULE_IDS = {rule.id for rule in all_rules()}


@cache
def report_of(name: str) -> Report:
    return analyze(DEMO_LOGS / name)


def label_of(name: str) -> dict[str, Any]:
    label: dict[str, Any] = json.loads((DEMO_LOGS / name / "label.json").read_text("utf-8"))
    return label


def expects_a_finding(name: str) -> bool:
    return bool(RULE_IDS.intersection(label_of(name)["acceptable_first_findings"]))


SLOW = [name for name in NAMES if expects_a_finding(name)]


def test_every_slow_capture_has_a_rule() -> None:
    assert [name for name in NAMES if label_of(name)["role"] == "slow"] == SLOW
    assert len(SLOW) >= 6


@pytest.mark.parametrize("name", SLOW)
def test_the_first_finding_is_the_cause(name: str) -> None:
    first = report_of(name).findings[0]
    assert first.rule_id in label_of(name)["acceptable_first_findings"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_that_is_not_there(name: str) -> None:
    found = {finding.rule_id for finding in report_of(name).findings}
    assert found.isdisjoint(label_of(name)["must_not_find"])


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_fails(name: str) -> None:
    assert [outcome for outcome in report_of(name).outcomes if outcome.status == "failed"] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_as_long_as_the_script_saw(name: str) -> None:
    # The script's clock and the profile's markers differ by what lies between two steps; ranks
    # differ a little more.
    assert report_of(name).overview.step_time_ns == pytest.approx(
        label_of(name)["profiled_step_ns"], rel=0.1
    )


@pytest.mark.parametrize("name", SLOW)
def test_what_is_promised_is_about_what_the_fix_saves(
    name: str, record_property: pytest.RecordProperty
) -> None:
    slow, fixed = label_of(name), label_of(label_of(name)["pair"])
    saved_ns = slow["true_step_ns"]["median"] - fixed["true_step_ns"]["median"]
    combined = report_of(name).combined_saving
    assert combined is not None
    ratio = combined.expected_ns / saved_ns
    record_property("predicted_over_achieved", round(ratio, 3))
    assert 0.5 <= ratio <= 2, f"{combined.expected_ns:,} ns promised, {saved_ns:,} ns saved"
