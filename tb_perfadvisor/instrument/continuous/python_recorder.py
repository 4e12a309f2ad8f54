"""Records programs without a framework: marks of steps, and the functions on the main thread.

The stack is looked at every millisecond, and written as torch.profiler writes Python's functions.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tb_perfadvisor.instrument.program_loops import look_at_main
from tb_perfadvisor.instrument.threads import SideThread
from tb_perfadvisor.instrument.user_code import is_our_file

_EVERY_S: Final = 0.001
_MOST_LOOKS: Final = 60_000
_MOST_DEPTH: Final = 64
_LEAST_NS: Final = 300_000_000
"""Short steps are recorded until there are some hundred looks, which tell what they do."""
_MOST_STEPS: Final = 10_000


class PythonRecorder:
    """Looks at the main thread while some steps run."""

    file_prefix, warm_up = "", 0

    def __init__(self) -> None:
        self._directory = Path()
        self._marks: list[tuple[int, int]] = []
        """When steps began, and their numbers."""
        self._looks: list[tuple[int, list[CodeType]]] = []
        """When the main thread was looked at, and its functions, outermost first."""
        self._last = self._ended_ns = 0
        self._thread = SideThread(self._look)

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""
        self._directory, self._last = directory, first_step + steps
        self._looks = []
        self._thread = SideThread(self._look)
        self._thread.start()
        self._marks = [(time.time_ns(), first_step)]

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""
        self._marks.append((time.time_ns(), self._marks[-1][1] + 1))
        lasted_ns = self._marks[-1][0] - self._marks[0][0]
        is_long = lasted_ns >= _LEAST_NS or len(self._marks) > _MOST_STEPS
        return self._marks[-1][1] >= self._last and is_long

    def stop(self) -> None:
        """Write the recording; without any step, it is of all that time."""
        self._ended_ns = self._marks[-1][0] if len(self._marks) > 1 else time.time_ns()
        self._thread.ends.set()
        self._thread.join()
        self._directory.mkdir(parents=True, exist_ok=True)
        worker = f"{socket.gethostname()}_{os.getpid()}"
        path = self._directory / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        # Kineto's format, which says that it is not of PyTorch.
        written = {
            "schemaVersion": 1,
            "perfadvisor_recorder": "python",
            "baseTimeNanoseconds": self._marks[0][0],
            "traceEvents": self._events(),
        }
        partial = path.with_suffix(".partial")  # the program may be killed meanwhile
        partial.write_bytes(gzip.compress(json.dumps(written).encode(), 6))
        partial.replace(path)

    def _look(self) -> None:
        while not self._thread.ends.wait(_EVERY_S) and len(self._looks) < _MOST_LOOKS:
            with suppress(Exception):
                now_ns = time.time_ns()
                self._looks.append((now_ns, look_at_main(_functions)))

    def _events(self) -> list[dict[str, Any]]:
        process = os.getpid()
        place = {"ph": "X", "pid": process, "tid": threading.main_thread().native_id or process}
        marks = zip(self._marks, self._marks[1:], strict=False)
        spans = [
            ("user_annotation", f"ProfilerStep#{number}", start_ns, end_ns)
            for (start_ns, number), (end_ns, _) in marks
        ]
        spans += self._calls()
        first_ns = self._marks[0][0]
        return [
            {
                **place,
                "cat": kind,
                "name": name,
                "ts": (begin_ns - first_ns) / 1e3,
                "dur": (end_ns - begin_ns) / 1e3,
            }
            for kind, name, begin_ns, end_ns in spans
        ]

    def _calls(self) -> Iterator[tuple[str, str, int, int]]:
        """Functions from the first look that saw them to the last in succession."""
        running: list[tuple[CodeType, int]] = []
        now_ns = 0
        # The last looks may be of what ends the recording.
        looks = [look for look in self._looks if look[0] < self._ended_ns]
        for now_ns, functions in [*looks, (self._ended_ns, [])]:
            same = 0
            for (known, _), function in zip(running, functions, strict=False):
                if known is not function:
                    break
                same += 1
            for known, begin_ns in reversed(running[same:]):
                yield "python_function", _name(known), begin_ns, now_ns
            running[same:] = [(each, now_ns) for each in functions[same:]]


def _functions(frame: FrameType | None) -> list[CodeType]:
    found: list[CodeType] = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("tb_perfadvisor.instrument.continuous."):
            found.clear()  # what a recorder calls, such as to start a thread
        elif not is_our_file(frame.f_code.co_filename):
            found.append(frame.f_code)
        frame = frame.f_back
    return found[::-1][:_MOST_DEPTH]


def _name(code: CodeType) -> str:
    return f"{code.co_filename}({code.co_firstlineno}): {code.co_name}"
