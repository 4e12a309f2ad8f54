"""A bug costs one capture: the others are analyzed, and only the log has the traceback."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.api import analyses
from tb_perfadvisor.api.analyses import analyze_captures
from tb_perfadvisor.api.training import describe_runs
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.ingest import load
from tb_perfadvisor.ingest.discovery import discover
from tests.support.command import HEALTHY, SLOW, run
from tests.support.event_files import write_scalar

ID = re.compile(r"\(ZeroDivisionError, ([0-9a-f]{8})\)")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs; reading the one in the middle meets a bug."""
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "logs"
    for name, source in (("a", SLOW), ("broken", SLOW), ("c", HEALTHY)):
        shutil.copytree(source, root / name)
    real = load.load_worker

    def divide(root: str, recorded: Any, *rest: Any) -> Any:
        is_broken = f"{root}/{recorded.run}".rstrip("/.").endswith("broken")
        return 1 / 0 if is_broken else real(root, recorded, *rest)

    monkeypatch.setattr(load, "load_worker", divide)
    return root


def log_of(logs: Path) -> str:
    return (logs.parent / "cache" / "perfadvisor.log").read_text()


def test_analyze_reports_the_other_captures(logs: Path) -> None:
    result = run("analyze", logs, "--format", "json")
    document = json.loads(result.stdout)
    assert [report["run"] for report in document["reports"]] == ["a", "c"]
    (rejected,) = document["rejected"]
    assert rejected["path"].startswith("broken/")
    found = ID.search(rejected["reason"])
    assert found is not None
    assert found[1] in log_of(logs)
    assert "in divide" in log_of(logs)
    assert str(logs) not in result.stdout
    assert "note: the traceback of a bug is in" in result.stderr


def test_a_bug_in_the_analysis_is_contained_too(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = analyses.analyze_run

    def divide(run: Any, *arguments: Any) -> Any:
        return real(run, *arguments) if run.name != "c" else 1 / 0

    monkeypatch.setattr(analyses, "analyze_run", divide)
    document = json.loads(run("analyze", logs, "--format", "json").stdout)
    assert [report["run"] for report in document["reports"]] == ["a"]
    assert [file["path"].split("/")[0] for file in document["rejected"]] == ["broken", "c"]


def test_only_captures_with_a_bug_is_an_error_of_one_line(logs: Path) -> None:
    result = run("analyze", logs / "broken", status=2)
    assert result.stdout == ""
    assert ID.search(result.stderr)


def test_compare_leaves_the_capture_out(logs: Path) -> None:
    result = run("compare", logs / "a", logs)
    assert "c" in result.stdout
    assert ID.search(result.stderr)


def test_publish_writes_the_others(logs: Path) -> None:
    result = run("publish", logs)
    assert "wrote a/perf_advisor/" in result.stdout
    assert ID.search(result.stderr)


def test_the_api_goes_on_and_prints_nothing(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tb_perfadvisor.engine.config import Config

    listing = discover(logs)
    kinds = [type(result) for result in analyze_captures(listing, listing.captures, Config())]
    assert kinds.count(Rejected) == 1
    assert len(analyses.load(logs)) == 2
    assert capsys.readouterr() == ("", "")


def test_training_goes_on_without_the_profile(logs: Path) -> None:
    for name in ("a", "broken", "c"):
        write_scalar(logs / name, "loss", {0: 1.0, 1: 2.0, 2: 3.0})
    described = list(describe_runs(logs))
    assert [found.run for found in described] == ["a", "broken", "c"]
    assert [len(found.reports) for found in described] == [1, 0, 1]
    assert [len(found.unread) for found in described] == [0, 1, 0]


def test_a_bug_in_one_rank_leaves_that_rank_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    ranks = SLOW.parent / "synthetic_gpu_allreduce_8rank"
    real = load.load_worker

    def divide(root: str, recorded: Any, *rest: Any) -> Any:
        return real(root, recorded, *rest) if recorded.files[0].rank != 3 else 1 / 0

    monkeypatch.setattr(load, "load_worker", divide)
    result = run("analyze", ranks, "--format", "json", "--workers", "1")
    (report,) = json.loads(result.stdout)["reports"]
    assert len(report["workers"]) == 7
    assert ID.search(result.stdout)


def test_a_bug_in_sniffing_rejects_one_file(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tb_perfadvisor.ingest import discovery

    real = discovery.sniff
    (logs / "c" / "odd.pt.trace.json").write_bytes(b"{odd")

    def divide(head: bytes, *, is_claimed: bool) -> Any:
        return 1 / 0 if head == b"{odd" else real(head, is_claimed=is_claimed)

    monkeypatch.setattr(discovery, "sniff", divide)
    document = json.loads(run("analyze", logs, "--format", "json").stdout)
    assert [report["run"] for report in document["reports"]] == ["a", "c"]
    assert "c/odd.pt.trace.json" in [file["path"] for file in document["rejected"]]


def test_a_bug_elsewhere_ends_in_a_sentence(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tb_perfadvisor.report.formats import render

    def divide(*arguments: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(render, "render", divide)
    result = run("analyze", logs, "--format", "markdown", status=2)
    assert "error: the command failed because of a bug (ZeroDivisionError, " in result.stderr
    assert "in divide" in log_of(logs)


def test_a_log_that_cannot_be_written_is_left_out(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "file"))
    result = run("analyze", logs, "--format", "json")
    assert len(json.loads(result.stdout)["reports"]) == 2
    assert "the traceback" not in result.stderr


def test_a_long_log_begins_anew(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tb_perfadvisor import error_log

    monkeypatch.setattr(error_log, "_MOST_BYTES", 10)
    run("analyze", logs, "--no-cache")
    run("analyze", logs, "--no-cache")
    assert log_of(logs).count("Traceback") == 1
    assert (logs.parent / "cache" / "perfadvisor.old").exists()
