from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.recording.profiler_overhead import ProfilerOverhead, profiler_overhead
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import EventKind, Framework
from tb_perfadvisor.trace.intervals import single

# The time of the operators and frames below, up to the end of the last operator.
WINDOW = single(0, ms(19))


def overhead(framework: Framework = "pytorch", **source: Any) -> ProfilerOverhead:
    """The overhead of ten consecutive operators and ten frames of 1 ms each."""
    builder = TraceBuilder(framework, **source)
    for i in range(10):
        builder.operator("aten::add", ms(2 * i), ms(2 * i + 1), launches=False)
        builder.host(EventKind.PYTHON, "frame", ms(2 * i + 1), ms(2 * i + 2))
    return profiler_overhead(Signals(run_of(builder.build())))


@pytest.mark.parametrize(
    ("options", "of_operator_ns"),
    [
        ({}, 600),
        ({"has_shapes": True}, 1_000),
        ({"has_memory": True}, 850),
        ({"has_stacks": True}, 850),
        ({"has_shapes": True, "has_memory": True, "has_stacks": True}, 1_500),
        ({"has_shapes": None}, 600),
    ],
)
def test_each_option_adds_overhead_per_operator(options: Any, of_operator_ns: int) -> None:
    # Only nine of the frames begin in it.
    assert overhead(**options).within_ns(WINDOW) == 10 * of_operator_ns + 9 * 140


def test_options_are_named() -> None:
    assert overhead(has_stacks=True, has_memory=False).options == ("stacks",)


def test_annotations_of_the_runtime_have_overhead() -> None:
    assert overhead("jax").within_ns(WINDOW) == 10 * 300 + 9 * 230


def test_overhead_within_intervals() -> None:
    found = overhead()
    assert found.within_ns(single(0, ms(2))) == 740  # one operator, one frame
    assert found.within_ns(single(ms(1), ms(2))) == 140
    assert found.within_ns(single(us(10), us(20))) == 0
    assert found.within_ns(np.empty((0, 2), dtype=np.int64)) == 0


def test_overhead_is_at_most_the_time_around_it() -> None:
    assert overhead().within_ns(single(0, 100)) == 100


def test_overhead_recorded_by_the_profiler_counts() -> None:
    builder = TraceBuilder()
    builder.operator("aten::add", ms(0), ms(5), launches=False)
    builder.host(EventKind.OVERHEAD, "Activity Buffer Request", ms(1), ms(3), thread="profiler")
    found = profiler_overhead(Signals(run_of(builder.build())))
    assert found.within_ns(single(0, ms(5))) == ms(2) + 600
    assert found.within_ns(single(ms(2), ms(4))) == ms(1)


def test_larger_overhead_in_the_profile_counts() -> None:
    builder = TraceBuilder()
    for i in range(32):
        start = us(100 * i)
        builder.operator("aten::conv2d", start, start + us(40), launches=False)
        builder.operator("aten::convolution", start + us(30), start + us(40), launches=False)
    found = profiler_overhead(Signals(run_of(builder.build())))
    # 30 us before the call, less half a microsecond for the dispatch; not 2 x 0.6 us.
    assert found.within_ns(single(us(100), us(140))) == us(29.5)
