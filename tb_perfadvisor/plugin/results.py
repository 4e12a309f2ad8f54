"""Results of analyses: read from the cache, or produced by jobs."""

from __future__ import annotations

import hashlib
import math
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tb_perfadvisor.contract.run_row import Mark, Pace, RunRow
from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.execution.limits import limits_from_environment
from tb_perfadvisor.ingest.files.containment import private_directory
from tb_perfadvisor.plugin import log
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.imports import import_whole
from tb_perfadvisor.plugin.jobs import Job, JobQueue, JobState, analyses_at_once
from tb_perfadvisor.plugin.worker import CAPTURE, DOCUMENT, REPORT, REQUEST, ROW, WINDOW
from tb_perfadvisor.remark import Remark

if TYPE_CHECKING:
    from tb_perfadvisor.plugin.documents import Request
    from tb_perfadvisor.plugin.whole_runs import WholeRun
    from tb_perfadvisor.report.timeline.window import TimelineEvents


class StoredRow(msgspec.Struct, frozen=True):
    """What the table of runs needs of a result."""

    row: RunRow
    pace: Pace | None


# Zooming reads the same events repeatedly.
_MAX_WINDOWS = 2
# A run hardly advances in this time, and the next view takes a second to make.
_FRESH_S = 10.0


class Results:
    """Reads results and starts the jobs that produce them."""

    def __init__(self, cache: ResultCache, jobs: JobQueue) -> None:
        self._cache = cache
        self._jobs = jobs
        # Users wait for documents, so analyses must not delay them.
        self._documents = JobQueue(jobs.limits)
        # Event files may take minutes to read, which must delay neither documents nor analyses.
        self._whole_runs = JobQueue(jobs.limits)
        self._latest: dict[str, tuple[str, float]] = {}
        self._attempted: dict[str, str] = {}
        self._lock = threading.Lock()
        self._rows: dict[str, StoredRow] = {}
        self._noted_rows: dict[str, tuple[tuple[Remark, ...], RunRow]] = {}
        self._marks: dict[tuple[str, str], Mark | None] = {}
        self._windows: OrderedDict[str, TimelineEvents] = OrderedDict()

    def read(self, entry: Entry, name: str) -> bytes | None:
        """A file of a capture's result; None without a result."""
        return self._cache.read(entry.key, name)

    def state(self, entry: Entry, client: str | None = None) -> JobState | None:
        """The state of a capture's job; None without a job or after success.

        For a client, one that only others have canceled is none.
        """
        return self._jobs.state(entry.key, client)

    def join(self, entry: Entry, client: str) -> None:
        """Note that a client waits for the analysis of a capture."""
        self._jobs.join(entry.key, client)

    def clients(self, entry: Entry) -> int:
        """How many clients wait for the analysis of a capture."""
        return self._jobs.clients(entry.key)

    def row(self, entry: Entry, remarks: tuple[Remark, ...] = ()) -> RunRow | None:
        """The row of a capture in the table of runs; None without a result.

        What the user decided against is not the change to begin with.
        """
        stored = self._stored_row(entry)
        if stored is None or not any(remark.wont_fix for remark in remarks):
            return None if stored is None else stored.row
        noted = self._noted_rows.get(entry.key)
        if noted is None or noted[0] != remarks:
            content = self.read(entry, REPORT)
            if content is None:
                return stored.row
            from tb_perfadvisor.contract.model import Report
            from tb_perfadvisor.contract.names import run_row
            from tb_perfadvisor.remarks.attach import with_remarks

            report = msgspec.json.decode(content, type=Report)
            noted = self._noted_rows[entry.key] = remarks, run_row(with_remarks(report, remarks))
        return noted[1]

    def known_row(self, entry: Entry) -> RunRow | None:
        """The row of a capture if it was read before: asks no file, for all captures at once."""
        stored = self._rows.get(entry.key)
        return None if stored is None else stored.row

    def pace(self, entry: Entry) -> Pace | None:
        """How long the steps of a capture take; None without a result, or without steps.

        What was read once is known even after the cache has dropped the result.
        """
        stored = self._rows.get(entry.key) or self._stored_row(entry)
        return None if stored is None else stored.pace

    def mark(self, base: Entry, target: Entry) -> Mark | None:
        """How the steps of a capture compare with another's; None if that is not known."""
        keys = base.key, target.key
        if keys not in self._marks:
            before, after = self.pace(base), self.pace(target)
            if before is None or after is None:
                return None
            import_whole("tb_perfadvisor.signals")
            from tb_perfadvisor.comparison.interval import mark

            self._marks[keys] = mark(base.id, before, after)
        return self._marks[keys]

    def _stored_row(self, entry: Entry) -> StoredRow | None:
        if not self._cache.has(entry.key):
            return None
        row = self._rows.get(entry.key)
        if row is None:
            content = self._cache.read(entry.key, ROW)
            if content is None:
                return None
            try:
                row = msgspec.json.decode(content, type=StoredRow)
            except msgspec.MsgspecError:
                self._cache.remove(entry.key)
                return None
            self._rows[entry.key] = row
        return row

    def has(self, key: str) -> bool:
        """Whether there is a result, damaged or not."""
        return self._cache.has(key)

    def document(self, wanted: Request) -> bytes | None:
        """A document that was made before; None if there is none."""
        return self._cache.read(key_of(wanted), DOCUMENT)

    @property
    def documents_waiting(self) -> int:
        """How many documents wait to be made."""
        return self._documents.waiting

    def is_making(self, wanted: Request) -> bool:
        """Whether a document is being made, or waits for that."""
        state = self._documents.state(key_of(wanted))
        return state is not None and state.status in ("queued", "running")

    def make(self, wanted: Request, timeout_s: float) -> JobState | None:
        """Make a document, and wait for it.

        Returns None if it was made; else why not, or that it is being made or waits for others.
        """
        key = key_of(wanted)
        self._documents.submit(
            Job(
                key=key,
                arguments=("--cache", str(self._cache.directory)),
                prepare=lambda: self._stage(wanted),
                finish=lambda directory, is_good: self._finish(key, directory, is_good),
                is_done=lambda: self.document(wanted) is not None,
                module=f"{__package__}.documents",
                what=f"the {type(wanted).__name__.lower()}",
            )
        )
        return self._documents.wait(key, timeout_s)

    def whole_run(self, wanted: WholeRun) -> bytes | None:
        """The view of a run; None if it must be made.

        A file that is being written changes its size each second. So a view made a moment ago is
        good enough; otherwise, a request that waits for one would never get it.
        """
        key = self.whole_run_key(wanted)
        return self._cache.read(key, DOCUMENT) if key is not None else None

    def whole_run_key(self, wanted: WholeRun) -> str | None:
        """The key of the view of a run; None if it must be made."""
        if self._cache.has(wanted.key):
            return wanted.key
        key, made_at = self._latest.get(wanted.subject, ("", -math.inf))
        is_fresh = time.monotonic() - made_at < _FRESH_S
        return key if is_fresh and self._cache.has(key) else None

    def whole_run_state(self, wanted: WholeRun) -> JobState | None:
        """The state of the job that makes the view of a run; None without one.

        A failure counts until the files have grown.
        """
        state = self._whole_runs.state(wanted.subject)
        has_grown = self._attempted.get(wanted.subject) != wanted.key
        if state is not None and state.status == "failed" and has_grown:
            return None
        return state

    def start_whole_run(self, wanted: WholeRun) -> None:
        """Queue making the view of a run, unless that is queued or running."""

        def finish(directory: Path, is_good: bool) -> None:
            self._finish(wanted.key, directory, is_good)
            if is_good:
                self._latest[wanted.subject] = wanted.key, time.monotonic()

        self._attempted[wanted.subject] = wanted.key
        self._whole_runs.submit(
            Job(
                key=wanted.subject,
                arguments=("--cache", str(self._cache.directory)),
                prepare=lambda: self._stage(wanted),
                finish=finish,
                is_done=lambda: self._cache.has(wanted.key),
                module=f"{__package__}.whole_runs",
                what="reading the scalars",
            )
        )

    def window(self, entry: Entry) -> TimelineEvents | None:
        """The events of a capture's reference worker; None without a result."""
        from tb_perfadvisor.report.timeline.window import decode_events

        with self._lock:
            if entry.key in self._windows:
                self._windows.move_to_end(entry.key)
                return self._windows[entry.key]
        content = self._cache.read(entry.key, WINDOW)
        if content is None:
            return None
        window = decode_events(content)
        with self._lock:
            self._windows[entry.key] = window
            while len(self._windows) > _MAX_WINDOWS:
                self._windows.popitem(last=False)
        return window

    def warm_up(self) -> None:
        """Be ready for the first analysis."""
        self._jobs.warm_up()

    def start(self, entry: Entry, client: str = "") -> None:
        """Queue the analysis of a capture for a client, unless it is queued or running."""
        self._jobs.submit(
            Job(
                key=entry.key,
                arguments=(
                    *("--root", entry.base),
                    *("--report-id", entry.id, "--group", entry.root.group),
                ),
                prepare=lambda: self._prepare(entry),
                finish=lambda directory, is_good: self._finish(entry.key, directory, is_good),
                is_done=lambda: self._cache.read(entry.key, REPORT) is not None,
            ),
            client,
        )

    def cancel(self, entry: Entry, client: str) -> bool:
        """Give up an analysis for a client; return whether that stopped it, as no other waits."""
        return self._jobs.cancel(entry.key, client)

    def close(self) -> None:
        """Stop all analyses."""
        self._jobs.close()
        self._documents.close()
        self._whole_runs.close()

    def _prepare(self, entry: Entry) -> Path:
        """Create a directory for the result, with the capture in it for the worker."""
        directory = self._cache.stage()
        (directory / CAPTURE).write_bytes(msgspec.json.encode(entry.capture))
        return directory

    def _stage(self, wanted: Request | WholeRun) -> Path:
        """Create a directory for a document, with the request for it."""
        directory = self._cache.stage()
        (directory / REQUEST).write_bytes(msgspec.json.encode(wanted))
        return directory

    def _finish(self, key: str, directory: Path, is_good: bool) -> None:
        if is_good:
            self._cache.commit(directory, key)
        else:
            self._cache.discard(directory)


def key_of(request: Request) -> str:
    """The key of a document in the cache; the keys of results tell the version of the code."""
    return hashlib.sha256(msgspec.json.encode(request)).hexdigest()


def open_results(jobs: JobQueue | None = None) -> tuple[Results, str | None]:
    """Open the results in the user's cache directory, or in a temporary one if it is not writable.

    Returns them, and a message for the user if they will not be kept.
    """
    queue = jobs
    if queue is None:
        queue = JobQueue(limits_from_environment(log.warn), at_once=analyses_at_once())
    try:
        return Results(ResultCache(private_directory()), queue), None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        where = error.filename or "the cache directory"
        log.warn(f"results are not kept between starts: {where} cannot be used ({reason}).")
        # Lives as long as the process. The prefix names its owner if a crash leaves it behind.
        directory = tempfile.TemporaryDirectory(prefix="perf_advisor_")
        results = Results(ResultCache(Path(directory.name)), queue)
        _KEPT_ALIVE.append(directory)
        return results, f"results are not kept: the cache directory cannot be used ({reason})."


_KEPT_ALIVE: list[Any] = []
