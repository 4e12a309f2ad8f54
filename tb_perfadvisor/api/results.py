"""Make one result of each capture, or take it from the cache."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tb_perfadvisor.engine.analysis import Analysis, Progress
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.rank_summaries import summarizer_of
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.errors import PerfAdvisorError, UsageError, contained, log_bug
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.execution.limits import time_limit
from tb_perfadvisor.ingest.captures import Capture, Listing
from tb_perfadvisor.ingest.load import Read, load_capture, start_reading

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
                    analysis = analyze_run(run, config, progress)
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
            reads = start_reading(listing, capture, execution.executor, summarizer_of(capture))
        waiting.append((listing, capture, result, reads))
        while sum(len(reads) for *_, reads in waiting) > execution.max_pending_files:
            yield waiting.popleft()
    yield from waiting
