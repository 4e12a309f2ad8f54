"""Records programs by time, where nothing tells of steps.

The first recording begins early, because a program may last a few seconds only. Later ones are
longer and replace it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.instrument.capture_facts import LoadMeter, add_seen, write_facts
from tb_perfadvisor.instrument.continuous.recorders import (
    EARLY,
    RICH,
    Recordings,
    StoredRecording,
    files_below,
)
from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.program_loops import look_at_main
from tb_perfadvisor.instrument.record_requests import Requests
from tb_perfadvisor.instrument.stack_samples import StackSamples
from tb_perfadvisor.instrument.threads import SideThread, at_exit
from tb_perfadvisor.instrument.user_code import all_loops_around
from tb_perfadvisor.machine.facts import Recording

_ASKED_EVERY_S: Final = 0.5
_MOST_BYTES: Final = 64 << 20
"""A loop of many small operations fills this in seconds. Later recordings end before they do."""
_LOOKS: Final = 5
"""During a recording, to see which loops are in it."""
_STAYS: Final = 4
"""So many looks in a row in a loop that no recording has, and it is recorded, too."""
_MOST_LOOPS: Final = 5
_MOST_EARLY: Final = 5
"""So many times, a recording of a program that was not yet warm is followed by another."""


class TimeWindows(ABC):
    """Records windows of time in a thread of its own, until the program ends."""

    def __init__(
        self, settings: dict[str, Any], parts: Parts, tell: Callable[[str, str], None]
    ) -> None:
        """Prepare. `tell` hears a `summary` of recordings, or the `problem` that ended it."""
        self.parts = parts
        self._logdir = Path(settings["logdir"])
        self._first_s: float = settings["first_window_s"]
        self._window_s: float = settings["window_s"]
        self._after_s: float = settings["after_s"]
        self._every_s: float = settings["every_s"]
        self._tell = tell
        self._recordings = Recordings(keep_last=5, keep_slowest=0)
        self._load = LoadMeter()
        self._samples = StackSamples()
        self._requests = Requests(self._logdir)
        self._thread = SideThread(self._run)
        self.ends = self._thread.ends
        self.is_recording = False
        """Whether the framework's profiler runs, or what it recorded is being written."""
        self._is_dropped = False
        self._loops: set[tuple[str, int]] = set()
        """The loops that were recorded, by file and line."""
        self._left = _MOST_LOOPS
        self._cost_s = 0.0
        self._number = 0
        self._most_s = math.inf

    @property
    def reason(self) -> str:
        """Why it is recorded by time, if that is not usual for its framework."""
        return ""

    @abstractmethod
    def wait_for_work(self) -> bool:
        """Wait until the program computes; returns whether it is to be recorded."""

    def wait_for_quiet(self) -> None:  # noqa: B027 - nothing may tell of its warm-up
        """Wait until the program has warmed up."""

    def see(self, frame: FrameType | None) -> set[tuple[str, int]]:
        """The loops that the main thread is in."""
        return all_loops_around(frame)

    @abstractmethod
    def start_trace(self, directory: Path, *, is_rich: bool) -> None:
        """Begin a recording."""

    @abstractmethod
    def stop_trace(self, directory: Path) -> None:
        """End it, and write it."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing of a warm-up is in what was recorded since the last start, if known."""
        return True

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Begin to wait for the program's computations."""
        # JAX ends its devices when the program does; what is registered later runs earlier.
        at_exit(self.close)
        self._asks = is_wanted
        self._thread.start()

    @property
    def is_wanted(self) -> bool:
        """Whether the program still has no steps that are seen otherwise."""
        return self._asks()

    def close(self) -> None:
        """The program ends: keep what is being recorded."""
        self.ends.set()
        self._requests.withdraw()
        self._samples.step()
        self._samples.stop()
        # A recording ends on the thread that began it. Nothing else is worth waiting for.
        if self.is_recording:
            self._thread.join()
        for recording in self._recordings.kept:
            add_seen(recording.files, self._samples, None)

    def end(self) -> None:
        """Record no more: the program has steps that are seen otherwise."""
        self.ends.set()
        self._samples.stop()

    def discard(self) -> None:
        """Delete what was recorded: there are recordings of steps.

        It does not wait for a recording, which the thread ends and deletes.
        """
        self._is_dropped = True
        self.end()
        if not self.is_recording:
            self._recordings.clear()

    @property
    def summary(self) -> str:
        """What was recorded, in one line; empty for nothing."""
        kept = self._recordings.kept
        if not kept:
            return ""
        return (
            f"{len(kept)} recording{'' if len(kept) == 1 else 's'} kept in {self._logdir}, by time"
            f"{self.reason}; cost: {self._cost_s:.1f} s of starting and writing."
        )

    def _run(self) -> None:
        try:
            self._record_until_the_end()
        except PerfAdvisorError as error:
            self._tell("problem", str(error).rstrip("."))
        except Exception as error:  # the program goes on
            # One that ends takes apart what a profiler needs.
            if not self.ends.is_set():
                self._tell("problem", f"{type(error).__name__}: {error}")

    def _record_until_the_end(self) -> None:
        if not self.wait_for_work():
            return
        began_s = time.monotonic()
        with suppress(OSError):
            self._requests.announce()
        for _ in range(_MOST_EARLY):
            self.wait_for_quiet()
            if self._record(self._first_s):
                break
        self._wait_until(began_s + self._after_s)
        self._record(self._window_s)
        self._record(self._window_s / 2, is_rich=True)
        while self.is_wanted and not self.ends.is_set():
            self._wait_until(time.monotonic() + self._every_s)
            self._record(self._window_s)

    def _wait_until(self, at_s: float) -> None:
        """Wait, and record meanwhile what is asked for, and loops that were not recorded."""
        looks = 0
        while not self.ends.wait(min(max(at_s - time.monotonic(), 0.0), _ASKED_EVERY_S)):
            if time.monotonic() >= at_s:
                return
            loops = look_at_main(self.see)
            looks = looks + 1 if loops and loops.isdisjoint(self._loops) else 0
            if looks >= _STAYS and self._left and self.is_wanted:
                self._left, looks = self._left - 1, 0
                first, has_none = self._number, not self._loops
                if self._record(self._first_s) and has_none:
                    self._recordings.keep_from(first)  # the others fell beside the loops
            elif self.is_wanted and self._requests.take(time.monotonic()):
                self._record(self._window_s)

    def _record(self, seconds: float, *, is_rich: bool = False) -> bool:
        """Record some time; returns whether nothing in it was of a warm-up."""
        self.is_recording = True  # before the program is asked whether it ends
        try:
            if self.ends.is_set() or not self.is_wanted:
                return True
            return self._record_now(seconds, is_rich)
        finally:
            if self._is_dropped:
                self._recordings.clear()
            self.is_recording = False

    def _record_now(self, seconds: float, is_rich: bool) -> bool:
        began_s = time.monotonic()
        self._load.begin()
        self._samples.step()
        self._samples.pause()
        directory = self._logdir / f"step_{self._number:08}{RICH if is_rich else ''}"
        self.start_trace(directory, is_rich=is_rich)
        started_s = time.monotonic()
        for _ in range(_LOOKS):
            self._loops |= look_at_main(self.see)
            if self.ends.wait(min(seconds, self._most_s) / _LOOKS):
                break
        ended_s = time.monotonic()
        is_clean = self.is_clean
        reason = "periodic" if is_clean else EARLY
        # The program goes on while what was recorded is collected, which may take long.
        self._samples.go_on()
        self.stop_trace(directory)
        files = tuple(sorted(files_below(directory)))
        if not files:  # it was not wanted any more
            return is_clean
        recording = Recording("run", is_rich, reason)
        files += write_facts(files, recording, self._load.end(), self.parts, self._samples)
        stored = StoredRecording(self._number, reason, is_rich, ended_s - started_s, files)
        self._recordings.add(stored)
        self._most_s = _MOST_BYTES / max(stored.size_bytes, 1) * stored.mean_step_s
        self._number += 1
        self._cost_s += started_s - began_s + time.monotonic() - ended_s
        if not self._is_dropped:
            self._tell("summary", self.summary)
        return is_clean
