"""The event files of the runs in a log directory, and their scalars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from msgspec import Struct

from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.event_files.names import OWN_DIRECTORY, run_of_directory
from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.ingest.event_files.scalar_cache import ScalarCache
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.training.scalars import RunScalars, Series, merge_series


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


def event_runs(listing: Listing) -> dict[str, EventRun]:
    """The runs that have event files, by name and in order of it. Opens none."""
    runs: dict[str, list[EventFile]] = defaultdict(list)
    for entry in listing.event_files:
        parts = entry.path.split("/")[:-1]
        if OWN_DIRECTORY not in parts:
            run, prefix = run_of_directory(parts)
            runs[run].append(EventFile(entry, prefix))
    return {run: EventRun(listing.root, run, tuple(files)) for run, files in sorted(runs.items())}


def run_of_capture(runs: Mapping[str, EventRun], capture_run: str) -> EventRun | None:
    """The run with event files that a capture belongs to: of its directory, or the next one above.

    Megatron-LM and MaxText write profiles beside their event files, others into directories below.

    Args:
        runs: The runs that have event files.
        capture_run: `Capture.run`.
    """
    parts = [] if capture_run == "." else capture_run.split("/")
    for depth in range(len(parts), -1, -1):
        run = runs.get(run_of_directory(parts[:depth])[0])
        if run is not None:
            return run
    return None


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
    found: dict[str, list[Series]] = defaultdict(list)
    all_bytes = max(sum(file.entry.size_bytes for file in run.files), 1)
    read_bytes = 0
    for file in run.files:
        if progress is not None:
            progress("reading scalars", read_bytes / all_bytes)
        for tag, series in _read_file(run.root, file.entry, cache).items():
            found[file.prefix + tag].append(series)
        read_bytes += file.entry.size_bytes
    return RunScalars({tag: merge_series(parts) for tag, parts in found.items()})


def _read_file(root: str, entry: FileEntry, cache: ScalarCache | None) -> Mapping[str, Series]:
    if cache is not None and (stored := cache.read_unchanged(root, entry)) is not None:
        return stored
    with open_file(
        root, entry.system_path, version=entry.version, size_bytes=entry.size_bytes
    ) as stream:
        reader = ScalarReader() if cache is None else cache.reader(root, entry, stream)
        reader.read(stream)
        series = reader.series()
        if cache is not None:
            cache.write(root, entry, stream, reader.end, series)
    return series
