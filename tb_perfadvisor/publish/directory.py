"""Writes summaries to `RUN/perf_advisor/`, a directory that nothing else uses.

A second event file in the directory of a training run would make some readers ignore the first
one, so the files of a run are never touched.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.containment import LeadsOutError, resolve_inside
from tb_perfadvisor.ingest.files.tree import is_url, local_path
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.output_files import replace_file
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name
from tb_perfadvisor.publish.summaries import encode_events
from tb_perfadvisor.report.report import Report

DIRECTORY = "perf_advisor"
_SESSION = regex(r"(?:^|/)plugins/profile(?:/.*)?$")
_NO_PATHS: Mapping[str, str] = MappingProxyType({})
_PREFIX, _SUFFIX = "events.out.tfevents.", ".perf_advisor"


def publish(
    reports: Iterable[Report],
    logdir: str,
    system_paths: Mapping[str, str] = _NO_PATHS,
    warn: Callable[[str], None] | None = None,
) -> list[str]:
    """Write reports below a log directory, replacing what was published before.

    Nothing is written to directories to which links lead out of it.

    Reports are of captures of `logdir`, a local path or any URL that fsspec can open.
    `system_paths` has the path by which the system knows a file whose name cannot be printed.
    `warn` is called for each run that a link leads to. Returned are the directories written to,
    relative to the logdir.

    Raises:
        UsageError: If they cannot be written, or links lead out to all of them.
    """
    by_run: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_run[_run_directory(report, system_paths)].append(report)
    filesystem, root = _open(logdir)
    written, refused = [], []
    for run, reports_of_run in sorted(by_run.items()):
        directory = f"{run}/{DIRECTORY}" if run else DIRECTORY
        content = encode_events(sorted(reports_of_run, key=lambda report: report.session))
        try:
            place = f"{root}/{directory}"
            if isinstance(filesystem, LocalFileSystem):  # object stores have no directories
                place = _made_inside(root, run)
            _replace(filesystem, place, content)
        except LeadsOutError:
            refused.append(printable_name(directory))
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror or error}.",
                where=printable_name(directory),
                hint="Publishing needs write access to the log directory.",
            ) from error
        else:
            written.append(printable_name(directory))
    for where in refused:
        refusal = UsageError(
            "is not written, because a link leads to it out of the log directory.",
            where=where,
            hint="Publish in the directory that the link names.",
        )
        if not written:
            raise refusal
        if warn is not None:
            warn(str(refusal))
    return written


def _made_inside(root: str, run: str) -> str:
    """The directory for a run below a local root, without links in its path.

    Raises:
        LeadsOutError: If it lies elsewhere.
        OSError: If it cannot be made.
    """
    boundary = os.path.realpath(root)
    directory = Path(resolve_inside(f"{root}/{run}", boundary), DIRECTORY)
    directory.mkdir(exist_ok=True)
    return resolve_inside(str(directory), boundary)


def _run_directory(report: Report, system_paths: Mapping[str, str]) -> str:
    """The directory of a report's run, relative to the logdir; empty for the logdir itself."""
    path = report.workers[report.reference_worker].file
    directory = _SESSION.sub("", system_paths.get(path, path).rpartition("/")[0])
    # The recordings of a run, each in a directory named after its step, are the run's steps.
    run, step = split_step(directory)
    return directory if step is None else run.removeprefix(".")


def _open(logdir: str) -> tuple[Any, str]:
    if is_url(logdir):
        from tb_perfadvisor.ingest.files.remote.store import Store

        store = Store(logdir)
        return store.filesystem, store.base.rstrip("/")
    return LocalFileSystem(), local_path(logdir).rstrip(f"/{os.sep}")


def _replace(filesystem: Any, directory: str, content: bytes) -> None:
    """Write a new event file, then remove our older ones, so that readers always find one."""
    filesystem.invalidate_cache()
    try:
        paths = filesystem.ls(directory, detail=False)
    except FileNotFoundError:
        paths = []
    names = [str(path).rpartition("/")[2] for path in paths]
    ours = [name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    times = [name[len(_PREFIX) : -len(_SUFFIX)] for name in ours]
    seconds = [int(text) for text in times if text.isdecimal()]
    # Readers read files in the order of their names.
    now = max([int(time.time()), *(second + 1 for second in seconds)])
    path = f"{directory}/{_PREFIX}{now:010d}{_SUFFIX}"
    if isinstance(filesystem, LocalFileSystem):
        replace_file(Path(path), [content])
    else:
        filesystem.pipe_file(path, content)
    for name in ours:
        filesystem.rm_file(f"{directory}/{name}")
