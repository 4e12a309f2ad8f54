"""Read the corpus, for tests that compare other tools' numbers with our columns."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from tb_perfadvisor import load
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32

# Real profiles with independent expected numbers; tests that use them are marked `corpus`.
CORPUS = Path(os.environ.get("PERFADVISOR_CORPUS") or "no-corpus")


def read(corpus: Path, pattern: str) -> Trace:
    """The first file that matches a pattern."""
    return _read(next(iter(sorted(corpus.glob(pattern)))))


@cache
def _read(path: Path) -> Trace:
    (run,) = load(path)
    (trace,) = run.traces
    return trace


def covered(trace: Trace, rows: Int32) -> Intervals:
    """The union of some events."""
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])
