"""Compares synthetic ranks: `reduce_ranks.py TRACE RANKS REPORT`; prints how long it took.

Each rank is the trace's summary with its own clock. Ranks arrive at each collective with jitter,
and one in a hundred is late. All leave together.
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_perfadvisor import analyze, load
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.ranks.ranks import CAUSES, collectives_kept, summarize
from tb_perfadvisor.trace import LazyTraces, Run, Source, Trace
from tb_perfadvisor.trace.rank_summary import RankSummary

JITTER_NS, LATE_NS, CLOCK_NS = 50_000, 3_000_000, 2_000_000_000
_HOST = CAUSES.index(Cause.PYTHON)


def main() -> None:
    """Measure."""
    path, count, output = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    (run,) = load(path)
    trace = run.traces[0]
    generator = np.random.default_rng(count)
    late = np.sort(generator.choice(count, size=max(count // 100, 1), replace=False))
    sources, summaries = _ranks(trace, count, late, generator)
    began = perf_counter()
    many = Run(
        id="many",
        name="many",
        session="",
        traces=LazyTraces(sources, [lambda: trace] * count),
        summaries=tuple(summaries),
    )
    report = analyze(many, Config(with_views=True))
    took = perf_counter() - began
    output.write_bytes(msgspec.json.encode(report))
    views = report.views or {}
    named = views["ranks"]["late"] if views.get("ranks") else []
    result = {
        "work_s": took,
        "late_are_right": sorted(named) == late.tolist(),
        "collectives": len(summaries[0].collectives),
    }
    print(json.dumps(result))


def _ranks(
    trace: Trace, count: int, late: np.ndarray, generator: np.random.Generator
) -> tuple[list[Source], list[RankSummary]]:
    """Summaries of all ranks; late ranks spend more time in Python."""
    whole = summarize(Signals(Run("", "", "", (trace,))), collectives_kept(count))
    table, steps = whole.collectives, whole.step_count
    calls = len(table)
    delay = np.abs(generator.normal(0, JITTER_NS, size=(count, calls))).astype(np.int64)
    delay[late] += LATE_NS
    # All leave when the last has arrived and the transfer is done.
    duration = table.duration_ns[None, :] + delay.max(axis=0)[None, :] - delay
    end = table.start_ns + table.duration_ns
    own_clock = generator.integers(-CLOCK_NS, CLOCK_NS, size=count)
    sources, summaries = [], []
    for rank in range(count):
        more = whole.cause_total_ns.copy()
        more[_HOST] += LATE_NS * calls * (rank in late)
        sources.append(
            replace(
                trace.source,
                path=f"rank{rank}.pt.trace.json.gz",
                rank=rank,
                world_size=count,
                host=f"node{rank // 8}",
                origin_unix_ns=1_700_000_000_000_000_000 + int(own_clock[rank]),
            )
        )
        summaries.append(
            replace(
                whole,
                cause_total_ns=more,
                window_ns=whole.window_ns + int(more.sum() - whole.cause_total_ns.sum()),
                step_count=steps,
                collectives=replace(
                    table,
                    # The common end, on the rank's own clock.
                    start_ns=end - duration[rank],
                    duration_ns=duration[rank],
                    exposed_ns=duration[rank],
                    group_size=np.full(calls, count, dtype=np.int32),
                ),
            )
        )
    return sources, summaries


main()
