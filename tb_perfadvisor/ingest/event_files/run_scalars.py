"""Reads the scalars of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.ingest.event_files.runs import EventRun
from tb_perfadvisor.ingest.event_files.scalar_cache import ScalarCache
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry, is_url
from tb_perfadvisor.training.scalars import RunScalars, ScalarSeries, merge_series


def read_run(
    run: EventRun,
    cache: ScalarCache | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> RunScalars:
    """All scalars of a run.

    Args:
        run: The run.
        cache: What was read before; files that grew are read on from there.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        StoreError: If a store denies access, or cannot be reached.
        UnreadableProfileError: If a file cannot be opened.
    """
    found: dict[str, list[ScalarSeries]] = defaultdict(list)
    all_bytes = max(run.size_bytes, 1)
    read_bytes = 0
    for file in run.files:
        if progress is not None:
            progress("reading scalars", read_bytes / all_bytes)
        for tag, series in _read_file(run.root, file.entry, cache).items():
            found[file.prefix + tag].append(series)
        read_bytes += file.entry.size_bytes
    return RunScalars({tag: merge_series(parts) for tag, parts in found.items()})


def _read_file(
    root: str, entry: FileEntry, cache: ScalarCache | None
) -> Mapping[str, ScalarSeries]:
    if cache is not None and (stored := cache.read_unchanged(root, entry)) is not None:
        return stored
    if cache is not None and is_url(root):
        # If the store serves no ranges, read the whole file. Its errors are the ones to show.
        with suppress(PerfAdvisorError):
            series = _read_on(root, entry, cache)
            if series is not None:
                return series
    with open_file(root, entry) as stream:
        reader = cache.reader(root, entry, stream) if cache is not None else None
        return _read(reader or ScalarReader(), root, entry, stream, cache)


def _read_on(root: str, entry: FileEntry, cache: ScalarCache) -> Mapping[str, ScalarSeries] | None:
    """Request only what was appended to a remote file; None if it is new, or another one."""
    from tb_perfadvisor.ingest.files.remote.ranges import open_ranges

    with open_ranges(root, entry.system_path, entry.size_bytes) as stream:
        reader = cache.reader(root, entry, stream)
        return None if reader is None else _read(reader, root, entry, stream, cache)


def _read(
    reader: ScalarReader,
    root: str,
    entry: FileEntry,
    stream: BinaryIO,
    cache: ScalarCache | None,
) -> Mapping[str, ScalarSeries]:
    reader.read(stream, entry.path)
    series = reader.series()
    if cache is not None:
        cache.write(root, entry, stream, reader.end, series)
    return series
