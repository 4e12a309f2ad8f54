"""Background jobs, with limits on time and memory.

A job runs neither in TensorBoard's threads nor in a fork of them, but in a worker's process, which
exits when its stdin closes, and so when TensorBoard ends.

Several clients may wait for one job, such as two people who look at the same server. Each can give
it up for itself; the job is canceled when none is left that waits. Programs that say no name only
look.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from tb_perfadvisor.execution.execution import available_processors
from tb_perfadvisor.execution.limits import (
    MEMORY_LIMIT_VARIABLE,
    TIME_LIMIT_VARIABLE,
    Limits,
    within_machine,
)
from tb_perfadvisor.plugin import log
from tb_perfadvisor.plugin.worker_process import WorkerProcess

JobStatus = Literal["queued", "running", "failed", "canceled"]
FailureKind = Literal["input", "time", "memory", "killed", "crash"]

# The tab asks every few seconds; browsers let a page that nobody sees ask once a minute.
_GONE_S = 90.0
_MOST_CLIENTS = 1_000
_LOG_LINES = 50
_STOP_WAIT_S = 10.0
# Long enough to read a report; then the memory is worth more than a quick start.
_MOST_IDLE_S = 600.0
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
    """Its `main` runs in the worker."""
    what: str = "the analysis"
    """What failed, in messages."""


class _Running(Struct):
    job: Job
    worker: WorkerProcess | None = None
    is_canceled: bool = False
    is_late: bool = False
    error: dict[str, Any] | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))


class JobQueue:
    """Runs jobs in order, some of them at once, each in a worker that has done others before."""

    def __init__(
        self, limits: Limits, command: Sequence[str] | None = None, at_once: int = 1
    ) -> None:
        """Create a queue."""
        if limits.memory_bytes:
            memory_bytes = within_machine(limits.memory_bytes, at_once)
            limits = replace(limits, memory_bytes=memory_bytes)
        self.limits = limits
        self._command = command
        self._at_once = at_once
        self._lock = threading.Condition()
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, _Running] = {}
        self._idle: list[WorkerProcess] = []
        self._states: dict[str, JobState] = {}
        # For each job, when each client that waits asked last, and which do not wait any more.
        self._clients: dict[str, dict[str, float]] = {}
        self._gave_up: dict[str, set[str]] = {}
        self._threads: list[threading.Thread] = []
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
            if len(self._threads) < min(self._at_once, len(self._running) + len(self._waiting)):
                thread = threading.Thread(target=self._run, name="perf-advisor-jobs", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._lock.notify_all()

    def warm_up(self) -> None:
        """Start a worker, so that it is ready when the first job comes."""
        with self._lock:
            if not self._threads and not self._idle and not self._is_closed:
                with suppress(OSError):  # the first job says why
                    self._idle.append(WorkerProcess(self.limits.memory_bytes, self._command))

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
        running = self._running.get(key)
        return key in self._waiting or (running is not None and not running.is_canceled)

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
        free = self._at_once - len(self._running)
        return key in self._waiting and list(self._waiting).index(key) >= free

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
            if self._waiting.pop(key, None) is None and key in self._running:
                _stop(self._running[key])
            return True

    def close(self) -> None:
        """Stop everything."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            for running in self._running.values():
                _stop(running)
            self._lock.notify_all()
        for thread in self._threads:
            thread.join(_STOP_WAIT_S)
        self._end_idle()

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _next(self) -> str | None:
        """The key of the job to run next, if any. One that still ends is waited for."""
        return next((key for key in self._waiting if key not in self._running), None)

    def _run(self) -> None:
        while True:
            with self._lock:
                while (key := self._next()) is None and not self._is_closed:
                    if not self._lock.wait(_MOST_IDLE_S):
                        self._end_idle()
                if self._is_closed or key is None:
                    return
                running = self._running[key] = _Running(self._waiting.pop(key))
                self._states[key] = JobState("running", "starting")
            failure = self._attempt(running)
            with self._lock:
                del self._running[key]
                if key in self._waiting:
                    self._lock.notify_all()
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
        with self._lock:
            if running.is_canceled:
                return 1
            running.worker = worker = self._take_worker()
        timer = threading.Timer(self.limits.time_s, self._expire, [running])
        timer.daemon = True
        timer.start()
        job = running.job
        try:
            status = worker.run(
                job.module,
                [*job.arguments, "--output", str(directory)],
                lambda line: self._read(running, line),
            )
        except BaseException:
            worker.kill()
            raise
        finally:
            timer.cancel()
        with self._lock:
            running.worker = None  # from now on, nobody ends it because of this job
            if worker.is_alive and not running.is_canceled and not running.is_late:
                self._idle.append(worker)
                return status
        worker.close()
        return status

    def _take_worker(self) -> WorkerProcess:
        """A worker that is ready, or a new one."""
        while self._idle:
            if (worker := self._idle.pop()).is_alive:
                return worker
            worker.close()
        return WorkerProcess(self.limits.memory_bytes, self._command)

    def _expire(self, running: _Running) -> None:
        with self._lock:
            if running.worker is not None:
                running.is_late = True
                running.worker.kill()

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


def _stop(running: _Running) -> None:
    running.is_canceled = True
    if running.worker is not None:
        running.worker.kill()


def analyses_at_once() -> int:
    """How many captures are analyzed at once.

    On up to four cores two, at a low priority: what the user does meanwhile comes first.
    """
    cores = available_processors()
    return max(min(cores, 2), cores // 2)
