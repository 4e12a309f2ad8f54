"""A capture as one row of a table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import run_row
from tb_perfadvisor.report.formats.text import overview_table
from tb_perfadvisor.testing.lanes import draw
from tests.report.test_build import SLOW, report_of
from tests.support.compile_logs import example_log


@pytest.fixture(scope="module")
def report() -> model.Report:
    return report_of(draw(SLOW))


def with_devices(report: model.Report, *used: int | None) -> model.Report:
    worker = report.workers[report.reference_worker]
    assert worker.device is not None
    workers = [
        replace(worker, rank=rank, device=replace(worker.device, name="NVIDIA H100", used=count))
        for rank, count in enumerate(used)
    ]
    return replace(report, workers=workers, reference_worker=0)


def test_row_has_the_step_time_and_the_finding_to_begin_with(report: model.Report) -> None:
    row = run_row(report)
    assert report.first is not None
    first = report.findings[report.first.index]
    assert row.step_time_ns == 10_000_000  # two steps in 20 ms, as drawn
    assert (row.first_change, row.finding) == (first.title, first.rule_id)
    assert first.saving is not None
    assert (row.saves_share, row.severity) == (first.saving.share_expected, first.severity)


@pytest.mark.parametrize(
    ("used", "device"),
    [((1,), "NVIDIA H100"), ((1, 1, 1), "3 × NVIDIA H100"), ((None,), "NVIDIA H100")],
)
def test_device_counts_those_in_use(
    report: model.Report, used: tuple[int | None, ...], device: str
) -> None:
    assert run_row(with_devices(report, *used)).device == device


def test_a_log_of_compilation_names_no_device(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_bytes(example_log())
    assert run_row(analyze(path)).device == "unknown"


def test_second_finding_of_a_rule_has_a_number(report: model.Report) -> None:
    twice = replace(
        report,
        findings=[report.findings[0], report.findings[0]],
        first=model.FirstFinding(rule_id=report.findings[0].rule_id, index=1),
    )
    assert run_row(twice).finding == f"{report.findings[0].rule_id}~2"


def test_row_without_findings_is_empty(report: model.Report) -> None:
    row = run_row(replace(report, findings=[], first=None))
    assert (row.first_change, row.finding, row.saves_share, row.severity) == (None,) * 4


def test_terminal_names_frameworks_only_if_they_differ(report: model.Report) -> None:
    def printed(*reports: Any) -> str:
        console = Console(file=io.StringIO(), width=120, no_color=True)
        console.print(overview_table(list(reports)))
        file = console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue()

    jax = replace(report, framework="jax")
    assert "Framework" not in printed(report, report)
    text = printed(replace(report, framework="pytorch"), jax)
    assert "PyTorch" in text
    assert "JAX" in text
