"""Background jobs: one process at a time for each queue, with limits on time and memory.

A job runs neither in TensorBoard's threads nor in a fork of them, but in a subprocess, which exits
when its stdin closes, and so when TensorBoard ends.

Several clients may wait for one job, such as two people who look at the same server. Each can give
it up for itself; the job is canceled when none is left that waits. Programs that say no name only
look.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from tb_perfadvisor.execution.execution import command_of, environment_of_child
from tb_perfadvisor.execution.limits import (
    MEMORY_LIMIT_VARIABLE,
    TIME_LIMIT_VARIABLE,
    Limits,
)
from tb_perfadvisor.plugin import log

JobStatus = Literal["queued", "running", "failed", "canceled"]
FailureKind = Literal["input", "time", "memory", "killed", "crash"]

# The tab asks every few seconds; browsers let a page that nobody sees ask once a minute.
_GONE_S = 90.0
_MOST_CLIENTS = 1_000
_LOG_LINES = 50
_STOP_WAIT_S = 10.0
_KILLED = -9  # by SIGKILL, which Windows lacks


class Failure(Struct, frozen=True):
    """Why there is no result, in words for the user."""

    kind: FailureKind
    message: str
    where: str = ""
    hint: str = ""


class JobState(Struct, frozen=True):
    """The state of a job."""

    status: JobStatus
    stage: str = ""
    progress: float | None = None
    queue_position: int | None = None
    """0 is next; None if not queued."""
    failure: Failure | None = None


class Job(Struct, frozen=True):
    """What to run."""

    key: str
    arguments: tuple[str, ...]
    prepare: Callable[[], Path]
    """Creates the directory for the results."""
    finish: Callable[[Path, bool], None]
    """Stores or discards the directory; the flag says whether the analysis succeeded."""
    is_done: Callable[[], bool] = lambda: False
    """Whether the result exists already."""
    module: str = "tb_perfadvisor.plugin.worker"
    """Its `main` runs in the subprocess."""
    what: str = "the analysis"
    """What failed, in messages."""


class _Running(Struct):
    job: Job
    process: subprocess.Popen[bytes] | None = None
    is_canceled: bool = False
    is_late: bool = False
    error: dict[str, Any] | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))


class JobQueue:
    """Runs jobs one after another in a thread."""

    def __init__(self, limits: Limits, command: Sequence[str] | None = None) -> None:
        """Create a queue; tests replace the worker by `command`."""
        self.limits = limits
        self._command = tuple(command) if command is not None else None
        self._lock = threading.Condition()
        self._waiting: dict[str, Job] = {}
        self._running: _Running | None = None
        self._states: dict[str, JobState] = {}
        # For each job, when each client that waits asked last, and which do not wait any more.
        self._clients: dict[str, dict[str, float]] = {}
        self._gave_up: dict[str, set[str]] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, job: Job, client: str = "") -> None:
        """Queue a job for a client, or let it wait for the one with the same key.

        Forgets earlier failures.
        """
        with self._lock:
            if self._is_closed:
                return
            if self._is_active(job.key):
                self._gave_up.get(job.key, set()).discard(client)
                self.join(job.key, client)
                return
            self._clients[job.key] = {}
            self._gave_up.pop(job.key, None)
            self.join(job.key, client)
            self._waiting[job.key] = job
            self._states[job.key] = JobState("queued", "waiting")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="perf-advisor-jobs", daemon=True
                )
                self._thread.start()
            self._lock.notify_all()

    def state(self, key: str, client: str | None = None) -> JobState | None:
        """The state of a job; None if there is none or it succeeded.

        For a client, a job that only others have canceled is none.
        """
        with self._lock:
            state = self._states.get(key)
            is_canceled = state is not None and state.status == "canceled"
            if is_canceled and client is not None and client not in self._gave_up.get(key, ()):
                return None
            if state is not None and state.status == "queued":
                position = list(self._waiting).index(key) if key in self._waiting else 0
                return replace(state, queue_position=position)
            return state

    def join(self, key: str, client: str) -> None:
        """Note that a client waits for a job that is active, unless it has given it up."""
        with self._lock:
            clients = self._clients.get(key)
            if clients is None or not client or client in self._gave_up.get(key, ()):
                return
            if client in clients or len(clients) < _MOST_CLIENTS:
                clients[client] = time.monotonic()

    def clients(self, key: str) -> int:
        """How many clients wait for a job."""
        with self._lock:
            now = time.monotonic()
            return sum(now - at < _GONE_S for at in self._clients.get(key, {}).values())

    def _is_active(self, key: str) -> bool:
        """Whether a job will produce its result; one that was canceled and still ends will not."""
        running = self._running
        is_running = running is not None and running.job.key == key and not running.is_canceled
        return key in self._waiting or is_running

    @property
    def waiting(self) -> int:
        """How many jobs are queued."""
        return len(self._waiting)

    def wait(self, key: str, timeout_s: float) -> JobState | None:
        """Wait until a job has ended; one that waits for others is not waited for.

        Returns its state: None if it succeeded.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._has_ended(key) or self._is_behind(key), timeout_s)
            return self.state(key)

    def _has_ended(self, key: str) -> bool:
        state = self._states.get(key)
        return self._is_closed or state is None or state.status in ("failed", "canceled")

    def _is_behind(self, key: str) -> bool:
        return key in self._waiting and (
            self._running is not None or next(iter(self._waiting)) != key
        )

    def cancel(self, key: str, client: str = "") -> bool:
        """Give up a job for a client; stop it and return true if no other client waits for it."""
        with self._lock:
            if not self._is_active(key):
                return False
            self._clients[key].pop(client, None)
            gave_up = self._gave_up.setdefault(key, set())
            if len(gave_up) < _MOST_CLIENTS:
                gave_up.add(client)
            if self.clients(key):
                return False
            del self._clients[key]
            self._states[key] = JobState("canceled")
            if self._waiting.pop(key, None) is None and self._running is not None:
                self._running.is_canceled = True
                _kill(self._running.process)
            return True

    def close(self) -> None:
        """Stop everything."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            if self._running is not None:
                self._running.is_canceled = True
                _kill(self._running.process)
            self._lock.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_WAIT_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._is_closed:
                    self._lock.wait()
                if self._is_closed:
                    return
                key = next(iter(self._waiting))
                running = _Running(self._waiting.pop(key))
                self._running = running
                self._states[key] = JobState("running", "starting")
            failure = self._attempt(running)
            with self._lock:
                self._running = None
                if key in self._waiting:
                    continue  # canceled and submitted again: its state is queued
                self._clients.pop(key, None)
                if running.is_canceled:
                    self._states[key] = JobState("canceled")
                else:
                    self._gave_up.pop(key, None)
                    self._states.pop(key, None)
                    if failure is not None:
                        self._states[key] = JobState("failed", failure=failure)
                self._lock.notify_all()

    def _attempt(self, running: _Running) -> Failure | None:
        """Run a job to its end; never raises, as that would stop the queue."""
        try:
            # An earlier job or another TensorBoard may have stored the result since the request.
            if running.job.is_done():
                return None
            directory = running.job.prepare()
            try:
                status = self._execute(running, directory)
                is_good = status == 0 and not running.is_canceled and not running.is_late
            except BaseException:
                running.job.finish(directory, False)
                raise
            running.job.finish(directory, is_good)
        except Exception as error:
            log.explain(f"{running.job.what} could not be run:\n{traceback.format_exc()}")
            reason = getattr(error, "strerror", None) or type(error).__name__
            return Failure(
                "crash",
                f"{running.job.what} could not be started, or its result not stored ({reason}).",
                hint="Check that the disk is not full and the user's cache directory is writable.",
            )
        if is_good or running.is_canceled:
            return None
        for line in running.log:
            log.explain(f"{running.job.what} said: {line}")
        told = running.error or {}
        if told.get("log"):
            log.warn(f"{told['message']} The traceback is in {told['log']}.")
        return _failure(running, status, self.limits)

    def _execute(self, running: _Running, directory: Path) -> int:
        command = self._command or command_of(running.job.module)
        arguments = (
            *command,
            *running.job.arguments,
            "--output",
            str(directory),
            "--memory-limit-bytes",
            str(self.limits.memory_bytes),
            "--watch-stdin",
        )
        with self._lock:
            if running.is_canceled:
                return 1
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment_of_child(),
            )
            running.process = process
        timer = threading.Timer(self.limits.time_s, self._expire, [running])
        timer.daemon = True
        timer.start()
        try:
            with process:
                assert process.stderr is not None
                for line in process.stderr:
                    self._read(running, line)
                process.wait()
        finally:
            timer.cancel()
            _kill(process)
        return process.returncode

    def _expire(self, running: _Running) -> None:
        with self._lock:
            running.is_late = True
            _kill(running.process)

    def _read(self, running: _Running, line: bytes) -> None:
        """Handle a line of the worker's stderr: progress, an error, or text for the log."""
        text = line.decode("utf-8", "replace").rstrip()
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            running.log.append(text)
            return
        if isinstance(message.get("error"), dict):
            running.error = message["error"]
        elif "stage" in message:
            share = message.get("progress")
            progress = float(share) if isinstance(share, int | float) else None
            with self._lock:
                if not running.is_canceled:
                    stage = str(message["stage"])
                    self._states[running.job.key] = JobState("running", stage, progress)


