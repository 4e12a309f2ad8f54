"""The captures in the log directories, scanned in a background thread."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, StoreError, UnexpectedError, log_bug
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.ingest.trace_names import session_label
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.plugin import log
from tb_perfadvisor.plugin.log_directories import Root, grouped_id, grouped_run
from tb_perfadvisor.remarks.store import run_digest

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.captures import Capture, Listing
    from tb_perfadvisor.ingest.event_files.runs import CandidateRuns

# Short enough that a reload by the user scans again, long enough for a burst of requests.
LOCAL_INTERVAL_S = 2.0
# Listing a bucket costs money and seconds.
REMOTE_INTERVAL_S = 10.0
# After a program was asked to record, look for its recording more often, for a while.
ASKED_INTERVAL_S = 0.5
ASKED_S = 60.0
# Slow scans are repeated less often: scanning takes a fifth of the time at most.
_REST_FACTOR = 4.0
# Longer than ordinary local scans. A slower scan makes the tab appear and show its progress.
_PATIENCE_S = 1.0
# As long as an analysis may take. A mount whose server is gone answers never, and no thread can be
# ended while it waits for one.
_LONGEST_S = 600.0


class Entry(Struct, frozen=True):
    """A capture with its names in the tab."""

    id: str
    run: str
    root: Root
    base: str
    """The directory that the paths of the capture's files are relative to."""
    capture: Capture
    key: str
    """The key of its result in the cache, which changes with the files."""
    series: tuple[Root, str, str]
    """What the recordings of one run have in common: its log directory, name and format."""
    candidates: CandidateRuns
    """The runs with event files that it may belong to."""

    @property
    def series_name(self) -> str:
        """What the tab calls the run, which may have been recorded several times."""
        return grouped_run(self.root.group, self.series[1])

    @property
    def recorded(self) -> str:
        """When it was recorded, in the form of session names: by its name, or by its files."""
        session = self.capture.session
        if is_dated(session.partition(".")[0]):
            return session
        changed_ns = max(file.mtime_ns for file in self.capture.files)
        return session_label(changed_ns) if changed_ns > 0 else ""

    @property
    def run_digest(self) -> str:
        """Tells its run from all others, in what users say about findings."""
        return run_digest(self.root.path, self.series_name)


class Problem(Struct, frozen=True):
    """Why a log directory could not be scanned."""

    where: str
    message: str
    hint: str


class Snapshot(Struct, frozen=True):
    """The outcome of one scan of all log directories."""

    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))
    rejected: tuple[tuple[str, str], ...] = ()
    """Path and reason."""
    problems: tuple[Problem, ...] = ()
    scanned_files: int = 0
    is_complete: bool = True
    gaps: tuple[str, ...] = ()
    """What was not scanned and why, as phrases."""
    programs: tuple[Path, ...] = ()
    """The directories of runs whose programs can be asked to record."""


class Catalog:
    """Scans on request if the last scan is old enough, and never by itself.

    Remote log directories are scanned only for requests of the tab. TensorBoard keeps asking each
    plugin whether it is active, so that a page left open would list a bucket day and night.
    """

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots = roots
        self._local = _Scanner(tuple(root for root in roots if not root.is_remote))
        self._remote = _Scanner(tuple(root for root in roots if root.is_remote))
        self._joined: tuple[Snapshot, Snapshot, Snapshot] | None = None
        """The last snapshots of both, and one of all."""

    @property
    def snapshot(self) -> Snapshot:
        """The outcome of the last finished scans."""
        local, remote = self._local.snapshot, self._remote.snapshot
        if not self._remote.roots or not self._local.roots:
            return local if self._local.roots else remote
        joined = self._joined
        if joined is None or joined[0] is not local or joined[1] is not remote:
            joined = self._joined = local, remote, _join(local, remote)
        return joined[2]

    @property
    def is_scanning(self) -> bool:
        """Whether a scan is running, or a first scan has not finished."""
        return self._local.is_scanning or self._remote.is_scanning

    @property
    def is_active(self) -> bool:
        """Whether there may be something to show; answered from memory.

        Remote log directories count, as they are not scanned before the tab is opened.
        """
        return bool(self._remote.roots) or self._local.is_active

    def refresh_local(self) -> None:
        """Start a background scan of the local log directories if the last one is old."""
        self._local.start()

    def expect_recording(self) -> None:
        """Scan the local log directories more often for a while: a program was asked to record."""
        self._local.hurries_until = time.monotonic() + ASKED_S

    def refresh(self, wait_s: float = 0.0) -> None:
        """Start background scans of all log directories if the last ones are old.

        It waits for them for `wait_s` at most. Later results are for later requests.
        """
        deadline = time.monotonic() + wait_s
        for scanner in (self._remote, self._local):
            scanner.start()
        for scanner in (self._local, self._remote):
            scanner.wait(deadline - time.monotonic())


def _join(local: Snapshot, remote: Snapshot) -> Snapshot:
    return Snapshot(
        MappingProxyType({**local.entries, **remote.entries}),
        local.rejected + remote.rejected,
        local.problems + remote.problems,
        local.scanned_files + remote.scanned_files,
        local.is_complete and remote.is_complete,
        local.gaps + remote.gaps,
        local.programs,
    )


