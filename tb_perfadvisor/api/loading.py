"""Read captures, and say what was found where none can be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tb_perfadvisor.engine.analysis import Progress
from tb_perfadvisor.engine.rank_summaries import summarizer_of
from tb_perfadvisor.errors import (
    NothingFoundError,
    PerfAdvisorError,
    UsageError,
    contained,
    log_bug,
)
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.ingest.captures import Capture, Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture, start_reading
from tb_perfadvisor.plain_text import printable_name
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
            reads = start_reading(listing, capture, execution.executor)
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
    reads = start_reading(listing, capture, execution.executor, summarizer_of(capture))
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
