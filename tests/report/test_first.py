from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.api import analyze
from tb_perfadvisor.report import document
from tb_perfadvisor.report.first import first_change, first_line
from tb_perfadvisor.report.formats.encode import encode

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"


def test_the_specific_finding_speaks_for_the_general_one() -> None:
    findings = analyze(DEMO_LOGS / "pytorch_input_slow").findings
    assert [one.rule_id for one in findings[:2]] == ["input-stall", "loader-in-main-process"]
    assert first_change(findings) == 1


def test_a_specific_finding_that_would_save_much_less_does_not() -> None:
    general, specific = analyze(DEMO_LOGS / "pytorch_input_slow").findings[:2]
    assert general.saving is not None
    assert specific.saving is not None
    small = replace(specific.saving, expected_ns=general.saving.expected_ns // 2)
    assert first_change([general, replace(specific, saving=small)]) == 0
    # Nor one that refines another finding.
    assert first_change([general, replace(specific, refines="launch-bound")]) == 0


def test_nothing_found_is_no_change() -> None:
    assert first_change([]) is None
    assert first_line([]) is None


def test_one_finding_leaves_no_choice() -> None:
    assert first_line(analyze(DEMO_LOGS / "pytorch_input_slow").findings[:1]) is None


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("text", "First: Load batches in worker processes (finding 2)"),
        ("markdown", "**First:** Load batches in worker processes (finding 2)"),
    ],
)
def test_it_is_named_below_the_headline(format: str, line: str) -> None:
    report = analyze(DEMO_LOGS / "pytorch_input_slow")
    lines = [one.strip() for one in encode(document([report]), format).splitlines()]
    headline = next(place for place, one in enumerate(lines) if report.headline in one)
    assert 0 < lines.index(line) - headline <= 4
    alone = encode(document([replace(report, findings=report.findings[:1])]), format)
    assert "First:" not in alone