class _Scanner:
    """Scans log directories in a thread."""

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots = roots
        self._lock = threading.Condition()
        self.snapshot = Snapshot()
        self._is_scanning = False
        self._scans = 0
        self._began_at = 0.0
        self._listed: Root | None = None
        """Whose files the running scan lists."""
        self._next_scan_at = self.hurries_until = 0.0
        self._first_scan_at: float | None = None
        self._warned: set[str] = set()
        self._listings: dict[Root, Listing] = {}

    @property
    def is_scanning(self) -> bool:
        """Whether a scan is running, or none has finished."""
        return self._is_scanning or (self._scans == 0 and bool(self.roots))

    @property
    def is_active(self) -> bool:
        """Whether a capture was found, or a slow first scan is running."""
        if self.snapshot.entries:
            return True
        began = self._first_scan_at
        return self._scans == 0 and began is not None and time.monotonic() - began > _PATIENCE_S

    def start(self) -> None:
        """Start a background scan if none is running and the last one is old."""
        with self._lock:
            now = time.monotonic()
            if self._is_scanning and now > self._began_at + _LONGEST_S:
                self._finish(self._abandoned())
            if not self.roots or self._is_scanning or now < self._next_scan_at:
                return
            self._is_scanning, self._began_at = True, now
            if self._first_scan_at is None:
                self._first_scan_at = now
            threading.Thread(
                target=self._scan, args=(self._scans,), name="perf-advisor-scan", daemon=True
            ).start()

    def wait(self, wait_s: float) -> None:
        """Wait for a running scan."""
        with self._lock:
            if wait_s > 0:
                self._lock.wait_for(lambda: not self._is_scanning, wait_s)

    def _scan(self, number: int) -> None:
        snapshot = self.snapshot
        try:
            snapshot = self._list_captures()
        except Exception as error:  # whatever a reader raises, the scan must be marked as finished
            bug = UnexpectedError(error, what="the scan of the log directory failed")
            log_bug(bug)
            message = f"the log directory could not be scanned ({plain(str(error))})."
            hint = f"Reinstall tb_perfadvisor, or report it with the id {bug.id}."
            problem = Problem("logdir", message, hint)
            snapshot = Snapshot(problems=(problem,), is_complete=False)
        finally:
            with self._lock:
                # One that was abandoned may have got its answer after all.
                if number == self._scans or not self._is_scanning:
                    self._finish(snapshot)

    def _finish(self, snapshot: Snapshot) -> None:
        """End the running scan, which may still wait for an answer. Call it with the lock."""
        now = time.monotonic()
        is_remote = any(root.is_remote for root in self.roots)
        interval_s = REMOTE_INTERVAL_S if is_remote else LOCAL_INTERVAL_S
        if now < self.hurries_until:
            interval_s = min(interval_s, ASKED_INTERVAL_S)
        self.snapshot = snapshot
        self._is_scanning = False
        self._scans += 1
        self._next_scan_at = now + max(interval_s, _REST_FACTOR * (now - self._began_at))
        self._lock.notify_all()
        self._warn(snapshot)

    def _abandoned(self) -> Snapshot:
        """What the last scan found, and that this one does not end."""
        label = self._listed.label if self._listed is not None else "logdir"
        message = f"it does not answer: listing it takes longer than {_LONGEST_S / 60:.0f} minutes."
        hint = "Check the disk or the network. What is shown was found before."
        problem = Problem(label, message, hint)
        return replace(self.snapshot, problems=(problem,), is_complete=False)

    def _list_captures(self) -> Snapshot:
        from tb_perfadvisor.ingest.discovery import discover
        from tb_perfadvisor.instrument.record_requests import programs_below

        entries: dict[str, Entry] = {}
        rejected: list[tuple[str, str]] = []
        problems: list[Problem] = []
        gaps: list[str] = []
        programs: list[Path] = []
        scanned_files, is_complete = 0, True
        for root in self.roots:
            self._listed = root
            if not root.is_remote:
                programs += programs_below(root.path)
            try:
                listing = self._listings[root] = discover(root.path, root.boundary)
            except StoreError as error:
                problems.append(Problem(root.label, error.message, error.hint))
                if root not in self._listings:
                    continue
                # Keep the last listing, so that a network failure does not hide reports.
                listing = self._listings[root]
            except PerfAdvisorError as error:
                problems.append(Problem(root.label, error.message, error.hint))
                continue
            except Exception as error:  # a store's client may raise anything
                name = type(error).__name__
                message = f"it could not be listed ({name})."
                hint = "Check credentials and network. TensorBoard's log has the details."
                problems.append(Problem(root.label, message, hint))
                log.explain(f"{root.path} could not be listed:\n{traceback.format_exc()}")
                continue
            for entry in _entries(root, listing):
                entries[entry.id] = entry
            rejected += [
                (grouped_run(root.group, file.path), file.reason) for file in listing.rejected
            ]
            scanned_files += listing.scanned_files
            is_complete &= listing.is_complete
            gaps += [f"{root.group}: {gap}" if root.group else gap for gap in listing.gaps]
        return Snapshot(
            MappingProxyType(entries),
            tuple(rejected),
            tuple(problems),
            scanned_files,
            is_complete and not problems,
            tuple(gaps),
            tuple(programs),
        )

    def _warn(self, snapshot: Snapshot) -> None:
        for problem in snapshot.problems:
            text = f"{problem.where}: {problem.message} {problem.hint}".strip()
            if text not in self._warned:
                self._warned.add(text)
                log.warn(text)


def _entries(root: Root, listing: Listing) -> list[Entry]:
    from tb_perfadvisor.engine.result_cache import capture_key
    from tb_perfadvisor.ingest.event_files.runs import RunsByPlace, event_runs
    from tb_perfadvisor.ingest.recordings import series_of

    places = RunsByPlace(event_runs(listing))
    return [
        Entry(
            id=grouped_id(root.group, capture.id),
            run=grouped_run(root.group, capture.run),
            root=root,
            base=listing.root,
            capture=capture,
            key=capture_key(root.path, capture, f"tab {root.group}"),
            series=(root, *series_of(capture)),
            candidates=places.candidates(capture.run),
        )
        for capture in listing.captures
    ]
