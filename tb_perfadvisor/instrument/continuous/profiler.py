"""Records a few steps now and then, for as long as a program trains."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.instrument.capture_facts import LoadMeter, add_seen, write_facts
from tb_perfadvisor.instrument.continuous.recorders import (
    RICH,
    Recorder,
    Recordings,
    StoredRecording,
    delete,
    files_below,
)
from tb_perfadvisor.instrument.continuous.schedule import Advisor, Plan, Schedule, Start
from tb_perfadvisor.instrument.examination.examiner import Examiner
from tb_perfadvisor.instrument.examination.repeated_calls import RepeatedCalls
from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.record_requests import Requests
from tb_perfadvisor.instrument.stack_samples import StackSamples
from tb_perfadvisor.instrument.step_timers import StepTimers
from tb_perfadvisor.instrument.threads import at_exit
from tb_perfadvisor.instrument.user_code import loops_or_line
from tb_perfadvisor.machine.facts import Recording
from tb_perfadvisor.units import format_bytes

SWITCH: Final = "PERFADVISOR_PROFILING"
"""The environment variable that turns recording off."""
_FREE_S: Final = 60.0
"""In the first minute, recordings may cost more than their share."""
_LONG_STEP_S: Final = 0.2
"""A recording of such steps takes seconds to write, and a short program may end meanwhile. So their
tensors are looked at before."""
_SEEN_STEPS: Final = 3
"""The first steps show which loop makes them; looking at the stack takes time."""
_LOOP_S: Final = 2.0
"""What repeated for so long was a loop of the program, whatever came later."""
_LEAST_LOOP: Final = 0.25
"""Of the time of the longest loop. What took less than that is not worth a recording."""
_OFF: Final = frozenset({"0", "off", "false", "no"})

Clock = Callable[[], float]


def is_switched_off() -> bool:
    """Whether the user turned recording off for this process."""
    return os.environ.get(SWITCH, "").strip().lower() in _OFF


class Overhead(Struct, frozen=True):
    """What continuous profiling cost so far."""

    steps: int
    between_s: float
    """Time of the steps that were not recorded."""
    bookkeeping_s: float
    """The part of it that was spent here."""
    recording_s: float
    """Time of the steps that were recorded, and of starting, stopping and writing."""

    @property
    def share_between(self) -> float | None:
        """The part of the time between recordings that was spent here; None before any step."""
        return self.bookkeeping_s / self.between_s if self.between_s > 0 else None

    def __str__(self) -> str:
        """In one line."""
        share = self.share_between
        if share is None:
            return "no step between recordings"
        whole_s = self.between_s + self.recording_s
        return (
            f"{share:.3%} of the time between recordings, "
            f"{self.recording_s / whole_s:.1%} of all time with them"
        )


class EarlierLoop(Struct, frozen=True):
    """A loop that ended before the one that is recorded now."""

    step: str
    """What its steps were."""
    lasted_s: float
    recordings: list[StoredRecording]


class ContinuousProfiler:
    """Call `step()` at the end of each training step.

    It never raises once it has begun: if the framework's profiler fails, it logs why and stops
    recording.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        recorder: Recorder,
        plan: Plan,
        *,
        is_active: bool = True,
        keep_last: int = 5,
        keep_slowest: int = 1,
        advisor: Advisor | None = None,
        timers: StepTimers | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Prepare; the first recording begins after warm-up.

        Args:
            logdir: A run's directory; each recording becomes a directory in it.
            recorder: Of the framework.
            plan: When to record.
            is_active: Whether this process records; others only count steps.
            keep_last: How many of the latest recordings stay.
            keep_slowest: How many of those with the slowest steps stay, besides.
            advisor: Analyzes each recording.
            timers: Time every step, also where this process does not record.
            clock: In seconds; for tests.

        Raises:
            UsageError: If the directory is a URL, which profilers cannot write to.
        """
        if "://" in os.fspath(logdir):
            raise UsageError(
                "Profilers can only write to local directories.",
                where=os.fspath(logdir),
                hint="Record to a local directory and copy the profiles afterwards.",
            )
        self.log = logger()
        self.logs_summary = True
        """Whether `close` says what was recorded."""
        self.recorded_by: Literal["run", "continuous"] = "continuous"
        self.parts = Parts()
        """What the program was seen to make."""
        self.samples = StackSamples()
        self.samples.step_path = self.parts.step_path
        self.examiner: Examiner | RepeatedCalls | None = None
        """Looks at the tensors of a few steps, around the first recording; None if nobody does."""
        self._logdir = Path(logdir).expanduser()
        self._recorder = recorder
        self._schedule = Schedule(plan)
        self._recordings = Recordings(keep_last, keep_slowest, plan.most_bytes)
        self._advisor = advisor
        self._timers = timers
        self._clock = clock
        self._is_recorded = is_active
        self._is_active = is_active and not is_switched_off()
        self._is_closed = False
        self._failure = ""
        """Why the framework's profiler cannot go on; empty if it can."""
        self._load = LoadMeter()
        self._number = self._first_number = 0
        self._start: Start | None = None
        self._postponed: Start | None = None
        """The recording that begins when the tensors of some steps have been looked at."""
        self._was_postponed = False
        """Whether the recording under way is one of these."""
        self._looked_at: set[int] = set()
        """The first steps of recordings that know what was found in their loop."""
        self._first_step = 0
        self._files_before: set[Path] = set()
        self._recorded_from_s = 0.0
        self._ended_s: float | None = None
        self._is_comparable = True
        self._between_s = self._bookkeeping_s = self._recording_s = 0.0
        self._before_s = 0.0
        """The part of these times that was of earlier loops."""
        self.earlier: list[EarlierLoop] = []
        self.loops: set[tuple[str, int]] = set()
        """The loops around the steps that were recorded last, by file and line."""
        self._created_s = self._clock()
        self._free_s = self._recorded_before_s = 0.0
        self._costs_s: dict[bool, float] = {}
        """What the last recording cost; by whether it was a rich one."""
        # All ranks record the same steps, which are planned, or one records when it is asked.
        self._requests = Requests(self._logdir) if self._is_active and not plan.is_fixed else None
        if self._is_active or timers is not None:
            at_exit(self.close)

    @property
    def recordings(self) -> tuple[StoredRecording, ...]:
        """Those that are kept, in order."""
        return tuple(self._recordings.kept)

    @property
    def overhead(self) -> Overhead:
        """What it cost so far."""
        return Overhead(self._number, self._between_s, self._bookkeeping_s, self._recording_s)

    @property
    def lasted_s(self) -> float:
        """The time of the steps that it was told of."""
        return self._between_s + self._recording_s - self._before_s

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for the next steps to be recorded."""
        return self._requests is not None and self._requests.waits(self._clock())

    def step(self) -> None:
        """A training step ended."""
        timers = self._timers
        if timers is None and not self._is_active:
            return
        self._number += 1
        if timers is not None:
            timers.step_ended(self._number, is_usual=self._is_comparable and not self._is_looked_at)
        if self._is_active:
            self._step(sys._getframe(1))
        self._is_comparable = True
        if timers is not None:
            timers.begin()

    @property
    def _is_looked_at(self) -> bool:
        """Whether the step runs slower, because it is recorded or its tensors are looked at."""
        return self._start is not None or (self.examiner is not None and self.examiner.is_running)

    def _step(self, caller: FrameType) -> None:
        now_s = self._clock()
        duration_s = None if self._ended_s is None else now_s - self._ended_s
        try:
            if self._number == self._first_number + 1 and self._requests is not None:
                self._announce()
            if self.recorded_by == "continuous" and self._number <= _SEEN_STEPS:
                self.parts.add_step("step", caller)
            self.samples.step(threading.get_ident())
            if self.examiner is not None and self.examiner.is_running:
                self._examine(duration_s)
            elif self._start is None:
                if self.examiner is not None:
                    self.examiner.step()
                self._between(duration_s, now_s)
            else:
                self._during(duration_s)
        except Exception as error:  # a profiler must never end the training
            self._give_up(error)

    def discard(self) -> int:
        """Delete what was recorded: it was not of steps. Returns how many steps were counted."""
        if self.examiner is not None:
            with suppress(Exception):
                self.examiner.end()
        self._discard_unfinished()
        self._recordings.clear()
        self.samples.stop()
        if self._timers is not None:
            self._timers.discard()
        self._timers, self._is_active = None, False
        return self._number

    def begin_anew(self) -> None:
        """The program has moved on to another loop: record it like the first one."""
        self._schedule, self._postponed = Schedule(self._schedule.plan), None
        if isinstance(self.examiner, Examiner):
            self.examiner.drop()
        self._looked_at |= {each.first_step for each in self._recordings.kept}

    def follow(self, before: ContinuousProfiler, step: str = "") -> None:
        """Take another profiler's place: number the steps on, so that recordings differ.

        If `step` says what its steps were, they were of another loop, of which two recordings stay.
        """
        self.earlier = before.earlier
        if step and before.recordings and before.lasted_s >= _LOOP_S:
            before._recordings.keep_pair()
            before._add_seen()
            self.earlier.append(EarlierLoop(step, before.lasted_s, before._recordings.kept))
            before._recordings.kept = []
            self._between_s, self._bookkeeping_s = before._between_s, before._bookkeeping_s
            self._recording_s = self._free_s = before._recording_s
            self._before_s = self._between_s + self._recording_s
        self._number = self._first_number = before.discard()

    def has_run(self, steps: int, seconds: float) -> None:
        """The loop had made some steps before anybody counted them."""
        self._schedule.has_run(steps, seconds)

    def goes_on(self, seconds: float) -> None:
        """Steps went by that nobody counted, and took this long; looks at them count."""
        self._between_s += seconds
        self.samples.step()

    def skip(self) -> None:
        """The time up to now is not part of a step: an evaluation or a checkpoint."""
        self._is_comparable = False

    def close(self) -> None:
        """End a recording that is going on, and log what was recorded and what it cost."""
        timers, self._timers = self._timers, None
        if timers is not None:
            timers.close()
        if self._is_closed or not self._is_active:
            return
        self._is_closed = True
        # What follows the last step is none.
        if self._number <= self._first_step + self._recorder.warm_up and self._recordings.kept:
            self._discard_unfinished()
        if self._start is not None:
            try:
                self._write()
            except Exception as error:
                self._give_up(error)
        if self.examiner is not None:
            self.examiner.end()
        if self._requests is not None:
            self._requests.withdraw()
        self.samples.stop()
        self._add_seen()
        self._drop_short_loops()
        if self._advisor is not None:
            self._advisor.close()
        if self._number and self.logs_summary:
            self.log.info("Perf Advisor: %s", self.summary())
        self._is_active = False

    def summary(self) -> str:
        """What was recorded and what it cost, in one line."""
        if not self._is_recorded:
            return "this process is not recorded: another rank is."
        kept = [*self._recordings.kept, *(r for each in self.earlier for r in each.recordings)]
        count = len(kept)
        if not count and self._failure:
            return f"no recording in {self._number:,} steps: {self._failure}"
        if not count:
            return (
                f"no recording in {self._number - self._first_number:,} steps; the first begins "
                f"after {self._schedule.plan.first} steps, when their times have settled."
            )
        size_bytes = sum(each.size_bytes for each in kept)
        said = (
            f"{count} recording{'' if count == 1 else 's'} "
            f"({format_bytes(size_bytes)}) kept in {self._logdir}"
        )
        return f"{said}; cost: {self.overhead}."

    def __enter__(self) -> ContinuousProfiler:
        """Begin a loop."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the loop."""
        self.close()

    def _between(self, duration_s: float | None, now_s: float) -> None:
        start = self._schedule.step_ended(duration_s if self._is_comparable else None)
        if start is None and self._requests is not None and self._requests.take(now_s):
            start = Start("requested", is_rich=False)
        if self._advisor is not None:
            self._advisor.poll()
        self._ended_s = self._clock()
        if duration_s is not None:
            self._between_s += duration_s + (self._ended_s - now_s)
            self._bookkeeping_s += self._ended_s - now_s
        if start is None:
            return
        if start.reason != "requested" and not self._is_affordable(start):
            self._schedule.postpone()
        elif duration_s is not None and duration_s >= _LONG_STEP_S and self._begin_examining():
            self._postponed = start
        else:
            self._begin(start)

    def _announce(self) -> None:
        """Steps begin: say that they can be asked for."""
        try:
            assert self._requests is not None
            self._requests.announce()
        except OSError:  # a directory that cannot be written to shows when a recording is
            self._requests = None

    def _is_affordable(self, start: Start) -> bool:
        """Whether another recording keeps the cost after the first minute within its share."""
        limit = self._schedule.plan.most_share
        elapsed_s = self._clock() - self._created_s - _FREE_S
        if limit is None or elapsed_s <= 0:
            self._free_s = self._recording_s
            return True
        expected_s = self._costs_s.get(start.is_rich, self._costs_s.get(False, 0.0))
        return self._recording_s - self._free_s + expected_s <= limit * elapsed_s

    def _begin(self, start: Start) -> None:
        began_s, self._recorded_before_s = self._clock(), self._recording_s
        self._first_step = self._number
        self.parts.add_step("step", sys._getframe(1))
        self.loops = loops_or_line(sys._getframe(1))
        directory = self._directory(start)
        self._files_before = files_below(directory)
        steps = self._schedule.steps_of(start)
        self._was_postponed = False
        self._load.begin()
        self.samples.pause()
        self._recorder.start(directory, self._number, steps, is_rich=start.is_rich)
        self._start = start
        self._ended_s = self._recorded_from_s = self._clock()
        self._recording_s += self._ended_s - began_s

    def _during(self, duration_s: float | None) -> None:
        self._recording_s += duration_s or 0.0
        self._schedule.recorded_step_ended()
        if self._recorder.step():
            self._write()
        self._ended_s = self._clock()

    def _drop_short_loops(self) -> None:
        """Delete what was recorded of loops that took little of the program's time."""
        own_s = self.lasted_s if self._recordings.kept else 0.0
        least_s = _LEAST_LOOP * max([own_s, *(each.lasted_s for each in self.earlier)])
        for each in [each for each in self.earlier if each.lasted_s < least_s]:
            self.earlier.remove(each)
            for recording in each.recordings:
                delete(recording.files, recording.first_step)

    def _discard_unfinished(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            with suppress(Exception):
                self._recorder.stop()
            delete(self._files_of(start), self._first_step)

    def _write(self) -> None:
        began_s = self._clock()
        start, self._start = self._start, None
        assert start is not None
        mean_s = (began_s - self._recorded_from_s) / max(self._number - self._first_step, 1)
        self._recorder.stop()
        self.samples.go_on()
        directory = self._directory(start)
        files = self._files_of(start)
        files += self._write_facts(files, start)
        self._recording_s += self._clock() - began_s
        self._costs_s[start.is_rich] = self._recording_s - self._recorded_before_s
        if not files:
            return
        if self._timers is not None:
            self._timers.write()
        recording = StoredRecording(self._first_step, start.reason, start.is_rich, mean_s, files)
        in_use = self._advisor.directory if self._advisor is not None else None
        self._recordings.add(recording, in_use, slow_matters=self._schedule.slow_matters)
        if self._advisor is not None:
            self._advisor.analyze(directory, self._first_step)
        if self._was_postponed:
            self._add_found()
        elif not self._begin_examining():
            self._add_seen()

    def _files_of(self, start: Start) -> tuple[Path, ...]:
        written = files_below(self._directory(start)) - self._files_before
        prefix = self._recorder.file_prefix
        return tuple(sorted(path for path in written if path.name.startswith(prefix)))

    def _begin_examining(self) -> bool:
        """Look at the tensors of the next steps, unless that was done; whether it begins."""
        if self.examiner is None or self._is_closed:
            return False
        self.examiner.begin(self._schedule.steps_of_recording)
        if self.examiner.is_running:
            self.samples.pause()
        return self.examiner.is_running

    def _examine(self, duration_s: float | None) -> None:
        assert self.examiner is not None
        self._schedule.recorded_step_ended()
        began_s = self._clock()
        self._recording_s += duration_s or 0.0
        if self.examiner.step():
            self.samples.go_on()
            self._add_found()
        self._ended_s = self._clock()
        self._recording_s += self._ended_s - began_s
        start = self._postponed
        if start is not None and not self.examiner.is_running:
            self._postponed = None
            self._begin(start)
            self._was_postponed = True

    def _add_found(self) -> None:
        """Store what was found in the loop of the recordings that do not know it yet."""
        self._add_seen()
        self._looked_at |= {each.first_step for each in self._recordings.kept}

    def _add_seen(self) -> None:
        """Store what was seen since beside all recordings, and beside new ones what was found."""
        found = self.examiner.found if self.examiner is not None else None
        for recording in self._recordings.kept:
            is_known = recording.first_step in self._looked_at
            add_seen(recording.files, self.samples, None if is_known else found)

    def _write_facts(self, files: tuple[Path, ...], start: Start) -> tuple[Path, ...]:
        usual_s = self._schedule.usual_s
        recording = Recording(
            by=self.recorded_by,
            is_rich=start.is_rich,
            reason=start.reason,
            first_step=self._first_step,
            step_ns=None if usual_s is None else round(usual_s * 1e9),
        )
        load = self._load.end()
        return write_facts(files, recording, load, self.parts, self.samples)

    def _directory(self, start: Start) -> Path:
        return self._logdir / f"step_{self._first_step:08}{RICH if start.is_rich else ''}"

    def _give_up(self, error: Exception) -> None:
        self._is_active = False
        self._start = None
        is_ours = isinstance(error, PerfAdvisorError)
        self._failure = str(error) if is_ours else f"{type(error).__name__}: {error}."
        self.log.warning("Perf Advisor stopped recording: %s The training goes on.", self._failure)


def logger() -> logging.Logger:
    """Where messages go: to the program's log if it has one, and otherwise to stderr."""
    log = logging.getLogger("tb_perfadvisor.continuous")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    return log
