"""A copy of a program that was started: its processes, what they tell, and how they are ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.ingest.event_files.runs import is_event_file
from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.machine.this_machine import is_stopped, memory_of, processes_of
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.proof.runs import Counters, Run
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_exit_status

_PATIENCE_S: Final = 5.0
"""What a program may take to end when it is asked to."""
_GONE_S: Final = 30.0
"""What processes may take to be gone once they are killed."""
_LOOK_AGAIN_S: Final = 0.01
_MOST_VALUES: Final = 50
_MOST_PRINTED_BYTES: Final = 1 << 20
_LOSS = regex(rb"\bloss\b[^\d\n+-]{0,12}([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", re.IGNORECASE)
_LAST_WORD = regex(rb"\S+\Z")


class Started:
    """A program that runs in a directory of ours."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        """Take a process that was just started in a session of its own.

        Its directory has `program`, `status`, `stdout` and `stderr`.
        """
        self._process, self._directory = process, directory
        self._began_s = time.monotonic()
        self._opened_s: float | None = None
        self._main: int | None = None
        """The process whose steps are measured; None before its window."""
        self._memory_bytes: int | None = None
        self._limit_s: float | None = None
        self._block_loads: list[float] = []

    def said(self) -> list[dict[str, Any]]:
        """What the processes of the program told so far, each with its number."""
        return [
            {**json.loads(file.read_text("utf-8")), "process": int(file.stem)}
            for file in self._status.glob("*.json")
        ]

    def processes(self) -> list[int]:
        """All processes of the program."""
        return processes_of(str(self._status).encode())

    def has_ended(self) -> bool:
        """Whether the first process has ended."""
        return self._process.poll() is not None

    def is_open(self) -> bool:
        """Whether the window has begun; the first time it has is when start-up ends."""
        if self._opened_s is None:
            opened = [each for each in self.said() if each.get("is_open") and not each.get("rank")]
            if opened:
                self._opened_s, self._main = time.monotonic(), opened[0]["process"]
        return self._opened_s is not None

    def is_complete(self) -> bool:
        """Whether the window has ended."""
        return any(each.get("is_complete") for each in self.said() if not each.get("rank"))

    def is_late(self, limit_s: float) -> bool:
        """Whether it has run for longer than it may."""
        if time.monotonic() - self._began_s > limit_s:
            self._limit_s = limit_s
        return self._limit_s is not None

    def measure_memory(self) -> None:
        """Remember how much memory the program needs; while it runs."""
        self._memory_bytes = memory_of(self.processes())

    # --- turns ------------------------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether the process whose steps are measured has stopped itself at the end of a block."""
        return self.is_open() and self._main is not None and is_stopped(self._main)

    def stop(self) -> None:
        """Stop all processes, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all processes continue."""
        self._signal(signal.SIGCONT)

    def add_block_load(self, load: Load | None) -> None:
        """Remember how the cores were used in a turn."""
        if load is not None:
            self._block_loads.append(load.others)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)

    # --- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End all processes: first politely, so that launchers end their workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self.go_on()  # what is stopped does not end by being asked to
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # On a busy machine, what is killed is gone a little later, and may have started others.
        deadline_s = time.monotonic() + _GONE_S
        while self.processes() and time.monotonic() < deadline_s:
            self._signal(signal.SIGKILL)
            time.sleep(_LOOK_AGAIN_S)
        self._process.wait()

    def result(self, load: Load | None) -> Run:
        """What the run showed; its files are still there.

        `load` is how the cores were used during the window; None if unknown.
        """
        said = self.said()
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
            start_up_s=None if self._opened_s is None else self._opened_s - self._began_s,
            whole_s=time.monotonic() - self._began_s,
            load=load,
            series=self._series(main),
            tensors=self._tensors(said),
            is_complete=main.get("is_complete", False),
            problem=self._problem(said, main),
            versions=main.get("versions", {}),
            accelerator=main.get("accelerator", ""),
            memory_bytes=self._memory_bytes,
            block_loads=tuple(self._block_loads),
        )

    def why_nothing(self) -> str:
        """Why there is no recording."""
        return self._problem(self.said(), {})

    def _problem(self, said: Sequence[Mapping[str, Any]], main: Mapping[str, Any]) -> str:
        """Why a run says nothing; empty if it does."""
        problems = sorted({each["problem"] for each in said if "problem" in each})
        status = self._process.poll()
        if problems:
            return str(problems[0])
        if main.get("of_checkout"):
            names = ", ".join(main["of_checkout"])
            return (
                f"it imported {names} from the checkout, so that a change in a copy has no effect"
            )
        if main.get("is_complete"):
            return ""
        if self._limit_s is not None:
            done = max((each.get("steps", 0) for each in said), default=0)
            return f"it was ended after {self._limit_s:.0f} s and {done} steps"
        if status:
            return f"it ended with {format_exit_status(status)}: {self._last_line()}"
        if not said:
            return "it started no Python that reads PYTHONPATH; `python -I`, `-E` and `-S` do not"
        if not main:
            return "none of its steps was seen, or too few"
        return ""

    @property
    def _status(self) -> Path:
        return self._directory / "status"

    def _last_line(self) -> str:
        lines = self._printed("stderr").decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    def _printed(self, stream: str) -> bytes:
        with suppress(OSError), (self._directory / stream).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _MOST_PRINTED_BYTES, 0) if stream == "stderr" else 0)
            return file.read(_MOST_PRINTED_BYTES)
        return b""

    def _series(self, main: Mapping[str, Any]) -> dict[str, tuple[float | None, ...]]:
        """The first values of the losses, of what was printed, and of logged scalars."""
        series = {"loss": tuple(main.get("losses", ()))}
        series["printed loss"] = printed_losses(self._printed("stdout"))
        for path in sorted((self._directory / "program").rglob("*tfevents*")):
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


def printed_losses(text: bytes) -> tuple[float, ...]:
    """The first losses in what a program printed.

    A program that is ended may not have written its last word whole, so that one does not count.
    """
    whole = _LAST_WORD.sub(b"", text)
    return tuple(float(found[1]) for found in _LOSS.finditer(whole))[:_MOST_VALUES]
