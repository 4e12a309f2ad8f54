"""When to record, and by which settings."""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from tb_perfadvisor.errors import UsageError

Reason = Literal["early", "periodic", "slow step", "requested"]

_JUDGED: Final = 100
"""Steps whose median is the usual time: recent ones, because a run changes."""
_FEWEST: Final = 20
"""Among fewer steps, none is usual."""
_RENEWED_EVERY: Final = 10
"""The median of a hundred steps takes ten microseconds, and changes slowly."""
SETTLED: Final = 5
_SETTLED_WITHIN: Final = 2.0
LATEST_START: Final = 200
"""Steps that are uneven for longer are not warm-up."""
_PAIR_REST: Final = 4
"""Steps from the end of the first recording to the rich one: writing slows what follows."""
_LONG: Final = 3.0
_ALIKE: Final = 2.0
_LONG_SHARE: Final = 0.25
_LONGEST_CYCLE: Final = 32
"""Where steps of three times the median take a quarter of the time, are alike, and come regularly,
every 32 steps or more often, a recording has a whole cycle: those steps collect samples, evaluate
or write. Of two steps, twice as much: they may be long by chance."""
_SLOW_SHARE: Final = 0.05
"""Slow steps that take less of the time are not what makes a program slow: interrupts, and what
Python does now and then. In a fast loop, there are many of them."""
_TRIES: Final = 20
"""A recording that would cost too much is considered again so often per period."""
_REST_SHARE: Final = 5
"""After a slow step, at most five recordings for each periodic one."""
_LONG_S: Final = 3.0
"""Whatever took so long is recorded from the next step on: there may be few more. Of longer steps,
an early recording has fewer than planned."""
_MANY: Final = 4
_LEAST_REST: Final = 20
"""A recording of many times the planned steps is followed by many more that are not recorded."""


def has_settled(durations: Iterable[float]) -> bool:
    """Whether warm-up is over: the last steps take no more than twice their median.

    Steps that compile or tune kernels take many times as long.
    """
    last = [*durations][-SETTLED:]
    return len(last) == SETTLED and max(last) <= _SETTLED_WITHIN * statistics.median(last)