def _failure(running: _Running, status: int, limits: Limits) -> Failure:
    error, what = running.error or {}, running.job.what
    if running.is_late:
        return Failure(
            "time",
            f"{what} took longer than {limits.time_s:g} s and was stopped.",
            hint="Run `perfadvisor analyze --time-limit SECONDS` in a terminal, or start "
            f"TensorBoard with a larger {TIME_LIMIT_VARIABLE}.",
        )
    if error.get("kind") == "memory":
        return Failure(
            "memory",
            f"{what} needs more memory than its limit ({limits.memory_bytes / (1 << 30):.1f} GiB).",
            hint="Profile fewer steps, or start TensorBoard with a larger "
            f"{MEMORY_LIMIT_VARIABLE}.",
        )
    if error:
        kind: FailureKind = "input" if error.get("kind") == "input" else "crash"
        message, where, hint = (str(error.get(part, "")) for part in ("message", "where", "hint"))
        return Failure(kind, message, where, hint)
    if status == _KILLED:
        return Failure(
            "killed",
            f"{what} was killed from outside.",
            hint="Someone ended its process, or the system did because memory ran out, and logged "
            "that. Try again, or profile fewer steps.",
        )
    return Failure(
        "crash",
        f"{what} ended without a result (status {status}).",
        hint="Run TensorBoard with --verbosity -1 to see the details in its log.",
    )


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    # Use the handle, as the process id may belong to another process by now.
    if process is not None and process.poll() is None:
        process.kill()
