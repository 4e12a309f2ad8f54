"""Findings about idle time list the functions in which the host was sampled."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.rules.evidence.host import sampled_functions
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing.builder import TraceBuilder, run_of, us
from tb_perfadvisor.trace import SampleTable, Trace
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import make_table

IDLE: Intervals = np.array([[us(100), us(200)]])


def trace_with_samples(*samples: tuple[float, str, int]) -> Trace:
    """A step with samples: microseconds, function, and the thread's track."""
    builder = TraceBuilder().step(0, us(0), us(300)).kernel("gemm", us(200), us(300))
    trace = builder.build()
    strings = {text: place for place, text in enumerate(trace.strings)}
    for _, function, _ in samples:
        strings.setdefault(function, len(strings))
    library = strings.setdefault("/usr/lib/libpython3.so", len(strings))
    columns = {
        "at_ns": [us(at) for at, _, _ in samples],
        "track": [track for _, _, track in samples],
        "function": [strings[function] for _, function, _ in samples],
        "library": [library] * len(samples),
    }
    return replace(trace, strings=tuple(strings), samples=make_table(SampleTable, columns))


def rows(*samples: tuple[float, str]) -> list[tuple[object, ...]]:
    step_track = Signals(run_of(trace_with_samples())).step_track
    signals = Signals(run_of(trace_with_samples(*((*each, step_track) for each in samples))))
    return [row for table in sampled_functions(signals, IDLE) for row in table.rows]


def test_the_most_frequent_first() -> None:
    collected = [(100 + 10 * each, "gc_collect") for each in range(6)]
    found = rows(*collected, (170, "visit"), (180, "visit"), (50, "before"), (250, "after"))
    assert found == [
        ("gc_collect", "libpython3.so", 6, 0.75),
        ("visit", "libpython3.so", 2, 0.25),
    ]


def test_few_samples_say_nothing() -> None:
    assert rows(*((110 + each, "gc_collect") for each in range(4))) == []
