"""What the routes ask: the captures of the log directories and their results."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from tb_perfadvisor.contract.partners import (
    Nearby,
    Partner,
    Recorded,
    nearby_captures,
    suggest_partners,
)
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.profile_tab import profile_target
from tb_perfadvisor.plugin import log
from tb_perfadvisor.plugin.catalog import Catalog, Entry
from tb_perfadvisor.plugin.log_directories import Surroundings, roots_of
from tb_perfadvisor.plugin.origins import how_to_allow, is_loopback, page_name, write_hosts
from tb_perfadvisor.plugin.responses import ApiError
from tb_perfadvisor.plugin.results import Results, open_results
from tb_perfadvisor.plugin.worker import REPORT

# Long enough for an ordinary local scan, so that a reload shows a new recording.
_SCAN_WAIT_S = 1.0


class Neighbors(msgspec.Struct, frozen=True):
    """What the captures of a scan are to one another.

    Found once for each scan: with thousands of captures, that takes a noticeable time.
    """

    partners: Mapping[str, tuple[Partner, ...]]
    """What to compare each capture with by its name, by its id."""
    nearby: Mapping[str, Nearby]
    """What was recorded before and after each capture, by its id."""
    recordings: Mapping[object, int]
    """How often the run of a series was recorded."""


class Backend:
    """The captures, their results, and how TensorBoard was started."""

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._logdir = str(context.logdir or "")
        logdir_spec = str(getattr(context.flags, "logdir_spec", "") or "")
        repo = str(getattr(context.flags, "perfadvisor_repo", "") or "")
        link = str(getattr(context.flags, "perfadvisor_source_link", "") or "")
        self.code: Code | None = None
        """The user's code, if TensorBoard was started with it."""
        if repo:
            from tb_perfadvisor.plugin.backend import Code

            self.code = Code(repo, link)
        self._plugins: Mapping[str, Any] | None = context.plugin_name_to_instance
        stays_inside = bool(getattr(context.flags, "perfadvisor_stay_in_logdir", False))
        self.write_hosts = write_hosts(getattr(context.flags, "perfadvisor_write_hosts", "") or "")
        """The hosts whose pages may write, as far as TensorBoard's flag names them."""
        self.is_private = not stays_inside and _listens_here_only(context.flags)
        """Whether only this machine's user is expected to reach the server."""
        self.catalog = Catalog(roots_of(self._logdir, logdir_spec, stays_inside=stays_inside))
        self._lock = threading.Lock()
        self._results: Results | None = None
        self._neighbors: tuple[Mapping[str, Entry], Neighbors] | None = None
        self.cache_problem: str | None = None
        """Why results are not kept; set when they are opened."""

    def close(self) -> None:
        """Stop all analyses."""
        if self._results is not None:
            self._results.close()

    def refresh(self) -> None:
        """Scan for captures again, and wait a moment for the outcome."""
        self.catalog.refresh(wait_s=_SCAN_WAIT_S)

    def results(self) -> Results:
        """The results of captures, opened on first use."""
        with self._lock:
            if self._results is None:
                self._results, self.cache_problem = open_results()
            return self._results

    def neighbors(self) -> Neighbors:
        """What the captures of the last scan are to one another."""
        entries = self.catalog.snapshot.entries
        if self._neighbors is None or self._neighbors[0] is not entries:
            self._neighbors = entries, _neighbors_of(entries.values())
        return self._neighbors[1]

    def entry(self, capture_id: str) -> Entry:
        """The capture with an id, from the last scan."""
        entry = self.catalog.snapshot.entries.get(capture_id)
        if entry is None:
            # A shared link can be opened before the first scan has finished.
            self.refresh()
            entry = self.catalog.snapshot.entries.get(capture_id)
        if entry is None:
            hint = "Reload the page to see the current captures."
            if self.catalog.is_scanning:
                hint = "The log directory is still being scanned. Try again in a moment."
            raise ApiError(404, "there is no such capture.", hint=hint)
        return entry

    def read(self, entry: Entry, name: str) -> bytes:
        """A file of a capture's result."""
        content = self.results().read(entry, name)
        if content is None:
            raise not_analyzed()
        return content

    def rules_found(self, entry: Entry) -> tuple[str, ...]:
        """The rule of each finding in the report of a capture."""
        report = msgspec.json.decode(self.read(entry, REPORT), type=_Findings)
        return tuple(finding.rule_id for finding in report.findings)

    def surroundings(self) -> Surroundings:
        """How TensorBoard was started."""
        # Look it up here: the mapping gets plugins that load after this one.
        has_profile = "profile" in (self._plugins or {})
        return Surroundings(self._logdir, self.catalog.roots, has_profile)

    def notes_hint(self, request: wrappers.Request) -> str:
        """How to allow the page that asks to write notes; empty if it may."""
        page = page_name(request)
        if page in self.write_hosts or (self.is_private and is_loopback(page)):
            return ""
        return how_to_allow(page, self.write_hosts)

    def profile_target(self, entry: Entry) -> tuple[str | None, str | None]:
        """The run and host that the Profile tab shows a capture under, if it does."""
        if not self.surroundings().shows_in_profile_tab:
            return None, None
        return profile_target(entry.capture.files[0].path) or (None, None)


