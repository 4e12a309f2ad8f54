"""The short form: small whatever the report holds, complete about what comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.formats.brief import MAX_BYTES, BriefDocument, render_brief, run_pattern
from tb_perfadvisor.report.formats.render import document
from tests.support.command import DEMO, SLOW, run

SAMPLES = Path(__file__).parents[2] / "frontend" / "dev" / "samples"


def sample(name: str) -> model.Report:
    return msgspec.json.decode((SAMPLES / f"{name}.report.json").read_bytes(), type=model.Report)


def brief_of(*reports: model.Report, path: str = "runs") -> BriefDocument:
    text = render_brief(document(reports), path)
    assert len(text.encode()) < MAX_BYTES
    return msgspec.json.decode(text, type=BriefDocument, strict=True)


def test_the_command_prints_what_to_do_first() -> None:
    done = run("analyze", SLOW, "--format", "brief")
    assert len(done.stdout.encode()) <= MAX_BYTES
    (report,) = json.loads(done.stdout)["reports"]
    assert report["mode"] == "training"
    assert report["input"] == ["DataLoader"]
    assert report["step"] == {"mean_ns": 115_557_939, "count": 5, "source": "ProfilerStep"}
    # 281,506,828 ns of input in five steps: docs/architecture.md follows this number.
    assert {"cause": "input", "ns": 56_301_365, "share": 0.4872} in report["breakdown"]
    assert report["first"] == "1a"
    first = next(each for each in report["findings"] if each["number"] == "1a")
    assert first["rule_id"] == "loader-in-main-process"
    assert first["saving"]["low_ns"] < first["saving"]["expected_ns"] < first["saving"]["high_ns"]
    assert "num_workers=4" in first["snippet"]
    assert first["more"] == f"perfadvisor analyze {SLOW} --select loader-in-main-process"


def test_a_finding_names_the_costliest_line() -> None:
    report = sample("train")
    place = model.Place(file="models/net.py", line=57, function="forward")
    finding = msgspec.structs.replace(report.findings[0], places=[place])
    brief = brief_of(msgspec.structs.replace(report, findings=[finding], first=None))
    assert brief.reports[0].findings[0].place == "models/net.py:57"


def test_five_findings_are_shown_and_the_others_are_counted() -> None:
    report = sample("train")
    (brief,) = brief_of(report).reports
    assert len(report.findings) > 5
    assert len(brief.findings) == 5
    assert brief.findings_truncated == len(report.findings) - 5


def test_the_finding_to_begin_with_is_always_shown() -> None:
    report = sample("train")
    last = len(report.findings) - 1
    first = model.FirstFinding(rule_id=report.findings[last].rule_id, index=last)
    (brief,) = brief_of(msgspec.structs.replace(report, first=first)).reports
    assert brief.first in [finding.number for finding in brief.findings]
    assert len(brief.findings) == 5


def test_long_texts_are_shortened_before_findings_are_dropped() -> None:
    report = sample("train")
    long = [
        msgspec.structs.replace(each, title="t" * 5000, summary="s" * 5000)
        for each in report.findings
    ]
    (brief,) = brief_of(msgspec.structs.replace(report, findings=long)).reports
    assert len(brief.findings) == 5
    assert brief.findings[0].title.endswith("…")


@pytest.mark.parametrize(
    "text",
    ["\x1b[31m" * 3000, "ß" * 9000, "\u202e" * 9000, "'" * 9000],
    ids=["escapes", "letters", "controls", "quotes"],
)
def test_no_name_makes_it_too_long(text: str) -> None:
    report = msgspec.structs.replace(sample("train"), run=text, session=text, headline=text)
    brief_of(*[report] * 30, path=text)


def test_several_captures_each_show_their_first_finding() -> None:
    done = run("analyze", DEMO, "--format", "brief")
    brief: dict[str, Any] = json.loads(done.stdout)
    assert len(done.stdout.encode()) <= MAX_BYTES
    assert all(len(report["findings"]) <= 1 for report in brief["reports"])
    assert brief["reports_truncated"] == 16 - len(brief["reports"])


def test_the_commands_of_several_captures_name_the_run() -> None:
    reports = [analyze(DEMO / name) for name in ("pytorch_input_slow", "pytorch_input_fixed")]
    (slow, _) = brief_of(*reports, path="demo_logs").reports
    command = "perfadvisor analyze demo_logs --run '^pytorch_input_slow$'"
    assert slow.more == command
    assert slow.findings[0].more == f"{command} --select loader-in-main-process"


def test_a_run_is_matched_by_its_name_alone() -> None:
    assert run_pattern("exp/lr-0") == "^exp/lr-0$"
    assert run_pattern("lr0.1 (a)") == r"^lr0\.1\ \(a\)$"
