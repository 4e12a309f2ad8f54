"""Finds the run that a profile belongs to, if only the time of the recording decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache, read_run
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns, EventRun
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.training.metrics import RunScalars
from tb_perfadvisor.training.progress import find_progress

_CREATED: Final = regex(r"tfevents\.(\d{10})\.")
"""Writers name a file after the second in which they created it."""
_NS_PER_S: Final = 10**9
_MOST_READ: Final = 8
"""A machine with eight GPUs may train eight runs at once. More would take minutes to read, and
several of them would fit."""
_MOST_NAMED: Final = 3
_HINT: Final = "Record profiles into the directory that the run writes its event files to."


class UnknownRunError(PerfAdvisorError):
    """The run of a profile is unknown."""

    def __init__(self, message: str, *, is_ambiguous: bool = False) -> None:
        super().__init__(message, hint=_HINT)
        self.is_ambiguous = is_ambiguous
        """Whether several runs fit, rather than none."""


class TimedRuns:
    """The runs that captures may belong to, with the time from their first step to their last.

    Each run is read at most once, and only if the name and the last change of its files leave it
    possible that it was logging.
    """

    def __init__(
        self,
        candidates: CandidateRuns,
        cache: ScalarCache | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """Read nothing yet; `progress` is called with a stage and a share of it (0-1)."""
        self._candidates = candidates
        self._cache = cache
        self._progress = progress
        self._scalars: dict[str, RunScalars] = {}

    def scalars(self, run: EventRun) -> RunScalars:
        """The scalars of a run.

        Raises:
            StoreError: If a store denies access, or cannot be reached.
            UnreadableProfileError: If a file cannot be opened.
        """
        if run.run not in self._scalars:
            self._scalars[run.run] = read_run(run, self._cache, self._progress)
        return self._scalars[run.run]

    def run_of(self, recorded: tuple[int, int] | None) -> EventRun:
        """The run of the capture, by its place if that is enough, else by time; see `run_at`."""
        return self._candidates.certain or self.run_at(recorded)

    def run_at(self, recorded: tuple[int, int] | None) -> EventRun:
        """The run that was logging while a profile was recorded.

        `recorded` has start and end of the recording in Unix time (ns); None if unknown.

        Raises:
            UnknownRunError: If no run was logging all that time, or several were.
            StoreError: If a store denies access, or cannot be reached.
            UnreadableProfileError: If a file cannot be opened.
        """
        if recorded is None:
            raise UnknownRunError(
                "the profile does not say when it was recorded, so its run is unknown."
            )
        possible = [run for run in self._candidates.runs if _was_open(run, recorded)]
        if len(possible) > _MOST_READ:
            raise _several(possible)
        fitting = [run for run in possible if self._logged_around(run, recorded)]
        if len(fitting) > 1:
            raise _several(fitting)
        if not fitting:
            raise UnknownRunError(
                "none of the runs beside the profile was logging while it was recorded."
            )
        return fitting[0]

    def _logged_around(self, run: EventRun, recorded: tuple[int, int]) -> bool:
        progress = find_progress(self.scalars(run).series)
        if progress is None:
            return False
        return bool(progress.start_ns[0] <= recorded[0] and recorded[1] <= progress.end_ns[-1])


def _was_open(run: EventRun, recorded: tuple[int, int]) -> bool:
    """Whether a run can have logged before and after a recording, as far as its files tell.

    A copy of a file may be newer than its content, but not older.
    """
    created = [
        int(found[1]) if (found := _CREATED.search(file.entry.path)) is not None else 0
        for file in run.files
    ]
    changed = [file.entry.mtime_ns for file in run.files]
    began_before = min(created) * _NS_PER_S <= recorded[0]
    return began_before and (max(changed) >= recorded[1] or min(changed) <= 0)


def _several(runs: list[EventRun]) -> UnknownRunError:
    names = [plain(run.run) for run in runs[:_MOST_NAMED]]
    if len(runs) > _MOST_NAMED:
        names[-1] = f"{len(runs) - _MOST_NAMED + 1} more"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return UnknownRunError(
        f"several runs were logging while the profile was recorded: {listed}.", is_ambiguous=True
    )
