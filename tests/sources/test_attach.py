"""The lines of code around the places of a finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository, places_in, source_of, with_sources
from tests.support.command import SLOW, run

CODE = """\
import torch


def step(batch):
    loss = model(batch)
    return loss.item()
"""
OTHER = "x = 1\n" * 9


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "train.py").write_text(CODE, encoding="utf-8")
    return Repository(tmp_path)


def place(file: str = "app/train.py", line: int = 6, function: str = "step") -> model.Place:
    return model.Place(file=file, line=line, function=function)


def report_about(*places: model.Place) -> Report:
    report = analyze(SLOW)
    return replace(
        report, findings=[replace(finding, places=list(places)) for finding in report.findings]
    )


def test_the_lines_around_a_place(repository: Repository) -> None:
    source = source_of(place(), repository)
    assert source is not None
    assert source.path == "train.py"
    assert source.first_line == 4  # line 3 is blank
    assert source.lines == CODE.splitlines()[3:]
    assert source.note == ""


def test_a_changed_file_is_said(repository: Repository) -> None:
    short = source_of(place(line=60), repository)
    assert short is not None
    assert short.lines == []
    assert short.note.startswith("the file has 6 lines")
    renamed = source_of(place(function="train_one_epoch"), repository)
    assert renamed is not None
    assert renamed.note == "no function train_one_epoch there"


def test_the_line_at_which_a_recording_began_is_not_what_a_finding_is_about(tmp_path: Path) -> None:
    code = "def main():\n    for batch in loader:\n        step(batch)\n        profiler.step()\n"
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    source = source_of(place(line=4, function="main"), Repository(tmp_path))
    assert source is not None
    assert source.note == "the line that ran when the recording began"
    (tmp_path / "train.py").write_text(code.replace("profiler", "optimizer"), encoding="utf-8")
    source = source_of(place(line=4, function="main"), Repository(tmp_path))
    assert source is not None
    assert source.note == ""


def test_short_outputs_pass_over_the_call_of_the_profiler(tmp_path: Path) -> None:
    code = "def main():\n    for batch in loader:\n        step(batch)\n        profiler.step()\n"
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    called, costly = place(line=4, function="main"), place(line=3, function="main")
    for places, expected in (((called, costly), 3), ((called,), None)):
        found = with_sources(report_about(*places), Repository(tmp_path))
        (brief,) = json.loads(render(document([found]), "brief"))["reports"]
        sarif = json.loads(render(document([found]), "sarif"))["runs"][0]["results"][0]
        regions = [
            location["physicalLocation"]["region"]["startLine"]
            for location in sarif["locations"]
            if location["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
        ]
        assert brief["findings"][0]["place"] == (expected and f"app/train.py:{expected}")
        assert regions == ([] if expected is None else [expected])


def test_an_unknown_file_has_no_lines(repository: Repository) -> None:
    assert source_of(place(file="eval.py"), repository) is None


def test_ambiguity_is_said_unless_the_function_decides(tmp_path: Path) -> None:
    for folder, code in (("a", CODE), ("b", CODE), ("c", OTHER)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(code, encoding="utf-8")
    both = source_of(place("train.py"), Repository(tmp_path))
    assert both is not None
    assert both.path is None
    assert both.candidates == ["a/train.py", "b/train.py", "c/train.py"]
    (tmp_path / "b" / "train.py").write_text(OTHER, encoding="utf-8")
    one = source_of(place("train.py"), Repository(tmp_path))
    assert one is not None
    assert one.path == "a/train.py"


@pytest.mark.parametrize("label", ["encoder.layers.0 (Block)", "Block_0"])
def test_a_module_leads_to_its_class(tmp_path: Path, label: str) -> None:
    code = "import torch\n\nclass Block(torch.nn.Module):\n    pass\n"
    (tmp_path / "net.py").write_text(code, encoding="utf-8")
    column = model.TableColumn(key="module", label="Module", unit="")
    rows: list[list[model.Cell]] = [[label], ["Linear_3"], [None]]
    table = model.TableEvidence(title="", columns=[column], rows=rows, truncated=0)
    finding = replace(analyze(SLOW).findings[0], evidence=[table], places=[])
    (found,) = places_in(finding, Repository(tmp_path))
    assert (found.file, found.line, found.function) == ("net.py", 3, "Block")
    assert found.source is not None
    assert found.source.lines[2] == "class Block(torch.nn.Module):"


def link_of(repository: Repository, link: str) -> str | None:
    report = with_sources(report_about(place()), repository, link)
    source = report.findings[0].places[0].source
    assert source is not None
    return source.link


def test_links_follow_the_users_pattern(repository: Repository) -> None:
    page = link_of(repository, "https://host/me/repo/blob/main/{path}#L{line}")
    assert page == "https://host/me/repo/blob/main/train.py#L6"
    root = repository.root.resolve().as_posix().lstrip("/")
    assert link_of(repository, "vscode") == f"vscode://file/{root}/train.py:6"


@pytest.mark.parametrize(
    "link", ["javascript://{path}{line}", "{path}:{line}", "https://host/{path}"]
)
def test_other_patterns_are_refused(repository: Repository, link: str) -> None:
    with pytest.raises(UsageError):
        with_sources(report_about(place()), repository, link)


def test_text_markdown_and_sarif_show_the_lines(repository: Repository) -> None:
    report = with_sources(report_about(place()), repository)
    text = render(report, "text")
    assert "train.py:6 in step" in text
    assert ">    6      return loss.item()" in text
    assert "    >    6      return loss.item()" in render(report, "markdown")
    assert '"startLine": 6' in render(report, "sarif")
    assert '"uri": "train.py"' in render(report, "sarif")
    assert str(repository.root) not in render(report, "json")


def test_the_command_takes_a_repository(tmp_path: Path) -> None:
    assert run("analyze", SLOW, "--repo", tmp_path).returncode == 0
    refused = run("analyze", SLOW, "--repo", SLOW / "label.json", status=2)
    assert "is neither a directory nor a Python file" in refused.stderr
