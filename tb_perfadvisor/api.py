"""The engine in Python: load, analyze, compare.

>>> from tb_perfadvisor import analyze, compare
>>> report = analyze("runs/resnet50")
>>> report.findings[0].title
>>> compare("runs/resnet50", "runs/resnet50_workers").targets[0].headline
"""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from tb_perfadvisor.engine.analyze import Analysis, Progress, analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.rank_summaries import summarizer_of
from tb_perfadvisor.errors import (
    NothingFoundError,
    PerfAdvisorError,
    UsageError,
    contained,
    log_bug,
)
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.execution.limits import time_limit
from tb_perfadvisor.ingest.captures import Capture, Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import Read, load_capture, start_reading
from tb_perfadvisor.plain_text import printable_name
from tb_perfadvisor.report import Report, build_report
from tb_perfadvisor.report.model import Rejected
from tb_perfadvisor.report.report_cache import ReportCache
from tb_perfadvisor.trace import Run, Trace

# Comparisons are imported when they are needed.
if TYPE_CHECKING:
    from tb_perfadvisor.report.comparison import Choice, Comparison, RunFacts
    from tb_perfadvisor.training.training import Profile, Training

Source = str | os.PathLike[str] | Trace | Run
T = TypeVar("T", bound=msgspec.Struct)


def load(path: str | os.PathLike[str], *, execution: Execution = IN_PROCESS) -> tuple[Run, ...]:
    """Read every capture under a path: a logdir, a run or one file.

    Args:
        path: A local path, or any URL that fsspec opens.
        execution: Where files are read.

    Raises:
        NothingFoundError: When there is none that can be read.
    """
    listing = discover(path)
    runs, failures = [], []
    for capture in listing.captures:
        try:
            reads = start_reading(listing, capture, execution.executor)
            runs.append(load_capture(listing, capture, reads=reads))
        except Exception as raised:
            error = contained(raised, capture.run)
            log_bug(error)
            failures.append(error)
    if not runs:
        raise nothing_found(path, listing, failures)
    return tuple(runs)


def analyze(
    source: Source,
    config: Config | None = None,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
) -> Report:
    """Analyze one capture.

    Args:
        source: A path that holds exactly one capture, or what `load` returns, or a trace.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read: see `tb_perfadvisor.execution.open_execution`.

    Raises:
        NothingFoundError: When the path holds no readable capture.
        UsageError: When it holds several.
    """
    run = _wrapped(source)
    if not isinstance(run, Run):
        run = _read(*_only_capture(run), progress, execution)
    config = config or Config()
    return build_report(analyze_run(run, config, progress), config, progress)


def analyze_all(
    logdir: str | os.PathLike[str],
    config: Config | None = None,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
) -> list[Report]:
    """Analyze every capture below a path; one that cannot be read is left out with a warning.

    Args:
        logdir: A logdir, a run or one file, local or by URL.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        NothingFoundError: When none can be read.
    """
    reports, rejected = analyze_below(logdir, config or Config(), progress, execution=execution)
    if rejected:
        first = f"{rejected[0].path}: {rejected[0].reason}"
        more = f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
        warnings.warn(f"not read: {first}{more}", stacklevel=2)
    return reports


def analyze_below(
    path: str | os.PathLike[str],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
) -> tuple[list[Report], list[Rejected]]:
    """Analyze every capture below a path.

    Args:
        path: A logdir, a run or one file, local or by URL.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Returns:
        The reports, and the files that were not read.

    Raises:
        NothingFoundError: When none can be read.
    """
    listing = discover(path)
    if not listing.captures:
        raise nothing_found(path, listing)
    reports: list[Report] = []
    rejected = [Rejected(path=file.path, reason=file.reason) for file in listing.rejected]
    for result in analyze_captures(
        listing, listing.captures, config, progress, execution=execution
    ):
        if isinstance(result, Report):
            reports.append(result)
        else:
            rejected.append(result)
    if not reports:
        reasons = " ".join(f"{file.path}: {file.reason}" for file in rejected[:3])
        raise NothingFoundError(f"contains no readable profile. {reasons}", where=str(path))
    return reports, rejected


