"""The engine in Python: load, analyze.

>>> from tb_perfadvisor import analyze
>>> report = analyze("runs/resnet50")
>>> report.findings[0].title
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.discovery import Capture, Listing, discover
from tb_perfadvisor.ingest.load import Read, load_capture, start_reading
from tb_perfadvisor.report import Report, build_report
from tb_perfadvisor.report.kept import KeptReports
from tb_perfadvisor.report.model import Rejected
from tb_perfadvisor.trace import Run, Trace

Progress = Callable[[str, float], None]


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
    source: str | os.PathLike[str] | Trace | Run,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Report:
    """Analyse one capture.

    Args:
        source: A path that holds exactly one capture, or what `load` returns, or a trace.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        NothingFoundError: When the path holds no readable capture.
        UsageError: When it holds several.
    """
    if isinstance(source, Trace):
        source = Run(id="trace", name=source.source.run, session="", traces=(source,))
    if not isinstance(source, Run):
        listing = discover(source)
        if len(listing.captures) > 1:
            names = ", ".join(f"{one.run} {one.session}".strip() for one in listing.captures[:5])
            raise UsageError(
                f"holds {len(listing.captures)} captures ({names}).",
                where=str(source),
                hint="Name one of them, or go through all with `load`.",
            )
        if not listing.captures:
            raise nothing_found(listing)
        source = load_capture(listing, listing.captures[0], progress)
    return build_report(source, config or Config(), progress)


def analyze_all(
    listing: Listing,
    captures: Sequence[Capture],
    config: Config,
    progress: Progress | None = None,
    *,
    executor: Executor | None = None,
    files_ahead: int = 0,
    kept: KeptReports | None = None,
) -> Iterator[Report | Rejected]:
    """Analyse captures one after the other; one that cannot be read does not stop the rest.

    Args:
        listing: The listing that the captures are of.
        captures: What to analyse.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        executor: Where files are read; by default here, each when its turn comes.
        files_ahead: How many files to read ahead of the capture that is being analysed.
        kept: Reports of earlier times, which are taken where nothing has changed.
    """
    for capture, report, reads in _reading_ahead(listing, captures, executor, files_ahead, kept):
        try:
            if report is None:
                run = load_capture(listing, capture, progress, reads=reads)
                report = build_report(run, config, progress)
                if kept is not None:
                    kept.keep(capture, report)
            yield report
        except UsageError:
            raise
        except PerfAdvisorError as error:
            reason = f"{error.message} {error.hint}".strip()
            yield Rejected(path=error.where or capture.run, reason=reason)


def _reading_ahead(
    listing: Listing,
    captures: Sequence[Capture],
    executor: Executor | None,
    files_ahead: int,
    kept: KeptReports | None,
) -> Iterator[tuple[Capture, Report | None, Sequence[Read]]]:
    """Each capture with its kept report, or while the files of the next ones are being read."""
    ahead: deque[tuple[Capture, Report | None, Sequence[Read]]] = deque()
    for capture in captures:
        report = kept.read(capture) if kept is not None else None
        reads = start_reading(listing, capture, executor) if report is None else ()
        ahead.append((capture, report, reads))
        while sum(len(reads) for *_, reads in ahead) > files_ahead:
            yield ahead.popleft()
    yield from ahead


def analyze_capture(
    root: str,
    capture: Capture,
    config: Config | None = None,
    progress: Progress | None = None,
) -> tuple[Report, Run]:
    """Analyse a capture that was listed before; returns the traces as well.

    Args:
        root: Of the listing.
        capture: Out of it.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        PerfAdvisorError: When none of its files can be read.
    """
    listing = Listing(root, (capture,), (), scanned_files=0, is_complete=True)
    run = load_capture(listing, capture, progress)
    return build_report(run, config or Config(), progress), run


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
