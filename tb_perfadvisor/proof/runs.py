"""Runs one version of a program until its steps are measured, and ends it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.event_files.names import is_event_file
from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.instrument import hook, site
from tb_perfadvisor.instrument.continuous.profiler import SWITCH
from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.machine.load import load_between, moment, processes_of
from tb_perfadvisor.machine.this_machine import open_cores
from tb_perfadvisor.proof.snapshot import Snapshot, path_in_copy, safe_environment
from tb_perfadvisor.trace.tables import Float64

BLOCKS: Final = 12
_WINDOW_S: Final = 2.5
_POLL_S: Final = 0.02
_PATIENCE_S: Final = 5.0
"""What a program may take to end when it is asked to."""
_MOST_VALUES: Final = 50
_MOST_PRINTED_BYTES: Final = 1 << 20
_LONGEST_TEMP: Final = 60
"""Sockets in the directory for temporary files have names of at most 108 bytes."""
_LOSS = re.compile(rb"\bloss\b[^\d\n+-]{0,12}([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", re.IGNORECASE)


class Plan(Struct, frozen=True):
    """Which steps to measure; the first run chooses what is None."""

    begin: int | None = None
    block_steps: int | None = None
    checks: tuple[str, ...] = ()
    """Patterns of the names of tensors to compare."""


class Counters(Struct, frozen=True, array_like=True):
    """What a program has done up to the end of a block, at a time of its clock."""

    at_ns: int
    optimizer_steps: int
    backward_passes: int
    samples: int
    input_elements: int


class Run(Struct, frozen=True):
    """What one run showed."""

    steps: int
    begin: int | None
    """Steps before the window; None if it never began."""
    block_steps: int | None
    counters: tuple[Counters, ...]
    """At the begin of the window, and after each block."""
    start_up_s: float | None
    """From the start of the program to the begin of the window."""
    whole_s: float
    load: Load | None
    """How the cores were used during the window; None if it is unknown."""
    series: Mapping[str, tuple[float | None, ...]]
    """The first values of what the program computed or logged, by name."""
    tensors: Mapping[str, Float64]
    is_complete: bool
    problem: str
    """Why it says nothing; empty if it does."""
    versions: Mapping[str, str]
    accelerator: str

    @property
    def block_ns(self) -> Float64:
        """The time of each block."""
        return np.diff(np.array([each.at_ns for each in self.counters], np.float64))

    @property
    def step_ns(self) -> float | None:
        """The median time of a step, by blocks; None without blocks."""
        blocks = self.block_ns
        return float(np.median(blocks)) / (self.block_steps or 1) if len(blocks) else None


class Runner:
    """Runs a command in copies of its program, one after another, all in the same directory.

    The same directory, because the length of a path alone can change how fast a program is, and
    because the caches of compilers contain paths.
    """

    def __init__(
        self, snapshot: Snapshot, space: Path, command: Sequence[str], started_in: Path
    ) -> None:
        """Prepare.

        Args:
            snapshot: The program.
            space: As `working_space` makes it.
            command: What the user starts the program with.
            started_in: Where.
        """
        self.snapshot = snapshot
        self._space = space
        self._run = space / "run"
        self._program = self._run / "program"
        self._status = self._run / "status"
        self._command = _absolute(command, started_in)
        self._cores = open_cores()

    def measure(self, version: Path, name: str, plan: Plan, limit_s: float) -> Run:
        """Run a version until its steps are measured.

        Args:
            version: A copy of the program, which stays as it is.
            name: Of the version; each has compiler caches of its own.
            plan: Which steps to measure.
            limit_s: After which the run is ended, and says nothing.

        Raises:
            PerfAdvisorError: If it cannot be run.
        """
        measure = {
            **msgspec.to_builtins(plan),
            "blocks": BLOCKS,
            "window_s": _WINDOW_S,
            "parent": os.getpid(),
        }
        with self._started(version, name, {"measure": measure}, {SWITCH: "off"}) as process:
            began_s = time.monotonic()
            opened_s = before = after = None
            is_late = False
            while True:
                said = self._said()
                now_s = time.monotonic()
                if opened_s is None and any(each.get("is_open") for each in said):
                    opened_s, before = now_s, moment(processes_of(self._mark), self._cores)
                if any(each.get("is_complete") for each in said if not each.get("rank")):
                    after = moment(processes_of(self._mark), self._cores)
                    break
                if process.poll() is not None:
                    said = self._said()
                    break
                is_late = now_s - began_s > limit_s
                if is_late:
                    break
                time.sleep(_POLL_S)
            ended_s = time.monotonic()
        main = max(
            (each for each in said if each.get("boundaries")),
            key=lambda each: (-each.get("rank", 0), each["steps"]),
            default={},
        )
        return Run(
            steps=max((each.get("steps", 0) for each in said), default=0),
            begin=main.get("begin"),
            block_steps=main.get("block_steps"),
            counters=tuple(Counters(*row) for row in main.get("boundaries", ())),
            start_up_s=None if opened_s is None else opened_s - began_s,
            whole_s=ended_s - began_s,
            load=load_between(before, after),
            series=self._series(main),
            tensors=self._tensors(said),
            is_complete=main.get("is_complete", False),
            problem=self._problem(said, main, process.returncode, limit_s if is_late else None),
            versions=main.get("versions", {}),
            accelerator=main.get("accelerator", ""),
        )

    def record(self, version: Path, logdir: Path, limit_s: float) -> None:
        """Run a version until a few of its steps are recorded.

        Args:
            version: A copy of the program.
            logdir: Where to.
            limit_s: After which nothing more is waited for.

        Raises:
            PerfAdvisorError: If nothing was recorded.
        """
        recording = {
            "logdir": str(logdir),
            "plan": {"every": 100_000, "first": 20, "advise": False, "keep_slowest": 0},
            "after_s": 20.0,
            "every_s": 1e6,
            "window_s": 2.0,
        }
        with self._started(version, "base", recording, {}) as process:
            began_s = time.monotonic()
            while process.poll() is None and time.monotonic() - began_s < limit_s:
                if any(each.get("summary") for each in self._said()):
                    return
                time.sleep(_POLL_S)
            said = self._said()
        if not any(each.get("summary") for each in said):
            problem = self._problem(said, {}, process.returncode, limit_s)
            raise PerfAdvisorError(
                f"no step was recorded: {problem or 'the program ended too early'}.",
                hint="Record with `perfadvisor run`, and name the recording.",
            )

    @contextmanager
    def _started(
        self, version: Path, name: str, settings: Mapping[str, Any], more: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The running program; at the end of the context, nothing of it runs any more."""
        shutil.rmtree(self._run, ignore_errors=True)
        for directory in (self._run, self._status, self._run / "tmp"):
            directory.mkdir()
        msgspec.structs.replace(self.snapshot, directory=version).copy(self._program)
        command = [path_in_copy(self.snapshot, self._program, word) for word in self._command[1:]]
        with (
            (self._run / "stdout").open("wb") as stdout,
            (self._run / "stderr").open("wb") as stderr,
        ):
            try:
                process = subprocess.Popen(
                    [self._command[0], *command],
                    cwd=self._program / self.snapshot.inside,
                    env=self._environment(name, settings, more),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(
                    f"{self._command[0]} cannot be started: {error.strerror}.",
                    hint="Write the program after two dashes: perfadvisor try -- python train.py",
                ) from error
            try:
                yield process
            finally:
                self._end(process)

    def _environment(
        self, name: str, settings: Mapping[str, Any], more: Mapping[str, str]
    ) -> dict[str, str]:
        given = safe_environment(self.snapshot, self._program, os.environ)
        path = [str(Path(site.__file__).parent), given.get("PYTHONPATH", "")]
        temporary = str(self._run / "tmp")
        caches = self._space / "caches" / name
        return {
            "PYTHONHASHSEED": "0",  # sets of strings have the same order in all runs
            **given,
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "PYTHONUNBUFFERED": "1",  # what was printed is there when the program is ended
            "GIT_CEILING_DIRECTORIES": str(self._run),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            **({"TMPDIR": temporary} if len(temporary) <= _LONGEST_TEMP else {}),
            **more,
            hook.SETTINGS: json.dumps(
                {
                    "status": str(self._status),
                    "checkout": str(self.snapshot.checkout),
                    "copy": str(self._program),
                    **settings,
                }
            ),
        }

    @property
    def _mark(self) -> bytes:
        return str(self._status).encode()

    def _said(self) -> list[dict[str, Any]]:
        """What the processes of the program told so far."""
        return [json.loads(file.read_text("utf-8")) for file in self._status.glob("*.json")]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End all processes of the program: first politely, so that launchers end their workers."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for left in processes_of(self._mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(left, signal.SIGKILL)
        process.wait()

    def _problem(
        self,
        said: Sequence[Mapping[str, Any]],
        main: Mapping[str, Any],
        status: int | None,
        limit_s: float | None,
    ) -> str:
        """Why a run says nothing; empty if it does."""
        problems = sorted({each["problem"] for each in said if "problem" in each})
        if problems:
            return str(problems[0])
        if main.get("of_checkout"):
            names = ", ".join(main["of_checkout"])
            return (
                f"it imported {names} from the checkout, so that a change in a copy has no effect"
            )
        if main.get("is_complete"):
            return ""
        if limit_s is not None:
            done = max((each.get("steps", 0) for each in said), default=0)
            return f"it was ended after {limit_s:.0f} s and {done} steps"
        if status:
            return f"it ended with status {status}: {self._last_line()}"
        if not said:
            return "it started no Python that reads PYTHONPATH; `python -I`, `-E` and `-S` do not"
        if not main:
            return "none of its steps was seen, or too few"
        return ""

    def _last_line(self) -> str:
        lines = self._printed("stderr").decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    def _printed(self, stream: str) -> bytes:
        with suppress(OSError), (self._run / stream).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _MOST_PRINTED_BYTES, 0) if stream == "stderr" else 0)
            return file.read(_MOST_PRINTED_BYTES)
        return b""

    def _series(self, main: Mapping[str, Any]) -> dict[str, tuple[float | None, ...]]:
        """The first values of the losses, of what was printed, and of logged scalars."""
        series = {"loss": tuple(main.get("losses", ()))}
        series["printed loss"] = tuple(
            float(found[1]) for found in _LOSS.finditer(self._printed("stdout"))
        )[:_MOST_VALUES]
        for path in sorted(self._program.rglob("*tfevents*")):
            if is_event_file(path.name) and path.is_file() and not path.is_symlink():
                reader = ScalarReader()
                with suppress(PerfAdvisorError, OSError), path.open("rb") as file:
                    reader.read(file, path.name)
                for tag, points in reader.series().items():
                    series.setdefault(f"logged {tag}", tuple(points.value[:_MOST_VALUES].tolist()))
        return {name: values for name, values in series.items() if values}

    def _tensors(self, said: Sequence[Mapping[str, Any]]) -> dict[str, Float64]:
        names: Sequence[str] = next((each["tensors"] for each in said if each.get("tensors")), ())
        for path in self._status.glob("*.npz"):
            with suppress(OSError, ValueError), np.load(path) as stored:
                return {name: stored[str(place)] for place, name in enumerate(names)}
        return {}


def _absolute(command: Sequence[str], started_in: Path) -> list[str]:
    """The command with its program as a path that also holds elsewhere."""
    first = command[0]
    if os.sep in first and not Path(first).is_absolute():
        # Not resolved: the interpreter of a virtual environment is a link.
        first = os.path.normpath(started_in / first)
    return [first, *command[1:]]