def compare(
    base: Source,
    target: Source,
    *more: Source,
    config: Config | None = None,
    progress: Progress | None = None,
    execution: Execution = IN_PROCESS,
) -> Comparison:
    """Compare captures with a base.

    Args:
        base: As for `analyze`.
        target: The capture to compare with the base.
        *more: Further captures to compare with it.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        NothingFoundError: When a path holds no readable capture.
        UsageError: When one holds several.
    """
    from tb_perfadvisor.report.comparison import Choice, compare_facts, make_facts

    config = config or Config()
    facts, places = [], []
    for source in (base, target, *more):
        run = _wrapped(source)
        if isinstance(run, Run):
            places.append(tuple(run.name.split("/")))
        else:
            choice = Choice(*_only_capture(run))
            places.append(choice.place)
            run = _read(choice.listing, choice.capture, progress, execution)
        analysis = analyze_run(run, config, progress)
        facts.append(make_facts(analysis, build_report(analysis, config)))
    first, *others = with_distinct_names(facts, places)
    return compare_facts(first, others)


def with_distinct_names(
    facts: Sequence[RunFacts], places: Sequence[tuple[str, ...]]
) -> list[RunFacts]:
    """Give each run of a comparison the shortest name that no other run has.

    Args:
        facts: The facts of each run.
        places: The parts of each run's path.
    """
    from tb_perfadvisor.report.comparison import distinct_names

    names = distinct_names(places, [run.session for run in facts])
    return [msgspec.structs.replace(run, name=name) for run, name in zip(facts, names, strict=True)]


def _wrapped(source: Source) -> str | os.PathLike[str] | Run:
    """Wrap a single trace in a run."""
    if isinstance(source, Trace):
        return Run(id="trace", name=source.source.run, session="", traces=(source,))
    return source


def _only_capture(path: str | os.PathLike[str]) -> tuple[Listing, Capture]:
    """The capture of a path that holds exactly one."""
    listing = discover(path)
    if len(listing.captures) > 1:
        names = ", ".join(
            f"{capture.run} {capture.session}".strip() for capture in listing.captures[:5]
        )
        raise UsageError(
            f"contains {len(listing.captures)} captures ({names}).",
            where=str(path),
            hint="Name one of them, or analyze all with `analyze_all`.",
        )
    if not listing.captures:
        raise nothing_found(path, listing)
    return listing, listing.captures[0]


def analyze_captures(
    listing: Listing,
    captures: Sequence[Capture],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
    report_cache: ReportCache[Report] | None = None,
    time_limit_s: float = math.inf,
) -> Iterator[Report | Rejected]:
    """Analyze captures one after the other; go on after one that cannot be read.

    Args:
        listing: The listing that the captures are of.
        captures: What to analyze.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.
        report_cache: Reports of unchanged files are taken from it, and new ones added.
        time_limit_s: The most time for each capture.
    """
    chosen = [(listing, capture) for capture in captures]
    for _, capture, report, reads in _with_reads(chosen, execution, report_cache):
        try:
            if report is None:
                with time_limit(time_limit_s):
                    run = load_capture(listing, capture, progress, reads=reads)
                    analysis = analyze_run(run, config, progress)
                    report = build_report(analysis, config, progress)
                if report_cache is not None:
                    report_cache.write(listing.root, capture, report, report.notes)
            yield report
        except UsageError:
            raise
        except Exception as raised:
            error = contained(raised, capture.run)
            log_bug(error)
            reason = f"{error.message} {error.hint}".strip()
            yield Rejected(path=error.where or capture.run, reason=reason)


def facts_of_all(
    choices: Sequence[Choice],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
    report_cache: ReportCache[RunFacts] | None = None,
    time_limit_s: float = math.inf,
) -> Iterator[RunFacts | PerfAdvisorError]:
    """The facts of captures, one after the other; or why one cannot be read.

    Args:
        choices: The captures.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.
        report_cache: Facts of unchanged files are taken from it, and new ones added.
        time_limit_s: The most time for each capture.
    """
    from tb_perfadvisor.report.comparison import make_facts

    chosen = [(choice.listing, choice.capture) for choice in choices]
    for listing, capture, facts, reads in _with_reads(chosen, execution, report_cache):
        try:
            if facts is None:
                with time_limit(time_limit_s):
                    run = load_capture(listing, capture, progress, reads=reads)
                    analysis = analyze_run(run, config, progress)
                    facts = make_facts(analysis, build_report(analysis, config))
                if report_cache is not None:
                    report_cache.write(listing.root, capture, facts, analysis.notes)
            yield facts
        except UsageError:
            raise
        except Exception as raised:
            error = contained(raised, capture.run)
            log_bug(error)
            yield error


