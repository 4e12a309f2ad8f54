"""The event files of the runs in a log directory, and the runs that profiles belong to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.patterns import regex

OWN_DIRECTORY: Final = "perf_advisor"
"""What `perfadvisor publish` writes is no scalar of the run."""
_EVENT_FILE: Final = regex(r"(?:^|/)[^/]*tfevents[^/]*$")
_PARTS_OF_A_RUN: Final = ("train", "validation")
"""Keras logs training and validation of one run into directories of these names."""


def is_event_file(path: str) -> bool:
    """Whether a file is one that TensorBoard's writers wrote, by its name."""
    return _EVENT_FILE.search(path) is not None


def run_of_directory(parts: Sequence[str]) -> tuple[str, str]:
    """The run that a directory belongs to, and what tags in it begin with.

    >>> run_of_directory(["resnet", "train"]), run_of_directory(["resnet"]), run_of_directory([])
    (('resnet', 'train/'), ('resnet', ''), ('.', ''))
    """
    if parts and parts[-1] in _PARTS_OF_A_RUN:
        return "/".join(parts[:-1]) or ".", f"{parts[-1]}/"
    return "/".join(parts) or ".", ""


MOST_BYTES_BESIDE_A_REPORT = 256 << 20
"""Half a minute of reading. Whoever waits for a report did not ask for more."""
_OF_PROFILES = regex(r"(?<![a-z])(?:prof(?:il\w*)?|traces?)(?![a-z])", re.IGNORECASE)
"""`profile_traces` (torchtitan), `profiler`, `profiling`, `torch_profile`, `traces`. Whole words:
`tracelens` is the name of a run."""


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


class CandidateRuns(Struct, frozen=True):
    """The runs that a capture may belong to, by the directories that they lie in."""

    runs: tuple[EventRun, ...] = ()
    by_time: bool = False
    """Whether the runs only lie beside the capture, so that the time of its recording decides.
    Otherwise there is at most one run, and the capture belongs to it."""

    @property
    def certain(self) -> EventRun | None:
        """The run, if its place alone decides."""
        return None if self.by_time or not self.runs else self.runs[0]

    @property
    def is_read_beside(self) -> bool:
        """Whether they are read for a report or a comparison, without being asked for."""
        return 0 < sum(run.size_bytes for run in self.runs) <= MOST_BYTES_BESIDE_A_REPORT


class RunsByPlace:
    """Finds the runs that captures may belong to.

    A capture belongs to the run of its directory, or of the next directory above: Megatron-LM and
    MaxText write profiles beside their event files, others into directories below. If there is
    none, the runs below the nearest directory above it are candidates: torchtitan writes
    `tb/TIME/events…` and `profile_traces/iteration_10/rank0_trace.json`. The capture must then lie
    in a directory named after profiles or traces; `a/trace.json` says nothing of `b/events…`.
    """

    def __init__(self, runs: Mapping[str, EventRun]) -> None:
        """Take the runs that have event files, by name."""
        self._runs = runs
        below: dict[tuple[str, ...], list[EventRun]] = defaultdict(list)
        for run in runs.values():
            parts = _parts(run.run)
            for depth in range(len(parts)):
                below[parts[:depth]].append(run)
        self._below = {
            directory: CandidateRuns(tuple(found), by_time=True)
            for directory, found in below.items()
        }

    def candidates(self, capture_run: str) -> CandidateRuns:
        """The runs that a capture may belong to, by its `Capture.run`."""
        parts = _parts(capture_run)
        for depth in range(len(parts), -1, -1):
            run = self._runs.get(run_of_directory(parts[:depth])[0])
            if run is not None:
                return CandidateRuns((run,))
        for depth in range(len(parts), -1, -1):
            beside = self._below.get(parts[:depth])
            if beside is not None:
                is_of_profiles = depth == len(parts) or _OF_PROFILES.search(parts[depth])
                return beside if is_of_profiles else CandidateRuns()
        return CandidateRuns()


def _parts(run: str) -> tuple[str, ...]:
    return () if run == "." else tuple(run.split("/"))
