"""The user's code in the tab: by the flags of TensorBoard alone."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.plugin.backend import Code
from tb_perfadvisor.plugin.loader import PerfAdvisorLoader
from tb_perfadvisor.report.report import Report
from tests.support.command import SLOW


def report_at_line_2() -> bytes:
    report = analyze(SLOW)
    place = model.Place(file="train.py", line=2, function="")
    findings = [replace(finding, places=[place]) for finding in report.findings]
    return msgspec.json.encode(replace(report, findings=findings))


def source_in(content: bytes) -> model.SourceExcerpt | None:
    return msgspec.json.decode(content, type=Report).findings[0].places[0].source


def test_a_report_shows_the_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nloss.item()\n", encoding="utf-8")
    code = Code(str(tmp_path), "https://host/{path}#L{line}")
    source = source_in(code.attach(report_at_line_2()))
    assert source is not None
    assert source.lines == ["import torch", "loss.item()"]
    assert source.link == "https://host/train.py#L2"


@pytest.mark.parametrize(
    ("directory", "link"), [("missing", ""), (".", "javascript://{path}{line}")]
)
def test_wrong_flags_leave_the_report_as_it_is(
    tmp_path: Path, directory: str, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = report_at_line_2()
    assert Code(str(tmp_path / directory), link).attach(content) == content


def test_tensorboard_has_the_flags() -> None:
    parser = argparse.ArgumentParser()
    PerfAdvisorLoader().define_flags(parser)
    flags = parser.parse_args(["--perfadvisor_repo", "code"])
    assert (flags.perfadvisor_repo, flags.perfadvisor_source_link) == ("code", "")
