from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.api import analyze, load
from tb_perfadvisor.engine.analysis import RankedFinding
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.ranking import first_finding
from tb_perfadvisor.report.formats.branches import first_entry
from tb_perfadvisor.report.formats.render import document, render

SLOW = Path(__file__).parents[2] / "demo_logs" / "pytorch_input_slow"


TITLE = "Load batches in worker processes: each takes 56.5 ms now"


@pytest.fixture(scope="module")
def findings() -> tuple[RankedFinding, ...]:
    (run,) = load(SLOW)
    return analyze_run(run, Config()).findings


def test_a_specific_finding_stands_for_the_general_one(findings: tuple[RankedFinding, ...]) -> None:
    ids = [ranked.rule.id for ranked in findings[:2]]
    assert ids == ["input-stall", "loader-in-main-process"]
    assert first_finding(findings) == 1


def test_a_specific_finding_that_would_save_much_less_does_not(
    findings: tuple[RankedFinding, ...],
) -> None:
    general, specific = findings[:2]
    assert general.finding.saving is not None
    assert specific.finding.saving is not None
    half_ns = general.finding.saving.expected_ns // 2
    small = replace(specific.finding, saving=replace(specific.finding.saving, expected_ns=half_ns))
    assert first_finding([general, replace(specific, finding=small)]) == 0


def test_a_finding_that_refines_another_rule_does_not(findings: tuple[RankedFinding, ...]) -> None:
    general, specific = findings[:2]
    assert first_finding([general, replace(specific, refines="launch-bound")]) == 0


def test_nothing_found_has_no_first_finding() -> None:
    assert first_finding([]) is None
    report = analyze(SLOW, Config(select=("padded-shapes",)))
    assert (report.first, first_entry(report)) == (None, None)


def test_a_single_finding_is_not_called_the_first() -> None:
    report = analyze(SLOW)
    assert first_entry(replace(report, findings=report.findings[:1])) is None


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("text", f"First: {TITLE} (finding 1a)"),
        (
            "markdown",
            f"**First:** {TITLE} (finding 1a)",
        ),
    ],
)
def test_text_formats_name_it_below_the_headline(format: str, line: str) -> None:
    report = analyze(SLOW)
    assert report.first is not None
    assert (report.first.rule_id, report.first.index) == ("loader-in-main-process", 1)
    lines = [text.strip() for text in render(document([report]), format).splitlines()]
    headline = next(place for place, text in enumerate(lines) if report.headline in text)
    assert 0 < lines.index(line) - headline <= 4
    alone = render(document([replace(report, findings=report.findings[:1])]), format)
    assert "First:" not in alone
