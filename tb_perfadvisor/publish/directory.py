"""Where published summaries lie: `RUN/perf_advisor/`, which is ours alone.

A second event file in the directory of a training run makes some readers leave the first one
unread; so no file of a run is ever touched.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.tree import is_url, local_path
from tb_perfadvisor.publish.summaries import encode_events
from tb_perfadvisor.report import Report

DIRECTORY = "perf_advisor"
_SESSION = re.compile(r"(?:^|/)plugins/profile(?:/.*)?$")
_PREFIX, _SUFFIX = "events.out.tfevents.", ".perf_advisor"


def publish(reports: Iterable[Report], logdir: str) -> list[str]:
    """Write reports below a log directory, in place of what was published there before.

    Args:
        reports: Of captures of the log directory.
        logdir: Local, or any URL that fsspec opens.

    Returns:
        The directories written to, relative to the logdir.

    Raises:
        UsageError: When they cannot be written.
    """
    by_run: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_run[_run_directory(report)].append(report)
    filesystem, root = _open(logdir)
    written = []
    for run, own in sorted(by_run.items()):
        directory = f"{run}/{DIRECTORY}" if run else DIRECTORY
        content = encode_events(sorted(own, key=lambda report: report.session))
        try:
            _replace(filesystem, f"{root}/{directory}", content)
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror or error}.",
                where=directory,
                hint="Publishing needs write access to the log directory.",
            ) from error
        written.append(directory)
    return written


def _run_directory(report: Report) -> str:
    """Where the run lies that a report is of, relative to the logdir; empty for itself."""
    directory = report.workers[report.reference_worker].file.rpartition("/")[0]
    return _SESSION.sub("", directory)


def _open(logdir: str) -> tuple[Any, str]:
    if is_url(logdir):
        from tb_perfadvisor.ingest.files.remote.store import Store

        store = Store(logdir)
        return store.filesystem, store.base.rstrip("/")
    return LocalFileSystem(), local_path(logdir).rstrip("/\\")


def _replace(filesystem: Any, directory: str, content: bytes) -> None:
    """Write a new event file, then remove our earlier ones: a reader always finds one."""
    filesystem.invalidate_cache()
    try:
        paths = filesystem.ls(directory, detail=False)
    except FileNotFoundError:
        paths = []
    names = [str(path).rpartition("/")[2] for path in paths]
    ours = [name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    seconds = [int(text) for name in ours if (text := name[len(_PREFIX) : -len(_SUFFIX)]).isdigit()]
    # Readers take files in the order of their names.
    now = max([int(time.time()), *(second + 1 for second in seconds)])
    if isinstance(filesystem, LocalFileSystem):  # stores know no directories
        filesystem.makedirs(directory, exist_ok=True)
    filesystem.pipe_file(f"{directory}/{_PREFIX}{now:010d}{_SUFFIX}", content)
    for name in ours:
        filesystem.rm_file(f"{directory}/{name}")
