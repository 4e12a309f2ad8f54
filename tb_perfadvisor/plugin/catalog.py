"""What the log directories hold: scanned in a thread of its own, answered from memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from tensorboard.util import tb_logging

from tb_perfadvisor.errors import PerfAdvisorError, StoreError
from tb_perfadvisor.plugin.naming import Root, grouped_id, grouped_run

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.discovery import Capture, Listing

# A person's reload is answered freshly; a burst of requests is not a burst of scans.
LOCAL_INTERVAL_S = 2.0
# Listing a bucket costs money and seconds; nobody presses reload more often in earnest.
REMOTE_INTERVAL_S = 10.0
# Trees that take long to walk are walked less often: a fifth of the time at most.
_REST_FACTOR = 4.0
# Longer than any ordinary local scan; a directory that takes more deserves a tab that says so.
_PATIENCE_S = 1.0


class Entry(Struct, frozen=True):
    """A capture as the tab knows it."""

    id: str
    run: str
    root: Root
    base: str
    """What the paths of the capture's files are relative to."""
    capture: Capture
    key: str
    """Of its result in the cache: changes with the files."""


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
    """What was not looked at, and why: a phrase each."""


class Catalog:
    """Scans when asked and when the last scan is old enough; never by itself.

    Remote log directories are scanned for people alone: TensorBoard asks each plugin again and
    again whether it is active, and a page that was left open would list a bucket day and night.
    """

    def __init__(self, roots: tuple[Root, ...]) -> None:
        """Take the log directories; nothing is read before `refresh`."""
        self.roots = roots
        self._local = _Scanner(tuple(root for root in roots if not root.is_remote))
        self._remote = _Scanner(tuple(root for root in roots if root.is_remote))

    @property
    def snapshot(self) -> Snapshot:
        """The outcome of the last scans that ended."""
        one, other = self._local.snapshot, self._remote.snapshot
        if not self._remote.roots or not self._local.roots:
            return one if self._local.roots else other
        return Snapshot(
            MappingProxyType({**one.entries, **other.entries}),
            one.rejected + other.rejected,
            one.problems + other.problems,
            one.scanned_files + other.scanned_files,
            one.is_complete and other.is_complete,
            one.gaps + other.gaps,
        )

    @property
    def is_scanning(self) -> bool:
        """Whether a scan runs, or one has not ended yet for the first time."""
        return self._local.is_scanning or self._remote.is_scanning

    @property
    def is_active(self) -> bool:
        """Whether there is something to show, as far as known now: a look at memory.

        What a store holds is not known before someone opens the tab.
        """
        return bool(self._remote.roots) or self._local.is_active

    def refresh_local(self) -> None:
        """Start a scan of the local log directories in the background if the last is old."""
        self._local.start()

    def refresh(self, wait_s: float = 0.0) -> None:
        """Start scans in the background if the last are old, because someone asks.

        Args:
            wait_s: How long to wait for them; what they find later, a later request sees.
        """
        deadline = time.monotonic() + wait_s
        for scanner in (self._remote, self._local):
            scanner.start()
        for scanner in (self._local, self._remote):
            scanner.wait(deadline - time.monotonic())


class _Scanner:
    """Scans some log directories in a thread."""

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots = roots
        self._lock = threading.Condition()
        self.snapshot = Snapshot()
        self._is_scanning = False
        self._scans = 0
        self._next_scan_at = 0.0
        self._first_scan_at: float | None = None
        self._warned: set[str] = set()
        self._listings: dict[Root, Listing] = {}

    @property
    def is_scanning(self) -> bool:
        """Whether a scan runs, or none has ended yet."""
        return self._is_scanning or (self._scans == 0 and bool(self.roots))

    @property
    def is_active(self) -> bool:
        """Whether something was found.

        A first scan that takes long counts: the tab then says that it is looking.
        """
        if self.snapshot.entries:
            return True
        began = self._first_scan_at
        return self._scans == 0 and began is not None and time.monotonic() - began > _PATIENCE_S

    def start(self) -> None:
        """Start a scan in the background if none runs and the last one is old."""
        with self._lock:
            now = time.monotonic()
            if not self.roots or self._is_scanning or now < self._next_scan_at:
                return
            self._is_scanning = True
            if self._first_scan_at is None:
                self._first_scan_at = now
            threading.Thread(target=self._scan, name="perf-advisor-scan", daemon=True).start()

    def wait(self, wait_s: float) -> None:
        """Wait for the scan that runs, if one does; what it finds later, a later request sees."""
        with self._lock:
            if wait_s > 0:
                self._lock.wait_for(lambda: not self._is_scanning, wait_s)

    def _scan(self) -> None:
        began = time.monotonic()
        snapshot = self.snapshot
        try:
            snapshot = self._look()
        except Exception as error:  # the thread must end in order whatever a reader does
            message = f"the log directory could not be scanned ({error})."
            problem = Problem("logdir", message, "")
            snapshot = Snapshot(problems=(problem,), is_complete=False)
            tb_logging.get_logger().debug("Perf Advisor's scan failed", exc_info=True)
        finally:
            duration_s = time.monotonic() - began
            is_remote = any(root.is_remote for root in self.roots)
            interval_s = REMOTE_INTERVAL_S if is_remote else LOCAL_INTERVAL_S
            with self._lock:
                self.snapshot = snapshot
                self._is_scanning = False
                self._scans += 1
                rest_s = max(interval_s, _REST_FACTOR * duration_s)
                self._next_scan_at = time.monotonic() + rest_s
                self._lock.notify_all()
        self._warn(snapshot)

    def _look(self) -> Snapshot:
        from tb_perfadvisor.ingest.discovery import discover

        entries: dict[str, Entry] = {}
        rejected: list[tuple[str, str]] = []
        problems: list[Problem] = []
        gaps: list[str] = []
        scanned_files, is_complete = 0, True
        for root in self.roots:
            try:
                listing = self._listings[root] = discover(root.path)
            except StoreError as error:
                problems.append(Problem(root.label, error.message, error.hint))
                if root not in self._listings:
                    continue
                # A network that is down for a moment takes no report from the screen.
                listing = self._listings[root]
            except PerfAdvisorError as error:
                problems.append(Problem(root.label, error.message, error.hint))
                continue
            except Exception as error:  # a store's client may raise anything
                name = type(error).__name__
                message = f"it could not be listed ({name})."
                hint = "Are the credentials and the network in order? TensorBoard's log has more."
                problems.append(Problem(root.label, message, hint))
                logger = tb_logging.get_logger()
                logger.debug("Perf Advisor could not list %s", root.path, exc_info=True)
                continue
            for entry in _entries(root, listing):
                entries[entry.id] = entry
            rejected += [
                (grouped_run(root.group, one.path), one.reason) for one in listing.rejected
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
        )

    def _warn(self, snapshot: Snapshot) -> None:
        for problem in snapshot.problems:
            text = f"{problem.where}: {problem.message} {problem.hint}".strip()
            if text not in self._warned:
                self._warned.add(text)
                tb_logging.get_logger().warning("Perf Advisor: %s", text)


def _entries(root: Root, listing: Listing) -> list[Entry]:
    from tb_perfadvisor.engine.result_cache import capture_key

    return [
        Entry(
            id=grouped_id(root.group, capture.id),
            run=grouped_run(root.group, capture.run),
            root=root,
            base=listing.root,
            capture=capture,
            key=capture_key(root.path, capture, f"tab {root.group}"),
        )
        for capture in listing.captures
    ]