def _with_reads(
    captures: Iterable[tuple[Listing, Capture]],
    execution: Execution,
    report_cache: ReportCache[T] | None,
) -> Iterator[tuple[Listing, Capture, T | None, Sequence[Read]]]:
    """Each capture with its cached result, or with calls that return what was read of it.

    While one capture is analyzed, the executor reads the files of the next ones.
    """
    waiting: deque[tuple[Listing, Capture, T | None, Sequence[Read]]] = deque()
    for listing, capture in captures:
        result = report_cache.read(listing.root, capture) if report_cache is not None else None
        reads = _start_reading(listing, capture, execution) if result is None else ()
        waiting.append((listing, capture, result, reads))
        while sum(len(reads) for *_, reads in waiting) > execution.max_pending_files:
            yield waiting.popleft()
    yield from waiting


def _read(
    listing: Listing, capture: Capture, progress: Progress | None, execution: Execution
) -> Run:
    reads = _start_reading(listing, capture, execution)
    return load_capture(listing, capture, progress, reads=reads)


def _start_reading(listing: Listing, capture: Capture, execution: Execution) -> Sequence[Read]:
    """Start to read a capture; each rank is summed up where it is read."""
    return start_reading(listing, capture, execution.executor, summarizer_of(capture))


def analyze_capture(
    root: str,
    capture: Capture,
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
) -> Analysis:
    """Analyze a capture that was listed before.

    Args:
        root: Of the listing.
        capture: A capture of the listing.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        PerfAdvisorError: When none of its files can be read.
    """
    listing = Listing(root, (capture,), (), scanned_files=0, is_complete=True)
    run = _read(listing, capture, progress, execution)
    return analyze_run(run, config, progress)


def nothing_found(
    path: str | os.PathLike[str],
    listing: Listing,
    failures: Sequence[PerfAdvisorError] = (),
) -> NothingFoundError:
    """The error for a path without a readable profile: what was seen, and what is expected.

    Args:
        path: What the user named.
        listing: What was found there.
        failures: Captures that could not be read.
    """
    where = printable_name(Path(path).name or str(path))
    if [file.path for file in listing.rejected] == [where]:
        return NothingFoundError(
            f"is not a readable profile: {listing.rejected[0].reason}", where=where
        )
    reasons = [f"{file.path}: {file.reason}" for file in listing.rejected[:3]]
    reasons += [str(error) for error in failures[:3]]
    if reasons:
        return NothingFoundError("contains no readable profile. " + " ".join(reasons), where=where)
    scanned = f"{listing.scanned_files:,} files scanned"
    return NothingFoundError(
        f"contains no profile ({'; '.join([scanned, *listing.gaps])}).",
        where=where,
        hint="Expected *.pt.trace.json[.gz] (PyTorch) or plugins/profile/SESSION/HOST.xplane.pb "
        "(TensorFlow, JAX).",
    )


def describe_runs(
    path: str | os.PathLike[str], progress: Progress | None = None
) -> Iterator[tuple[str, Training | None]]:
    """How fast the runs below a path trained, by the scalars that they logged.

    Args:
        path: A local path, or any URL that fsspec opens.
        progress: Called with a stage and a share of it (0-1).

    Returns:
        Each run with event files, and what they say of its speed; None if that is nothing.

    Raises:
        NothingFoundError: When there is no event file.
    """
    from tb_perfadvisor.ingest.event_files.runs import find_event_runs, read_run, run_of_directory
    from tb_perfadvisor.training.training import describe_training

    runs = find_event_runs(path)
    if not runs:
        raise NothingFoundError(
            "contains no event file.",
            where=Path(path).name or str(path),
            hint="Expected events.out.tfevents.*, which TensorBoard's writers create.",
        )
    listing = discover(path)
    for run in runs:
        profiles = [
            profile
            for capture in listing.captures
            if run_of_directory(capture.run.split("/"))[0] == run.run
            and (profile := _profile_of(listing.root, capture, progress)) is not None
        ]
        yield run.run, describe_training(read_run(run), profiles)


def _profile_of(root: str, capture: Capture, progress: Progress | None) -> Profile | None:
    """When a capture was recorded, and its step time; None if it cannot be read or has no clock."""
    from tb_perfadvisor.training.training import Profile

    try:
        signals = analyze_capture(root, capture, Config(), progress).signals
    except Exception as raised:
        log_bug(contained(raised, capture.run))
        return None
    trace, steps = signals.trace, signals.steps
    if trace.source.origin_unix_ns is None:
        return None
    start_ns = trace.source.origin_unix_ns
    step_ns = float(np.median(steps.end_ns - steps.start_ns)) if len(steps) else None
    return Profile(capture.session, start_ns, start_ns + trace.duration_ns, step_ns)
