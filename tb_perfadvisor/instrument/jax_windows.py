"""Records programs of JAX by time: no call is made by each of them once per step.

The first recording begins as soon as nothing has been compiled for a moment, because a loop may
last a few seconds only. Later ones are longer and replace it; steps are inferred from what repeats.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
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
from tb_perfadvisor.instrument.record_requests import Requests
from tb_perfadvisor.instrument.stack_samples import StackSamples
from tb_perfadvisor.machine.facts import Recording

_LOOK_EVERY_S: Final = 0.02
_ASKED_EVERY_S: Final = 0.5
_QUIET_S: Final = 0.2
"""Without a compilation for so long, the program runs what it has compiled."""
_LATEST_S: Final = 3.0
_MANY: Final = 10
"""A program that compiles all the time, many functions and not a large one, is recorded, too."""
_MOST_BYTES: Final = 64 << 20
"""A loop of many small operations fills this in seconds. Later recordings end before they do."""
_MOST_EARLY: Final = 5
"""So many times, a recording in which something was compiled is followed by another."""
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"
_COMPILES: Final = (
    "jax._src.compiler",
    "jax._src.interpreters.partial_eval",
    "jax._src.interpreters.mlir",
)
"""While JAX traces, lowers or compiles a function, the main thread is in one of these modules."""


class JaxWindows:
    """Records windows of time in a thread of its own, until the program ends."""

    def __init__(
        self, settings: dict[str, Any], parts: Parts, tell: Callable[[str, str], None]
    ) -> None:
        """Prepare. `tell` hears a `summary` of recordings, or the `problem` that ended it."""
        self._logdir = Path(settings["logdir"])
        self._first_s: float = settings["first_window_s"]
        self._window_s: float = settings["window_s"]
        self._after_s: float = settings["after_s"]
        self._every_s: float = settings["every_s"]
        self._parts = parts
        self._tell = tell
        self._recordings = Recordings(keep_last=5, keep_slowest=0)
        self._load = LoadMeter()
        self._samples = StackSamples()
        self._requests = Requests(self._logdir)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._directory: Path | None = None
        self._began_s = 0.0
        self._compiled_s = 0.0
        self._compilations = self._compiled_before = 0
        self._is_rich = False
        self._cost_s = 0.0
        self._number = 0
        self._most_s = math.inf

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Begin to wait for the program's computations."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        # JAX ends its devices when the program does; what is registered later runs earlier.
        atexit.register(self.close)
        self._is_wanted = is_wanted
        threading.Thread(target=self._run, name="perfadvisor", daemon=True).start()

    def close(self) -> None:
        """The program ends: keep what is being recorded."""
        self._ends.set()
        self._requests.withdraw()
        self._samples.step()
        self._samples.stop()
        with suppress(Exception):
            self._end()
        for recording in self._recordings.kept:
            add_seen(recording.files, self._samples, None)

    def discard(self) -> None:
        """Delete what was recorded: the program has steps that are seen otherwise."""
        self._ends.set()
        self._samples.stop()
        with suppress(Exception):
            self._end()
        self._recordings.clear()

    @property
    def summary(self) -> str:
        """What was recorded, in one line; empty for nothing."""
        kept = self._recordings.kept
        if not kept:
            return ""
        return (
            f"{len(kept)} recording{'' if len(kept) == 1 else 's'} kept in {self._logdir}, by time;"
            f" cost: {self._cost_s:.1f} s of starting and writing."
        )

    def _on_event(self, event: str, duration_s: float, **_: Any) -> None:
        if event == _COMPILED:
            self._compiled_s = time.monotonic()
            self._compilations += 1

    def _run(self) -> None:
        try:
            self._record_until_the_end()
        except PerfAdvisorError as error:
            self._tell("problem", str(error).rstrip("."))
        except Exception as error:  # the program goes on
            self._tell("problem", f"{type(error).__name__}: {error}")

    def _record_until_the_end(self) -> None:
        from tb_perfadvisor.instrument.jax_session import require_working_profiler

        while not self._compilations and not self._ends.is_set():
            self._ends.wait(_LOOK_EVERY_S)
        began_s = time.monotonic()
        if self._ends.is_set() or not self._is_wanted():
            return
        require_working_profiler()  # while the program compiles
        with suppress(OSError):
            self._requests.announce()
        for _ in range(_MOST_EARLY):
            self._wait_for_quiet()
            if self._record(self._first_s):
                break
        self._wait_until(began_s + self._after_s)
        self._record(self._window_s)
        self._record(self._window_s / 2, is_rich=True)
        while self._is_wanted() and not self._ends.is_set():
            self._wait_until(time.monotonic() + self._every_s)
            self._record(self._window_s)

    def _wait_for_quiet(self) -> None:
        """Wait until the program runs what it has compiled, or has compiled many things."""
        computed_s, began_s, before = 0.0, time.monotonic(), self._compilations
        while computed_s < _LATEST_S and not self._ends.wait(_LOOK_EVERY_S):
            if _is_compiling():
                self._compiled_s = time.monotonic()
            else:
                computed_s += _LOOK_EVERY_S
            now_s = time.monotonic()
            compiles_always = self._compilations - before >= _MANY and now_s - began_s >= _LATEST_S
            if now_s - self._compiled_s >= _QUIET_S or compiles_always:
                break

    def _wait_until(self, at_s: float) -> None:
        """Wait, and record what is asked for meanwhile."""
        while not self._ends.wait(min(max(at_s - time.monotonic(), 0.0), _ASKED_EVERY_S)):
            if time.monotonic() >= at_s:
                return
            if self._is_wanted() and self._requests.take(time.monotonic()):
                self._record(self._window_s)

    def _record(self, seconds: float, *, is_rich: bool = False) -> bool:
        """Record some time; returns whether nothing was compiled in it."""
        if self._ends.is_set() or not self._is_wanted():
            return True
        with self._lock:
            self._begin(is_rich)
        self._ends.wait(min(seconds, self._most_s))
        return self._end()

    def _begin(self, is_rich: bool) -> None:
        from tb_perfadvisor.instrument.jax_session import start_trace

        began_s = time.monotonic()
        self._load.begin()
        self._samples.step()
        self._samples.pause()
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        self._parts.add_step("loop", main)
        self._is_rich, self._compiled_before = is_rich, self._compilations
        directory = self._logdir / f"step_{self._number:08}{RICH if is_rich else ''}"
        start_trace(directory, is_rich=is_rich)
        self._directory, self._began_s = directory, time.monotonic()
        self._cost_s += self._began_s - began_s

    def _end(self) -> bool:
        """Write what is being recorded; returns whether nothing was compiled meanwhile.

        The thread and the end of the program may both ask.
        """
        from tb_perfadvisor.instrument.jax_session import stop_trace

        with self._lock:
            directory, self._directory = self._directory, None
            if directory is None:
                return True
            ended_s = time.monotonic()
            is_clean = self._compilations == self._compiled_before
            reason = "periodic" if is_clean else EARLY
            # The program goes on while what was recorded is collected, which may take long.
            self._samples.go_on()
            stop_trace(directory)
            files = tuple(sorted(files_below(directory)))
            recording = Recording("run", self._is_rich, reason)
            files += write_facts(files, recording, self._load.end(), self._parts, self._samples)
            stored = StoredRecording(
                self._number, reason, self._is_rich, ended_s - self._began_s, files
            )
            self._recordings.add(stored)
            self._most_s = _MOST_BYTES / max(stored.size_bytes, 1) * stored.mean_step_s
            self._number += 1
            self._cost_s += time.monotonic() - ended_s
        self._tell("summary", self.summary)
        return is_clean


def _is_compiling() -> bool:
    """Whether the main thread traces or compiles; nothing else tells before it has."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__") in _COMPILES:
            return True
        frame = frame.f_back
    return False
