"""The event files of the runs in a log directory, and the runs that profiles belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.event_files.names import OWN_DIRECTORY, run_of_directory
from tb_perfadvisor.ingest.files.tree import FileEntry

MOST_BYTES_BESIDE_A_REPORT = 256 << 20
"""Half a minute of reading. Whoever waits for a report did not ask for more."""


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

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.entry.size_bytes for file in self.files)

    @property
    def is_read_beside(self) -> bool:
        """Whether its scalars are read for a report or a comparison, without being asked for."""
        return self.size_bytes <= MOST_BYTES_BESIDE_A_REPORT


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
