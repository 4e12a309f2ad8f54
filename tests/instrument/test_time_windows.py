"""A program waits for what is recorded by time only while that is to be kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.time_windows import TimeWindows

PATIENCE_S = 60.0


class Windows(TimeWindows):
    """A profiler that takes until it is told to write what it recorded."""

    is_clean = True

    def __init__(self, logdir: Path) -> None:
        times = dict.fromkeys(("first_window_s", "window_s", "after_s", "every_s"), PATIENCE_S)
        super().__init__({"logdir": str(logdir), **times}, Parts(), lambda what, text: None)
        self.begins, self.has_begun, self.may_end = (threading.Event() for _ in range(3))

    def wait_for_work(self) -> bool:
        while not self.begins.is_set() and not self.ends.wait(0.01):
            pass
        return not self.ends.is_set()

    def wait_for_quiet(self) -> None:
        pass

    def start_trace(self, directory: Path, *, is_rich: bool) -> None:
        self.has_begun.set()

    def stop_trace(self, directory: Path) -> None:
        assert self.may_end.wait(PATIENCE_S)
        directory.mkdir(parents=True)
        (directory / "host.1.pt.trace.json").write_text("{}", "utf-8")


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    made = Windows(tmp_path)
    made.start(lambda: True)
    return made


def recorded(windows: Windows) -> Windows:
    windows.begins.set()
    assert windows.has_begun.wait(PATIENCE_S)
    return windows


def test_steps_that_are_seen_do_not_wait_for_what_is_dropped(
    windows: Windows, tmp_path: Path
) -> None:
    recorded(windows).discard()
    assert windows.is_recording  # it has returned before the profiler has
    windows.may_end.set()
    windows.close()
    assert not windows.is_recording
    assert [*tmp_path.rglob("*.json")] == []


def test_a_program_that_ends_waits_for_what_is_kept(windows: Windows, tmp_path: Path) -> None:
    recorded(windows)
    threading.Timer(0.05, windows.may_end.set).start()
    windows.close()
    assert [*tmp_path.rglob("*.pt.trace.json")]


def test_a_program_that_ends_before_it_is_recorded_waits_for_nothing(windows: Windows) -> None:
    windows.close()
    assert not windows.has_begun.is_set()
