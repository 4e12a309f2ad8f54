from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.preempted_calls import PreemptedCalls, preempted_calls
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns


def late_events(pending: int) -> PreemptedCalls:
    """Many short kernels behind a long one, then a dozen records of events, three of them late."""
    builder = TraceBuilder()
    begin = ms(10)
    builder.launch(0, us(4), key="long")
    builder.kernel("gemm", us(4), begin, launched_by="long")
    for index in range(pending):
        builder.launch(us(5 * index + 5), us(5 * index + 9), key=f"launch {index}")
        at = begin + us(100 * index)
        builder.kernel("gemm", at, at + us(100), launched_by=f"launch {index}")
    at = us(5 * pending + 5)
    for index in range(12):
        end = at + (ms(5) if index in (5, 7, 9) else us(2))
        builder.host(EventKind.RUNTIME, "cudaEventRecord", at, end)
        at = end
    builder.step(0, 0, begin + us(100 * pending))
    return preempted_calls(Signals(run_of(builder.build())))


@pytest.mark.parametrize(("pending", "count"), [(400, 3), (1000, 0)])
def test_calls_that_wait_for_room_in_the_queue_do_not_count(pending: int, count: int) -> None:
    # After 15 ms, at most 50 kernels of 0.1 ms have run.
    assert len(late_events(pending)) == count


def test_the_excess_is_the_own_time_beyond_the_median() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(60))
    builder.kernel("gemm", 0, ms(1))
    for index in range(12):
        at = ms(1 + 4 * index)
        if index % 4:
            builder.operator("aten::reshape", at, at + us(10), launches=False)
            continue
        # A late call with another one inside: 1 ms before it, and 1.5 ms after it.
        builder.operator("aten::reshape", at, at + us(2700), launches=False)
        builder.operator("aten::mul", at + ms(1), at + us(1200), launches=False)
    builder.launch(ms(50), ms(50) + us(5), key="launch")
    builder.kernel("gemm", ms(51), ms(60), launched_by="launch")
    calls = preempted_calls(Signals(run_of(builder.build())))
    assert calls.is_trivial.tolist() == [True] * 3
    assert calls.excess_ns.tolist() == [us(2490)] * 3
    assert calls.idle_ns.tolist() == [us(2490)] * 3
    assert total_ns(calls.idle) == total_ns(calls.stalled) == 3 * us(2490)


def test_idle_that_another_thread_ends_is_not_counted() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(60))
    builder.kernel("gemm", 0, ms(1))
    for index in range(12):
        at = ms(1 + 4 * index)
        end = at + (us(10) if index % 4 else ms(3))
        builder.operator("aten::view", at, end, thread="loader", launches=False)
    builder.launch(ms(50), ms(50) + us(5), key="launch")
    builder.kernel("gemm", ms(51), ms(60), launched_by="launch")
    calls = preempted_calls(Signals(run_of(builder.build())))
    assert calls.excess_ns.tolist() == [us(2990)] * 3
    assert calls.idle_ns.tolist() == [0] * 3
    assert total_ns(calls.idle) == 0
