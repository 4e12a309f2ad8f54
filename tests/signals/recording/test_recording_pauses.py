from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals.recording.profiler_overhead import (
    DISPATCH_NS,
    NEIGHBORS,
    recording_pauses,
)
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import total_ns


def calls(
    count: int, before_us: float = 20, after_us: float = 3, called: str = "aten::convolution"
) -> TraceBuilder:
    """Every 100 us, an operator that only calls another one of 10 us."""
    builder = TraceBuilder()
    for i in range(count):
        start = 100 * i
        end = start + before_us + 10 + after_us
        builder.operator("aten::conv2d", us(start), us(end), launches=False)
        inner = start + before_us
        builder.operator(called, us(inner), us(inner + 10), launches=False)
    return builder


def pauses(trace: Trace) -> list[tuple[int, int]]:
    found = recording_pauses(trace, trace.rows(EventKind.OPERATOR))
    return [(start, end) for start, end in found.tolist()]


def test_recording_pauses_lie_between_an_operator_and_its_callee() -> None:
    found = pauses(calls(NEIGHBORS).build())
    # 20 us less the dispatch end where the call begins, 3 us less one begin where it ends. The
    # first has no limit before it.
    dispatch = DISPATCH_NS
    assert (us(100) + dispatch, us(120)) in found
    assert (us(130), us(133) - dispatch) in found
    # So does the caller's pause, in the 67 us since the last operator.
    assert (us(180) + dispatch, us(200)) in found


def test_too_few_calls_give_no_pause() -> None:
    assert pauses(calls(NEIGHBORS - 1).build()) == []


def test_operator_that_works_before_its_call_gives_no_pause() -> None:
    assert pauses(calls(2 * NEIGHBORS, called="aten::mm").build()) == []


def test_dispatch_alone_is_not_a_pause() -> None:
    trace = calls(NEIGHBORS, before_us=DISPATCH_NS / 1000, after_us=DISPATCH_NS / 1000).build()
    assert pauses(trace) == []


def test_pause_is_at_most_the_time_between() -> None:
    builder = calls(NEIGHBORS)
    # Only 5 us after another operator, there is no room for 19.5 us.
    builder.operator("aten::add", us(5_000), us(5_010), launches=False)
    builder.operator("aten::mul", us(5_015), us(5_020), launches=False)
    found = pauses(builder.build())
    # Of the 5 us, the end of the first takes 2.5 us, which the start of the second covers.
    assert (us(5_010), us(5_015)) in found


@pytest.mark.parametrize("deep_us", [20, 40])
def test_each_part_of_a_program_has_its_own_pause(deep_us: float) -> None:
    """A forward pass below many Python frames, then an optimizer below few."""
    builder = TraceBuilder()
    for i in range(2 * NEIGHBORS):
        head = deep_us if i < NEIGHBORS else 8
        start = 100 * i
        builder.operator("aten::zero_", us(start), us(start + head + 10), launches=False)
        builder.operator("aten::fill_", us(start + head), us(start + head + 10), launches=False)
    found = np.array(pauses(builder.build()))
    inner = found[found[:, 1] % us(100) != 0]
    last = total_ns(inner[inner[:, 0] > us(100 * NEIGHBORS)])
    first = total_ns(inner[(inner[:, 0] > us(100)) & (inner[:, 0] < us(100 * NEIGHBORS))])
    # Before the called operator: deep_us and 8 us less the dispatch, in all but the first.
    assert first == (NEIGHBORS - 1) * (us(deep_us) - DISPATCH_NS)
    assert last == NEIGHBORS * (us(8) - DISPATCH_NS)


def test_other_threads_are_unaffected() -> None:
    builder = calls(NEIGHBORS)
    builder.operator("aten::add", us(50_000), us(50_010), thread="other", launches=False)
    assert max(end for _, end in pauses(builder.build())) < us(50_000)
