"""Finds the event files of the runs in a log directory."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.ingest.files.access import list_tree, open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.training.scalars import RunScalars, Series, merge_series

_EVENT_FILE: Final = re.compile(r"(?:^|/)[^/]*tfevents[^/]*$")
_PARTS_OF_A_RUN: Final = ("train", "validation")
"""Keras logs training and validation of one run into directories of these names."""
OWN_DIRECTORY: Final = "perf_advisor"
"""What `perfadvisor publish` writes is no scalar of the run."""


class EventFile(Struct, frozen=True):
    """One event file of a run."""

    entry: FileEntry
    prefix: str = ""
    """What its tags begin with: `train/` or `validation/` for Keras."""


class EventRun(Struct, frozen=True):
    """The event files of one run, in order of their names, which begin with their time."""

    root: str
    run: str
    """Relative to the root; `.` for the root itself."""
    files: tuple[EventFile, ...]


def find_event_runs(root: str | os.PathLike[str]) -> tuple[EventRun, ...]:
    """The runs below a root that have event files.

    Args:
        root: A directory, one file, or any URL that fsspec opens.

    Raises:
        NothingFoundError: If there is nothing at the path.
        StoreError: If a store denies access, or cannot be reached.
    """
    tree = list_tree(root, lambda path: _EVENT_FILE.search(path) is not None)
    runs: dict[str, list[EventFile]] = defaultdict(list)
    for entry in tree.entries:
        parts = entry.path.split("/")[:-1]
        if OWN_DIRECTORY in parts or _EVENT_FILE.search(entry.path) is None:
            continue
        run, prefix = run_of_directory(parts)
        runs[run].append(EventFile(entry, prefix))
    return tuple(EventRun(tree.root, run, tuple(files)) for run, files in sorted(runs.items()))


def run_of_directory(parts: Sequence[str]) -> tuple[str, str]:
    """The run that a directory belongs to, and what tags in it begin with.

    >>> run_of_directory(["resnet", "train"]), run_of_directory(["resnet"]), run_of_directory([])
    (('resnet', 'train/'), ('resnet', ''), ('.', ''))
    """
    if parts and parts[-1] in _PARTS_OF_A_RUN:
        return "/".join(parts[:-1]) or ".", f"{parts[-1]}/"
    return "/".join(parts) or ".", ""


def read_run(run: EventRun) -> RunScalars:
    """All scalars of a run.

    Raises:
        StoreError: If a store denies access, or cannot be reached.
        UnreadableProfileError: If a file cannot be opened.
    """
    found: dict[str, list[Series]] = defaultdict(list)
    for file in run.files:
        reader, entry = ScalarReader(), file.entry
        with open_file(
            run.root, entry.path, version=entry.version, size_bytes=entry.size_bytes
        ) as stream:
            reader.read(stream)
        for tag, series in reader.series().items():
            found[file.prefix + tag].append(series)
    return RunScalars({tag: merge_series(parts) for tag, parts in found.items()})
