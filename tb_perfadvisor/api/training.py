"""How fast runs trained, by the scalars that they logged and the profiles recorded of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.api.analyses import analyze_captures
from tb_perfadvisor.comparison.whole_run import profile_of, span_of, whole_run_of
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.analysis import Progress
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.errors import NothingFoundError, contained, log_bug
from tb_perfadvisor.ingest.captures import Capture, Listing, directory_of
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache, open_scalar_cache, read_run
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns, EventRun, RunsByPlace, event_runs
from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
from tb_perfadvisor.ingest.load import name_of_run
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.training.training import Training, describe_training


class DescribedRun(Struct, frozen=True):
    """A run that logged scalars."""

    run: str
    training: Training | None
    """None if nothing follows from the scalars."""
    reports: tuple[Report, ...]
    """Of its profiles; with what the scalars say about them."""
    unread: tuple[Rejected, ...]
    """Profiles of the run that could not be read."""


def describe_runs(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    config: Config | None = None,
    report_cache: ReportCache[Report] | None = None,
) -> Iterator[DescribedRun]:
    """Describe how fast the runs below a path trained, by the scalars that they logged.

    Args:
        path: A local path, or any URL that fsspec opens.
        progress: Called with a stage and a share of it (0-1).
        config: Which rules, with which limits; and facts about the runs.
        report_cache: Reports of unchanged profiles are taken from it, and new ones added.

    Returns:
        Each run with event files, in order of their names.

    Raises:
        NothingFoundError: When there is no event file.
    """
    config = config or Config()
    listing = discover(path)
    runs = event_runs(listing)
    if not runs:
        raise NothingFoundError(
            "contains no event file.",
            where=Path(path).name or str(path),
            hint="Expected events.out.tfevents.*, which TensorBoard's writers create.",
        )
    places = RunsByPlace(runs)
    candidates = {capture.id: places.candidates(capture.run) for capture in listing.captures}

    def analyze(captures: list[Capture]) -> list[Report | Rejected]:
        return list(
            analyze_captures(listing, captures, config, progress, report_cache=report_cache)
        )

    # The time of its recording decides the run of a capture that lies beside event files.
    beside = [capture for capture in listing.captures if candidates[capture.id].by_time]
    by_run: dict[str, list[Report | Rejected]] = defaultdict(list)
    cache = open_scalar_cache()
    timed = _TimedRunsOf(candidates, progress, cache)
    for capture, result in zip(beside, analyze(beside), strict=True):
        if isinstance(result, Report):
            with suppress(UnknownRunError):
                by_run[timed.run_of(result).run].append(result)
        elif len(candidates[capture.id].runs) == 1:
            by_run[candidates[capture.id].runs[0].run].append(result)
    certain: dict[str, list[Capture]] = defaultdict(list)
    for capture in listing.captures:
        if (found := candidates[capture.id].certain) is not None:
            certain[found.run].append(capture)
    unread_of: dict[str, list[Rejected]] = defaultdict(list)
    for file in listing.rejected:
        if (found := places.candidates(directory_of(file.path)).certain) is not None:
            unread_of[found.run].append(Rejected(path=file.path, reason=file.reason))
    for run in runs.values():
        results = [*analyze(certain[run.run]), *by_run[run.run]]
        reports = [result for result in results if isinstance(result, Report)]
        training, reports = _describe(run, reports, config, progress, cache)
        unread = [result for result in results if isinstance(result, Rejected)]
        unread += unread_of[run.run]
        name = name_of_run(listing.root, run.run)
        yield DescribedRun(name, training, tuple(reports), tuple(unread))


def with_whole_runs(
    listing: Listing,
    reports: Sequence[Report],
    config: Config,
    progress: Progress | None = None,
) -> tuple[list[Report], list[Rejected]]:
    """Add to reports what the scalars of the same runs say about their steps.

    Args:
        listing: The listing that the captures are of.
        reports: Of its captures.
        config: Facts about the runs.
        progress: Called with a stage and a share of it (0-1).

    Returns:
        All reports in their order, and the runs whose event files were not read.
    """
    runs = event_runs(listing)
    places = RunsByPlace(runs)
    candidates = {capture.id: places.candidates(capture.run) for capture in listing.captures}
    cache = open_scalar_cache() if runs else None
    timed = _TimedRunsOf(candidates, progress, cache)
    by_run: dict[str, list[Report]] = defaultdict(list)
    rejected: list[Rejected] = []
    for report in reports:
        found = candidates.get(report.id, CandidateRuns())
        if not found.runs:
            continue
        if not found.is_read_beside:
            unread = _too_large(found, report)
            if unread not in rejected:
                rejected.append(unread)
            continue
        try:
            run = timed.run_of(report)
        except UnknownRunError as error:
            if error.is_ambiguous:
                reason = f"Its scalars were not used: {error}"
                rejected.append(Rejected(path=report.run, reason=reason))
        except Exception as raised:
            rejected.append(_not_read(raised, report.run))
        else:
            by_run[run.run].append(report)
    added: dict[str, Report] = {}
    for name, of_run in by_run.items():
        try:
            _, described = _describe(runs[name], of_run, config, progress, cache)
        except Exception as raised:
            rejected.append(_not_read(raised, name))
        else:
            added |= {report.id: report for report in described}
    return [added.get(report.id, report) for report in reports], rejected


class _TimedRunsOf:
    """Assigns captures to runs. Reads each run once, even if several captures may belong to it."""

    def __init__(
        self,
        candidates: Mapping[str, CandidateRuns],
        progress: Progress | None,
        cache: ScalarCache | None,
    ) -> None:
        self._candidates = candidates
        self._progress = progress
        self._cache = cache
        self._timed: dict[tuple[str, ...], TimedRuns] = {}

    def run_of(self, report: Report) -> EventRun:
        """The run of a capture; see `TimedRuns.run_of`."""
        candidates = self._candidates[report.id]
        names = tuple(run.run for run in candidates.runs)
        if names not in self._timed:
            self._timed[names] = TimedRuns(candidates, self._cache, self._progress)
        return self._timed[names].run_of(span_of(report.recorded))


def _too_large(candidates: CandidateRuns, report: Report) -> Rejected:
    path, files = report.run, "The event files beside it"
    if candidates.certain is not None:
        path, files = candidates.certain.run, "Its event files"
    mib = sum(candidate.size_bytes for candidate in candidates.runs) >> 20
    reason = (
        f"{files}, of {mib:,} MiB, were not read for these reports. "
        "`perfadvisor training` reads them."
    )
    return Rejected(path=path, reason=reason)


def _not_read(raised: Exception, run: str) -> Rejected:
    error = contained(raised, run)
    log_bug(error)
    return Rejected(path=error.where or run, reason=f"{error.message} {error.hint}".strip())


def _describe(
    run: EventRun,
    reports: Sequence[Report],
    config: Config,
    progress: Progress | None,
    cache: ScalarCache | None,
) -> tuple[Training | None, list[Report]]:
    """What the scalars of a run say, and the reports of its profiles with it."""
    scalars = read_run(run, cache, progress)
    profiles = [
        profile for report in reports if (profile := profile_of(report, run.run)) is not None
    ]
    training = describe_training(scalars, profiles)
    if training is None:
        return None, list(reports)
    return training, [
        replace(report, whole_run=whole_run_of(report, run.run, training, config.run))
        for report in reports
    ]
