"""Analyze captures: one, all below a path, or some of a listing."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence

from tb_perfadvisor.api.loading import Source, nothing_found, only_capture, read_capture, wrap_trace
from tb_perfadvisor.api.results import make_results
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.analysis import Analysis, Progress
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.ingest.captures import Capture, Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.trace import Run


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
    return analyze_run(run, config, progress)
