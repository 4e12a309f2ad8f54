"""Reports of profiles whose runs logged scalars: true step times, real savings, costs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tb_perfadvisor import analyze
from tb_perfadvisor.cli import app
from tb_perfadvisor.ingest.event_files import runs
from tests.support.command import SLOW, run
from tests.support.event_files import write_scalar

STEP_S = 0.1


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """The slow demo in a run of 2,000 steps of 100 ms, recorded after about 1,000 of them."""
    shutil.copytree(SLOW, tmp_path / "run")
    recorded = analyze(tmp_path / "run").recorded
    assert recorded is not None
    start_s = recorded.start_unix_ns / 1e9 - 1_000 * STEP_S
    times = {step: start_s + step * STEP_S for step in range(0, 2_001, 10)}
    write_scalar(tmp_path / "run", "train/loss", times)
    return tmp_path


def whole_run(*arguments: object) -> dict[str, Any]:
    report = json.loads(run("analyze", *arguments, "--format", "json").stdout)["reports"][0]
    return dict(report["whole_run"])


def test_report_says_the_true_step_time_and_real_savings(logdir: Path) -> None:
    found = whole_run(logdir)
    report = analyze(logdir)
    assert report.combined_saving is not None
    assert found["step_ns"] == pytest.approx(1e8, rel=1e-6)
    assert found["slowdown"] == pytest.approx(report.steps.median_ns / 1e8 - 1)  # type: ignore[operator]
    # The profile's mean step is longer, and its saving shrinks with it.
    scale = 1e8 / report.overview.step_time_ns  # type: ignore[operator]
    expected = report.combined_saving.expected_ns * scale
    assert found["saving"]["expected_ns"] == pytest.approx(expected, rel=1e-6)
    assert found["saving"]["logged_ns"] == 2_000 * found["saving"]["expected_ns"]
    assert found["saving"]["rest_ns"] is None
    assert found["cost"] is None


def test_text_and_markdown_have_the_same_sentences(logdir: Path) -> None:
    options = ("--price-per-device-hour", "3", "--total-steps", "12000")
    sentences = whole_run(logdir, *options)["sentences"]
    assert sentences[0].startswith("100 ms per step without the profiler; steps were 1")
    assert "over the 10,000 steps left" in sentences[1]
    # One rank on the CPU: 3 x 24 a day; 200 s cost 3 x 200 / 3600 = 0.17.
    assert "1 device at $3.00 an hour: about $72.00 a day" in sentences[2]
    assert "The steps logged so far cost $0.17." in sentences[2]
    for format in ("text", "markdown"):
        shown = run("analyze", logdir, *options, "--format", format, "--full").stdout
        assert "100 ms per step without the profiler" in " ".join(shown.split())
        assert "over the 10,000 steps left" in " ".join(shown.split())


def test_stored_report_gets_the_scalars_of_now(logdir: Path) -> None:
    assert whole_run(logdir)["last_step"] == 2_000
    (events,) = (logdir / "run").glob("*tfevents*")
    recorded = analyze(logdir).recorded
    assert recorded is not None
    start_s = recorded.start_unix_ns / 1e9 - 1_000 * STEP_S
    events.unlink()
    write_scalar(
        logdir / "run", "loss", {step: start_s + step * STEP_S for step in range(0, 3_001, 10)}
    )
    assert whole_run(logdir)["last_step"] == 3_000


def test_large_event_files_are_named_not_read(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_BYTES_BESIDE_A_REPORT", 100)
    done = CliRunner().invoke(app, ["analyze", str(logdir), "--format", "json"])
    document = json.loads(done.stdout)
    assert document["reports"][0]["whole_run"] is None
    (rejected,) = document["rejected"]
    assert rejected["path"] == "run"
    assert "`perfadvisor training` reads them" in rejected["reason"]


def test_training_names_a_profile_that_cannot_be_read(logdir: Path) -> None:
    (logdir / "run" / "other.1.pt.trace.json").write_bytes(b"\x00 no JSON")
    done = CliRunner().invoke(app, ["training", str(logdir)])
    assert done.exit_code == 0, done.output
    assert "100 ms per step without the profiler" in done.stdout
    notes = [line for line in done.stderr.splitlines() if "was not read" in line]
    assert [note.split()[3] for note in notes] == ["run/other.1.pt.trace.json"]


@pytest.fixture
def titan(logdir: Path) -> Path:
    """The same run with the directories of torchtitan."""
    run = logdir / "run"
    (trace,) = run.glob("*.pt.trace.json*")
    (events,) = run.glob("*tfevents*")
    profile, scalars = run / "profile_traces" / "iteration_1000", run / "tb" / "20251122-0930"
    profile.mkdir(parents=True)
    scalars.mkdir(parents=True)
    trace.rename(profile / "rank0_trace.json.gz")
    events.rename(scalars / events.name)
    return logdir


def test_profile_beside_its_event_files_is_placed_by_time(titan: Path) -> None:
    found = whole_run(titan)
    assert found["run"] == "run/tb/20251122-0930"
    assert found["step_ns"] == pytest.approx(1e8, rel=1e-6)
    described = json.loads(run("training", titan, "--format", "json").stdout)
    assert [each["run"] for each in described] == ["run/tb/20251122-0930"]
    (recording,) = described[0]["recordings"]
    assert recording["first_step"] == 1_000
    assert recording["session"] == "iteration_1000/rank0_trace"
    (about,) = described[0]["profiles"].values()
    assert about["sentences"] == found["sentences"]


def test_profile_of_one_of_two_runs_is_said_to_be_unknown(titan: Path) -> None:
    shutil.copytree(titan / "run" / "tb" / "20251122-0930", titan / "run" / "tb" / "other")
    done = CliRunner().invoke(app, ["analyze", str(titan), "--format", "json"])
    document = json.loads(done.stdout)
    assert document["reports"][0]["whole_run"] is None
    (rejected,) = document["rejected"]
    assert rejected["path"] == "run/profile_traces/iteration_1000"
    assert "several runs were logging" in rejected["reason"]
    described = json.loads(run("training", titan, "--format", "json").stdout)
    assert [each["recordings"] for each in described] == [[], []]