class Plan(Struct, frozen=True):
    """When to record, and how much."""

    every: int = 1_000
    """Steps from the start of one periodic recording to the next."""
    steps: int = 5
    """Steps that a recording keeps."""
    first: int = 20
    """Steps before the first recording, at least."""
    slower_than: float | None = 3.0
    """Record after a step that took this many times the median; None for never."""
    rich_every: int = 4
    """Each of these recordings also has shapes, memory and stacks; 0 for none."""
    early: int | None = None
    """Steps before a recording that is kept only if the program ends before another."""
    pairs: bool = False
    """Whether a rich recording follows the first one soon, instead of `rich_every`."""
    most_share: float | None = None
    """The most that recordings may cost of the time after the first minute; None for no limit."""
    most_bytes: int | None = None
    """What all recordings may take on disk, beyond the newest and the rich one; None: no limit."""
    is_fixed: bool = False
    """Whether only the number of the step decides, so that all ranks record the same steps."""

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be carried out."""
        if self.steps < 1 or self.every < 2 * self.steps + 2:
            raise UsageError(
                f"every={self.every} leaves no time between recordings of {self.steps} steps.",
                hint="Choose a larger `every`, such as 1000.",
            )
        if self.slower_than is not None and self.slower_than <= 1:
            raise UsageError("slower_than must be above 1: usual steps are no reason to record.")


class Start(Struct, frozen=True):
    """A recording that begins with the next step."""

    reason: Reason
    is_rich: bool


class Schedule:
    """Is told of each step, and answers whether to record from the next step on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._count = 0
        self._recordings = 0
        self._started_at: int | None = None
        self._is_early_done = plan.early is None
        self._durations: deque[float] = deque(maxlen=_JUDGED)
        self._numbers: deque[int] = deque(maxlen=_JUDGED)
        """The steps that took these times."""
        self._slow_s: float | None = None
        self._elapsed_s = self._all_s = self._all_slow_s = 0.0
        """The time of all steps, of those that were judged, and of the slow ones."""
        self._recorded = 0
        """Steps of the last recording."""

    @property
    def usual_s(self) -> float | None:
        """The median time of the last steps that were not recorded; None before any."""
        return statistics.median(self._durations) if self._durations else None

    @property
    def slow_matters(self) -> bool:
        """Whether slow steps take a part of the time that is worth looking at."""
        return self._all_slow_s >= _SLOW_SHARE * self._all_s

    def has_run(self, steps: int, seconds: float) -> None:
        """The loop had made some steps before anybody counted them."""
        self._elapsed_s += seconds
        self._durations.append(seconds / steps)
        self._numbers.append(0)

    def steps_of(self, start: Start) -> int:
        """How many steps a recording keeps: fewer than planned if it is early and they are long."""
        steps = self.steps_of_recording
        if start.reason != "early" or not self._durations:
            return steps
        return max(1, min(steps, int(_LONG_S / statistics.median(self._durations))))

    @property
    def steps_of_recording(self) -> int:
        """How many steps a recording keeps: more than planned if some are regularly longer."""
        if self.plan.is_fixed or not self._durations:
            return self.plan.steps
        median_s = statistics.median(self._durations)
        pairs = zip(self._numbers, self._durations, strict=True)
        long = {number: each for number, each in pairs if each > _LONG * median_s}
        if len(long) < 2 or max(long.values()) > _ALIKE * min(long.values()):
            return self.plan.steps
        gaps = [after - before for before, after in pairwise(long)]
        share = sum(long.values()) / sum(self._durations)
        # Steps that were recorded between took no time that counts, so that a gap may be two.
        is_regular = all(gap % min(gaps) == 0 for gap in gaps)
        least = _LONG_SHARE if len(gaps) > 1 else 2 * _LONG_SHARE
        if not is_regular or share < least or min(gaps) > _LONGEST_CYCLE:
            return self.plan.steps
        return max(self.plan.steps, min(gaps))

    def step_ended(self, duration_s: float | None) -> Start | None:
        """A step ended that was not recorded; None if its time is not comparable."""
        self._count += 1
        self._elapsed_s += duration_s or 0.0
        is_slow = self._judge(duration_s)
        if self._started_at is None:
            if self._is_warmed_up():
                return self._start("periodic")
            return None if self._is_early_done else self._early()
        since = self._count - self._started_at
        if self.plan.pairs and self._recordings == 1 and since >= self._rested_after:
            self._recordings += 1
            return Start("periodic", is_rich=True)
        least = _LEAST_REST * self._recorded if self._recorded > _MANY * self.plan.steps else 0
        if since >= max(self.plan.every, least):
            return self._start("periodic")
        if is_slow and since >= max(self.plan.every // _REST_SHARE, least):
            return self._start("slow step")
        return None

    @property
    def _rested_after(self) -> int:
        """The steps from the start of the first recording to the rich one."""
        return max(self._recorded, self.plan.steps) + _PAIR_REST

    def postpone(self) -> None:
        """The recording that was to begin does not: try again after some steps."""
        self._started_at = self._count - self.plan.every + max(self.plan.every // _TRIES, 1)

    def recorded_step_ended(self) -> None:
        """A step ended that was recorded or looked at: it counts, and its time does not."""
        self._count += 1
        self._recorded += 1

    def _judge(self, duration_s: float | None) -> bool:
        """Whether a step was unusually slow."""
        if duration_s is None or self.plan.slower_than is None:
            if duration_s is not None:
                self._remember(duration_s)
            return False
        is_slow = self._slow_s is not None and duration_s > self._slow_s
        if self._slow_s is not None:
            self._all_s += duration_s
            self._all_slow_s += duration_s * is_slow
        self._remember(duration_s)
        if self._count % _RENEWED_EVERY == 0 and len(self._durations) >= _FEWEST:
            self._slow_s = self.plan.slower_than * statistics.median(self._durations)
        return is_slow and not self.plan.is_fixed

    def _remember(self, duration_s: float) -> None:
        self._durations.append(duration_s)
        self._numbers.append(self._count)

    def _is_warmed_up(self) -> bool:
        if self._count < self.plan.first:
            return False
        is_late = self._count >= max(LATEST_START, self.plan.first)
        return self.plan.is_fixed or is_late or has_settled(self._durations)

    def _early(self) -> Start | None:
        if self._count < (self.plan.early or 0) and self._elapsed_s < _LONG_S:
            return None
        self._is_early_done = True
        return Start("early", is_rich=False)

    def _start(self, reason: Reason) -> Start:
        self._started_at, self._recorded = self._count, 0
        self._recordings += 1
        rich = 0 if self.plan.pairs else self.plan.rich_every
        return Start(reason, is_rich=rich > 0 and self._recordings % rich == 0)


_PROGRAM: Final = (
    "import os, sys\n"
    "getattr(os, 'nice', lambda value: None)(19)\n"
    "from tb_perfadvisor.cli import main\n"
    "main()\n"
)
_TIME_LIMIT_S: Final = 300


class Advisor:
    """One analysis at a time; a recording that comes meanwhile is not analyzed."""

    def __init__(
        self, log: logging.Logger, published: Path | None = None, *, advises: bool = True
    ) -> None:
        """Prepare."""
        self._log = log
        self._published = published
        self._advises = advises
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Any = None
        self.directory: Path | None = None
        """What is being analyzed, and so must not be deleted."""
        self._step = 0
        self._is_publishing = self._has_published = False

    def analyze(self, directory: Path, step: int) -> None:
        """Begin to analyze a recording."""
        if self._process is not None:
            return
        self._step = step
        self.directory = directory
        if self._advises:
            arguments = ["analyze", str(directory), "--format", "json"]
            self._start([*arguments, "--workers", "1", "--time-limit", str(_TIME_LIMIT_S)])
        else:
            self._publish()

    def _publish(self) -> None:
        """Write the findings of all recordings; what did not change is not analyzed again."""
        self.directory = self._published
        self._is_publishing = self._has_published = True
        self._start(["publish", str(self._published)])

    def _start(self, arguments: list[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        # The analysis must not take a device of the program, or record itself.
        hidden = {"CUDA_VISIBLE_DEVICES": "", "PERFADVISOR_PROFILING": "off"}
        lowered = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)  # on Windows
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **hidden},
            creationflags=lowered,
        )

    def poll(self) -> None:
        """Log the result if there is one. Costs nothing while nothing is analyzed."""
        if self._process is not None and self._process.poll() is not None:
            self._finish()

    def close(self) -> None:
        """Wait for what is being analyzed, and log it; publish what the whole run tells."""
        self._wait()
        if self._has_published:
            self._publish()
            self._wait()

    def _wait(self) -> None:
        while self._process is not None:
            try:
                self._process.wait(_TIME_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._finish()

    def _finish(self) -> None:
        assert self._process is not None
        status, self._process = self._process.returncode, None
        output, self._output = self._output, None
        with output:
            output.seek(0)
            text = output.read()
        self.directory = None
        did_publish, self._is_publishing = self._is_publishing, False
        if did_publish:
            if status != 0:
                self._log.warning("Perf Advisor could not publish to %s.", self._published)
            return
        if self._published is not None:
            self._publish()
        if status != 0:
            self._log.warning("Perf Advisor could not analyze step %d's recording.", self._step)
            return
        for report in json.loads(text)["reports"]:
            trust = report["trust"]
            doubt = f" Limited trust: {trust['reasons'][0]['in_short']}."
            self._log.info(
                "Perf Advisor, from step %d: %s.%s",
                self._step,
                report["headline"],
                doubt if trust["level"] == "limited" else "",
            )
