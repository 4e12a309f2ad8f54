"""The engine in Python: load, analyze, compare.

>>> from tb_perfadvisor import analyze, compare
>>> report = analyze("runs/resnet50")
>>> report.findings[0].title
>>> compare("runs/resnet50", "runs/resnet50_workers").targets[0].headline
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tb_perfadvisor.engine.analyze import Analysis, Progress, analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.rank_digests import digest_of
from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.discovery import Capture, Listing, discover
from tb_perfadvisor.ingest.load import Read, load_capture, start_reading
from tb_perfadvisor.report import Report, build_report
from tb_perfadvisor.report.model import Rejected
from tb_perfadvisor.report.report_cache import ReportCache
from tb_perfadvisor.trace import Run, Trace

# What compares is imported by what does compare.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tb_perfadvisor.report.comparison import Choice, Comparison, RunFacts

Source = str | os.PathLike[str] | Trace | Run
T = TypeVar("T", bound=msgspec.Struct)


def load(path: str | os.PathLike[str]) -> tuple[Run, ...]:
    """Read every capture under a path: a logdir, a run or one file.

    Raises:
        NothingFoundError: When there is none that can be read.
    """
    listing = discover(path)
    runs, failures = [], []
    for capture in listing.captures:
        try:
            runs.append(load_capture(listing, capture))
        except PerfAdvisorError as error:
            failures.append(error)
    if not runs:
        raise nothing_found(listing, failures)
    return tuple(runs)


def analyze(
    source: Source, config: Config | None = None, progress: Progress | None = None
) -> Report:
    """Analyze one capture.

    Args:
        source: A path that holds exactly one capture, or what `load` returns, or a trace.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        NothingFoundError: When the path holds no readable capture.
        UsageError: When it holds several.
    """
    run = _wrapped(source)
    if not isinstance(run, Run):
        run = _read(*_only_capture(run), progress)
    config = config or Config()
    return build_report(analyze_run(run, config, progress), config, progress)


def compare(
    base: Source,
    target: Source,
    *more: Source,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare captures with a base.

    Args:
        base: As for `analyze`.
        target: What is measured against it.
        *more: Further targets.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

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
            run = _read(choice.listing, choice.capture, progress)
        analysis = analyze_run(run, config, progress)
        facts.append(make_facts(analysis, build_report(analysis, config)))
    first, *others = named(facts, places)
    return compare_facts(first, others)


def named(facts: Sequence[RunFacts], places: Sequence[tuple[str, ...]]) -> list[RunFacts]:
    """Facts under the shortest names that tell them apart.

    Args:
        facts: Of the runs of one comparison.
        places: The parts of each run's path.
    """
    from tb_perfadvisor.report.comparison import distinct_names

    names = distinct_names(places, [one.session for one in facts])
    return [msgspec.structs.replace(one, name=name) for one, name in zip(facts, names, strict=True)]


def _wrapped(source: Source) -> str | os.PathLike[str] | Run:
    """A source as it is, but a trace as the run that it is alone."""
    if isinstance(source, Trace):
        return Run(id="trace", name=source.source.run, session="", traces=(source,))
    return source


def _only_capture(path: str | os.PathLike[str]) -> tuple[Listing, Capture]:
    """The only capture of a path."""
    listing = discover(path)
    if len(listing.captures) > 1:
        names = ", ".join(f"{one.run} {one.session}".strip() for one in listing.captures[:5])
        raise UsageError(
            f"holds {len(listing.captures)} captures ({names}).",
            where=str(path),
            hint="Name one of them, or go through all with `load`.",
        )
    if not listing.captures:
        raise nothing_found(listing)
    return listing, listing.captures[0]


def analyze_all(
    listing: Listing,
    captures: Sequence[Capture],
    config: Config,
    progress: Progress | None = None,
    *,
    executor: Executor | None = None,
    files_ahead: int = 0,
    report_cache: ReportCache[Report] | None = None,
) -> Iterator[Report | Rejected]:
    """Analyze captures one after the other; one that cannot be read does not stop the rest.

    Args:
        listing: The listing that the captures are of.
        captures: What to analyze.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        executor: Where files are read; by default here, each when its turn comes.
        files_ahead: How many files to read ahead of the capture that is being analyzed.
        report_cache: Reports of earlier times, which are taken where nothing has changed.
    """
    own = [(listing, capture) for capture in captures]
    for _, capture, report, reads in _reading_ahead(own, executor, files_ahead, report_cache):
        try:
            if report is None:
                run = load_capture(listing, capture, progress, reads=reads)
                analysis = analyze_run(run, config, progress)
                report = build_report(analysis, config, progress)
                if report_cache is not None:
                    report_cache.write(listing.root, capture, report, report.notes)
            yield report
        except UsageError:
            raise
        except PerfAdvisorError as error:
            reason = f"{error.message} {error.hint}".strip()
            yield Rejected(path=error.where or capture.run, reason=reason)


def facts_of_all(
    choices: Sequence[Choice],
    config: Config,
    progress: Progress | None = None,
    *,
    executor: Executor | None = None,
    files_ahead: int = 0,
    report_cache: ReportCache[RunFacts] | None = None,
) -> Iterator[RunFacts | PerfAdvisorError]:
    """The facts of captures, one after the other; or why one cannot be read.

    Args:
        choices: The captures.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        executor: As for `analyze_all`.
        files_ahead: As for `analyze_all`.
        report_cache: Facts of earlier times.
    """
    from tb_perfadvisor.report.comparison import make_facts

    chosen = [(choice.listing, choice.capture) for choice in choices]
    for listing, capture, facts, reads in _reading_ahead(
        chosen, executor, files_ahead, report_cache
    ):
        try:
            if facts is None:
                run = load_capture(listing, capture, progress, reads=reads)
                analysis = analyze_run(run, config, progress)
                facts = make_facts(analysis, build_report(analysis, config))
                if report_cache is not None:
                    report_cache.write(listing.root, capture, facts, analysis.notes)
            yield facts
        except UsageError:
            raise
        except PerfAdvisorError as error:
            yield error


def _reading_ahead(
    captures: Iterable[tuple[Listing, Capture]],
    executor: Executor | None,
    files_ahead: int,
    report_cache: ReportCache[T] | None,
) -> Iterator[tuple[Listing, Capture, T | None, Sequence[Read]]]:
    """Each capture with its kept result, or while the files of the next ones are being read."""
    ahead: deque[tuple[Listing, Capture, T | None, Sequence[Read]]] = deque()
    for listing, capture in captures:
        result = report_cache.read(listing.root, capture) if report_cache is not None else None
        reads = _started(listing, capture, executor) if result is None else ()
        ahead.append((listing, capture, result, reads))
        while sum(len(reads) for *_, reads in ahead) > files_ahead:
            yield ahead.popleft()
    yield from ahead


def _read(listing: Listing, capture: Capture, progress: Progress | None) -> Run:
    """A capture, its ranks summed up as they are read."""
    return load_capture(listing, capture, progress, reads=_started(listing, capture))


def _started(
    listing: Listing, capture: Capture, executor: Executor | None = None
) -> Sequence[Read]:
    return start_reading(listing, capture, executor, digest_of(capture))


def analyze_capture(
    root: str, capture: Capture, config: Config, progress: Progress | None = None
) -> Analysis:
    """Analyze a capture that was listed before.

    Args:
        root: Of the listing.
        capture: Out of it.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        PerfAdvisorError: When none of its files can be read.
    """
    listing = Listing(root, (capture,), (), scanned_files=0, is_complete=True)
    run = _read(listing, capture, progress)
    return analyze_run(run, config, progress)


def nothing_found(
    listing: Listing, failures: list[PerfAdvisorError] | None = None
) -> NothingFoundError:
    """The error for a path without a readable profile: what was seen, and what is expected."""
    where = str(listing.root)
    reasons = [f"{one.path}: {one.reason}" for one in listing.rejected[:3]]
    reasons += [str(one) for one in (failures or [])[:3]]
    if reasons:
        return NothingFoundError(
            "holds no readable profile. " + " ".join(reasons), where=Path(where).name or where
        )
    scanned = f"{listing.scanned_files:,} files scanned"
    return NothingFoundError(
        f"holds no profile ({'; '.join([scanned, *listing.gaps])}).",
        where=Path(where).name or where,
        hint="Expected *.pt.trace.json[.gz] (PyTorch) or plugins/profile/SESSION/HOST.xplane.pb "
        "(TensorFlow, JAX).",
    )
