"""Analyzes recordings."""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.analysis import Analysis, Progress
from tb_perfadvisor.engine.analyze import analyze_run, summarizer_of
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
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
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.trace import Run, Trace

Source = str | os.PathLike[str] | Trace | Run


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
            reads = start_reading(listing, capture, execution.executor, slicing=execution.slicing)
            runs.append(load_capture(listing, capture, reads=reads))
        except Exception as raised:
            error = contained(raised, capture.run)
            log_bug(error)
            failures.append(error)
    if not runs:
        raise nothing_found(path, listing, failures)
    return tuple(runs)


def wrap_trace(source: Source) -> str | os.PathLike[str] | Run:
    """Wrap a single trace in a run."""
    if isinstance(source, Trace):
        return Run(id="trace", name=source.source.run, session="", traces=(source,))
    return source


def only_capture(path: str | os.PathLike[str]) -> tuple[Listing, Capture]:
    """The capture of a path that holds exactly one."""
    listing = discover(path)
    return listing, only_capture_of(listing, path)


def only_capture_of(listing: Listing, path: str | os.PathLike[str]) -> Capture:
    """The only capture of a listing.

    Args:
        listing: What was found.
        path: What the user named.

    Raises:
        NothingFoundError: If there is none.
        UsageError: If there are several.
    """
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
    return listing.captures[0]


def read_capture(
    listing: Listing, capture: Capture, progress: Progress | None, execution: Execution
) -> Run:
    """Read a capture of a listing.

    Args:
        listing: The listing that the capture is of.
        capture: What to read.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        PerfAdvisorError: When none of its files can be read.
    """
    summarize = summarizer_of(capture)
    reads = start_reading(listing, capture, execution.executor, summarize, execution.slicing)
    return load_capture(listing, capture, progress, reads=reads)


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
    count = listing.scanned_files
    scanned = f"{count:,} file{'' if count == 1 else 's'} scanned"
    return NothingFoundError(
        f"contains no profile ({'; '.join([scanned, *listing.gaps])}).",
        where=where,
        hint="Expected *.pt.trace.json[.gz] (PyTorch) or plugins/profile/SESSION/HOST.xplane.pb "
        "(TensorFlow, JAX).",
    )


T = TypeVar("T", bound=msgspec.Struct)


def make_results(
    captures: Iterable[tuple[Listing, Capture]],
    make: Callable[[Analysis], T],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
    cache: ReportCache[T] | None = None,
    time_limit_s: float = math.inf,
) -> Iterator[tuple[Capture, T | PerfAdvisorError]]:
    """Make a result of each capture, one after the other; go on after one that cannot be read.

    Args:
        captures: Each with the listing that it is of.
        make: Makes the result of an analyzed capture.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.
        cache: Results of unchanged files are taken from it, and new ones added.
        time_limit_s: The most time for each capture.

    Raises:
        UsageError: If no capture can be analyzed as asked.
    """
    for listing, capture, cached, reads in _with_reads(captures, execution, cache):
        result: T | PerfAdvisorError | None = cached
        try:
            if result is None:
                with time_limit(time_limit_s):
                    run = load_capture(listing, capture, progress, reads=reads)
                    analysis = analyze_run(run, config, progress, execution.threads)
                    result = make(analysis)
                if cache is not None:
                    cache.write(listing.root, capture, result, analysis.notes)
        except UsageError:
            raise
        except Exception as raised:
            result = contained(raised, capture.run)
            log_bug(result)
        yield capture, result


def _with_reads(
    captures: Iterable[tuple[Listing, Capture]],
    execution: Execution,
    cache: ReportCache[T] | None,
) -> Iterator[tuple[Listing, Capture, T | None, Sequence[Read]]]:
    """Each capture with its cached result, or with calls that return what was read of it.

    While one capture is analyzed, the executor reads the files of the next ones.
    """
    waiting: deque[tuple[Listing, Capture, T | None, Sequence[Read]]] = deque()
    for listing, capture in captures:
        result = cache.read(listing.root, capture) if cache is not None else None
        reads: Sequence[Read] = ()
        if result is None:
            summarize = summarizer_of(capture)
            reads = start_reading(
                listing, capture, execution.executor, summarize, execution.slicing
            )
        waiting.append((listing, capture, result, reads))
        while sum(len(reads) for *_, reads in waiting) > execution.max_pending_files:
            yield waiting.popleft()
    yield from waiting


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
    run = wrap_trace(source)
    if not isinstance(run, Run):
        run = read_capture(*only_capture(run), progress, execution)
    config = config or Config()
    analysis = analyze_run(run, config, progress, execution.threads)
    return build_report(analysis, config, progress)


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
    results = make_results(
        [(listing, capture) for capture in captures],
        lambda analysis: build_report(analysis, config, progress),
        config,
        progress,
        execution=execution,
        cache=report_cache,
        time_limit_s=time_limit_s,
    )
    for capture, result in results:
        if isinstance(result, Report):
            yield result
        else:
            reason = f"{result.message} {result.hint}".strip()
            yield Rejected(path=result.where or capture.run, reason=reason)


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
    run = read_capture(listing, capture, progress, execution)
    return analyze_run(run, config, progress, execution.threads)
