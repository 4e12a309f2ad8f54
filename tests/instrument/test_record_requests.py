"""Asking a running program to record: who may, and how often. No clock and no other process."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tb_perfadvisor.instrument import record_requests
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.schedule import Plan
from tb_perfadvisor.instrument.record_requests import (
    PROGRAM,
    REQUEST,
    Requests,
    ask,
    programs_below,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run whose program, this process, can be asked."""
    directory = tmp_path / "lm" / "run"
    Requests(directory).announce()
    return directory


def test_a_request_is_granted_once_and_once_a_minute(run: Path) -> None:
    requests = Requests(run)
    assert not requests.take(0.0)
    assert ask(run) == "asked"
    assert ask(run) == "asked before"
    # It looked at 0.0 s, and looks again after a quarter of a second.
    assert not requests.take(0.24)
    assert requests.take(0.25)
    assert not (run / REQUEST).exists()
    assert ask(run) == "asked"
    assert not requests.take(60.24)
    assert requests.take(60.5)


def test_programs_are_found_until_they_end(run: Path, tmp_path: Path) -> None:
    assert programs_below(tmp_path) == [run]
    Requests(run).withdraw()
    assert programs_below(tmp_path) == []
    assert ask(run) == "cannot be asked"


def test_a_program_that_has_died_cannot_be_asked(run: Path) -> None:
    # No process has this number: Linux has at most 2^22.
    said = {"host": socket.gethostname(), "process": (1 << 22) + 1}
    (run / PROGRAM).write_text(json.dumps(said))
    assert ask(run) == "cannot be asked"
    # Whether one of another machine lives is not known here.
    (run / PROGRAM).write_text(json.dumps({**said, "host": "elsewhere"}))
    assert ask(run) == "asked"


@pytest.mark.parametrize("said", [b"", b"[]", b'{"process": 1}', b'{"process": "x", "host": ""}'])
def test_what_is_no_program_is_none(said: bytes, run: Path) -> None:
    (run / PROGRAM).write_bytes(said)
    assert ask(run) == "cannot be asked"


def test_links_are_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    (run / REQUEST).symlink_to(other)
    assert ask(run) == "cannot be asked"
    assert not Requests(run).take(0.0)
    (run / REQUEST).unlink()
    (run / REQUEST).hardlink_to(other)
    assert not Requests(run).take(0.0)
    (run / REQUEST).unlink()
    (tmp_path / "linked").symlink_to(run.parent, target_is_directory=True)
    assert programs_below(tmp_path) == [run]
    (run / PROGRAM).rename(other)
    (run / PROGRAM).symlink_to(other)
    assert ask(run) == "cannot be asked"


def test_files_of_another_user_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(run) == "asked"
    us = os.geteuid()
    monkeypatch.setattr(record_requests.os, "geteuid", lambda: us + 1)
    assert not Requests(run).take(0.0)
    assert ask(run) == "cannot be asked"


class _Recorder:
    file_prefix, warm_up = "", 1

    def __init__(self) -> None:
        self.started: list[int] = []

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        self.started.append(first_step)
        directory.mkdir(parents=True)
        (directory / "mine.pb").write_bytes(b"x")
        self._last = first_step + steps
        self._now = first_step

    def step(self) -> bool:
        self._now += 1
        return self._now == self._last

    def stop(self) -> None:
        pass


def test_a_profiler_records_the_steps_after_a_request(tmp_path: Path) -> None:
    now_s = 0.0
    recorder = _Recorder()
    plan = Plan(every=1_000, first=500)
    profiler = ContinuousProfiler(tmp_path / "run", recorder, plan, clock=lambda: now_s)
    for number in range(1, 200):
        now_s += 1.0
        profiler.step()
        if number in (10, 40):
            assert ask(tmp_path / "run") == "asked"
    profiler.close()
    # The second one waits until a minute has passed since the first.
    assert recorder.started == [11, 71]
    assert programs_below(tmp_path) == []
