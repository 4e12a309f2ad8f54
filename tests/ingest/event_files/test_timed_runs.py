"""The run that a profile belongs to, if only the time of the recording can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files import timed_runs
from tb_perfadvisor.ingest.event_files.runs import RunsByPlace, event_runs
from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
from tests.support.event_files import write_scalar

START_S = 1_700_000_000


def span(start_s: float, end_s: float) -> tuple[int, int]:
    return round((START_S + start_s) * 1e9), round((START_S + end_s) * 1e9)


def put_run(logdir: Path, name: str, start_s: int, end_s: int) -> Path:
    """A run that logged each second; as torch.utils.tensorboard names its files."""
    directory = logdir / name
    write_scalar(
        directory, "loss", {second: START_S + second for second in range(start_s, end_s + 1)}
    )
    name = f"events.out.tfevents.{START_S + start_s}.host.17.0"
    return (directory / "events.out.tfevents.1.host").rename(directory / name)


def timed(logdir: Path) -> TimedRuns:
    return TimedRuns(RunsByPlace(event_runs(discover(logdir))).candidates("profile_traces"))


@pytest.fixture
def two_runs(tmp_path: Path) -> TimedRuns:
    """One after the other, as when a job is started again in the same directory."""
    put_run(tmp_path, "tb/first", 0, 100)
    put_run(tmp_path, "tb/second", 200, 300)
    return timed(tmp_path)


def test_time_of_the_recording_decides(two_runs: TimedRuns) -> None:
    assert two_runs.run_of(span(50, 51)).run == "tb/first"
    assert two_runs.run_of(span(250, 251)).run == "tb/second"
    assert two_runs.run_of(span(0, 100)).run == "tb/first"


@pytest.mark.parametrize("recorded", [(150, 151), (99, 101), (-1, 1), (299, 400), (50, 250)])
def test_recording_outside_of_every_run_has_none(
    two_runs: TimedRuns, recorded: tuple[float, float]
) -> None:
    with pytest.raises(UnknownRunError, match="none of the runs") as raised:
        two_runs.run_of(span(*recorded))
    assert not raised.value.is_ambiguous


def test_profile_without_a_clock_has_no_run(two_runs: TimedRuns) -> None:
    with pytest.raises(UnknownRunError, match="does not say when"):
        two_runs.run_of(None)


def test_runs_at_the_same_time_are_not_told_apart(tmp_path: Path) -> None:
    put_run(tmp_path, "a/tb", 0, 100)
    put_run(tmp_path, "b/tb", 10, 90)
    runs = timed(tmp_path)
    assert runs.run_of(span(5, 6)).run == "a/tb"
    with pytest.raises(UnknownRunError, match=r"several runs .*: a/tb and b/tb") as raised:
        runs.run_of(span(50, 51))
    assert raised.value.is_ambiguous


def test_run_that_logged_no_steps_is_none(tmp_path: Path) -> None:
    put_run(tmp_path, "tb", 0, 100)
    # SummaryWriter.add_hparams writes a run of its own, with a single point.
    put_run(tmp_path, "tb/1700000000.5", 0, 0)
    assert timed(tmp_path).run_of(span(50, 51)).run == "tb"


def test_files_that_cannot_fit_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = put_run(tmp_path, "before", 0, 10)
    os.utime(before, (START_S + 10, START_S + 10))
    put_run(tmp_path, "at", 20, 40)
    put_run(tmp_path, "after", 50, 60)
    read: list[str] = []
    read_run = timed_runs.read_run

    def watched(run: timed_runs.EventRun, *others: object) -> object:
        read.append(run.run)
        return read_run(run)

    monkeypatch.setattr(timed_runs, "read_run", watched)
    runs = timed(tmp_path)
    assert runs.run_of(span(30, 31)).run == "at"
    assert read == ["at"]
    runs.run_of(span(32, 33))
    assert read == ["at"]


def test_many_runs_at_the_same_time_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        put_run(tmp_path, f"tb/{number}", 0, 10)
    monkeypatch.setattr(timed_runs, "read_run", None)
    with pytest.raises(UnknownRunError, match="tb/0, tb/1 and 7 more"):
        timed(tmp_path).run_of(span(5, 6))
