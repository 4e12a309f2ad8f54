from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze, load
from tb_perfadvisor.engine.analysis import RankedFinding
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.ranking import first_finding
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.formats.wording import together_text

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
    assert report.first is None


def test_every_output_leads_with_it() -> None:
    report = analyze(SLOW)
    assert report.first is not None
    assert (report.first.rule_id, report.first.index) == ("loader-in-main-process", 1)
    assert TITLE.partition(":")[0] in report.headline
    for format in ("text", "markdown", "brief"):
        assert "Load batches in worker processes" in render(document([report]), format)[:4000]


def test_what_several_changes_save_together() -> None:
    report = analyze(SLOW)
    assert together_text(report) == ""  # one change
    (saving,) = (each.saving for each in report.findings[:1])
    assert saving is not None
    half = replace(saving, marginal_ns=saving.marginal_ns // 2)
    first = replace(report.findings[0], saving=half)
    text = together_text(replace(report, findings=[first, first]))
    assert text.startswith("2 changes together save 36.6 ms per step (31.")