def _neighbors_of(entries: Collection[Entry]) -> Neighbors:
    named = [
        msgspec.structs.replace(entry.capture, id=entry.id, run=entry.run) for entry in entries
    ]
    return Neighbors(
        suggest_partners(named),
        nearby_captures(_as_recorded(entry) for entry in entries),
        Counter(entry.series for entry in entries),
    )


def _as_recorded(entry: Entry) -> Recorded:
    capture, folder = entry.capture, entry.run.rpartition("/")[0]
    alike = f"{entry.root.path}\0{folder}\0{capture.format}\0{len(capture.files)}"
    return Recorded(entry.id, alike, entry.recorded)


def _listens_here_only(flags: Any) -> bool:
    host = getattr(flags, "host", None) or "localhost"
    return not getattr(flags, "bind_all", False) and is_loopback(host)


class _Finding(msgspec.Struct):
    rule_id: str


class _Findings(msgspec.Struct):
    """The part of a report that routes need; decoding all of it takes many times as long."""

    findings: tuple[_Finding, ...]


def not_analyzed() -> ApiError:
    """The error for a capture that has no result."""
    hint = "Open its report first."
    return ApiError(409, "this capture has not been analyzed yet.", hint=hint)


_FRESH_S = 30
"""How long files that were read are used: users edit their code while they read a report."""


class Code:
    """The directory of the user's code."""

    def __init__(self, directory: str, link: str) -> None:
        """Open the directory; `link` is the pattern of links, empty for none."""
        from tb_perfadvisor.sources import Repository

        self.directory, self._link = directory, link or None
        self._lock = threading.Lock()
        self._repository: Repository | None = None
        self._read_at_s = 0.0

    def attach(self, report: bytes) -> bytes:
        """A report in JSON with the lines of code that its findings are about.

        A wrong directory or pattern is logged, and the report is shown without code.
        """
        from tb_perfadvisor.report.report import Report
        from tb_perfadvisor.sources import Repository, with_sources

        try:
            with self._lock:
                if self._repository is None or time.monotonic() - self._read_at_s > _FRESH_S:
                    self._repository = Repository(self.directory)
                    self._read_at_s = time.monotonic()
                found = with_sources(
                    msgspec.json.decode(report, type=Report), self._repository, self._link
                )
        except PerfAdvisorError as error:
            log.warn(f"no code is shown: {error}")
            return report
        return msgspec.json.encode(found)

    def digest(self) -> str:
        """Tells the state of the code: another one once a file was changed."""
        from tb_perfadvisor.sources import Repository

        repository = Repository(self.directory)
        digest = hashlib.sha256()
        for path in repository.files:
            with contextlib.suppress(OSError):  # deleted meanwhile
                stat = (repository.root / path).stat()
                digest.update(
                    f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="replace")
                )
        return digest.hexdigest()
