from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.idle_gaps import MIN_DELAY_NS
from tb_perfadvisor.signals.core.steps.partial_steps import EARLIER_WORK
from tb_perfadvisor.testing import TraceBuilder, host, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind, Trace


def signals_of(trace: Trace) -> Signals:
    return Signals(run_of(trace))


def began_mid_work(starts: int = us(5_000)) -> Builder:
    """A decode step, as of a server that is busy when the recording begins.

    A small kernel runs on another stream. Two kernels are launched at 10 and 20 us, and start when
    the stream is free. The host waits for them.
    """
    builder = TraceBuilder()
    builder.launch(us(0), us(4), key="small")
    builder.kernel("small", us(6), us(9), stream=2, launched_by="small")
    for number, at in enumerate((10, 20)):
        builder.launch(us(at), us(at + 5), key=f"launch {number}")
        begin = starts + us(100 * number)
        builder.kernel("gemm", begin, begin + us(90), stream=3, launched_by=f"launch {number}")
    builder.synchronize(us(30), starts + us(200))
    return builder


def test_the_window_begins_when_the_stream_is_free() -> None:
    signals = signals_of(began_mid_work().build())
    work = signals.unrecorded_work
    assert work is not None
    # Launched by the call at 10 us; the kernel on stream 2 is a fragment before it.
    assert work.until_ns == us(5_000)
    assert signals.trace.events.start_ns[work.launch_row] == us(10)
    attribution = signals.attribution
    assert (attribution.window_start_ns, attribution.window_end_ns) == (us(5_000), us(5_190))
    # Two kernels of 90 us, and the gap of 10 us between them.
    assert attribution.total_ns(Cause.COMPUTE_UNKNOWN) == us(180)


def test_just_below_and_just_above_the_limit() -> None:
    # The call returns at 15 us; the latency of 20 us ends at 35. MIN_DELAY_NS is a millisecond.
    limit = us(35) + MIN_DELAY_NS
    assert ms(1) == MIN_DELAY_NS
    assert signals_of(began_mid_work(limit - 1).build()).unrecorded_work is None
    assert signals_of(began_mid_work(limit).build()).unrecorded_work is not None


@pytest.mark.parametrize(("share", "explains"), [(0.09, False), (0.11, True)])
def test_recorded_work_explains_a_late_start(share: float, explains: bool) -> None:
    # The stream may wait for another one that works meanwhile.
    builder = began_mid_work()
    delay = us(5_000) - us(35)
    builder.kernel("other", us(1_000), us(1_000) + round(share * delay), stream=2, launched_by="")
    found = signals_of(builder.build()).unrecorded_work
    assert (found is None) is explains


def test_work_of_another_device_explains_a_late_start() -> None:
    builder = began_mid_work()
    builder.kernel("other", us(100), us(4_900), device=1, stream=2, launched_by="")
    # Device 0 must still be the busiest.
    builder.kernel("long", us(6_000), us(20_000), stream=3, launched_by="launch 1")
    assert signals_of(builder.build()).unrecorded_work is None


def test_a_recorded_wait_explains_a_late_start() -> None:
    builder = began_mid_work()
    wait = host("event_wait", EventKind.DEVICE_SYNC)
    builder.add(wait, us(40), us(4_900), stream=3)
    assert signals_of(builder.build()).unrecorded_work is None


def test_work_launched_before_the_recording_is_no_sign() -> None:
    builder = TraceBuilder().kernel("gemm", ms(5), ms(6), launched_by="")
    builder.launch(ms(5), ms(5) + us(5), key="next")
    builder.kernel("gemm", ms(6), ms(7), launched_by="next")
    assert signals_of(builder.build()).unrecorded_work is None


def test_a_program_on_a_tpu_waits_for_its_inputs() -> None:
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu")
    builder.launch(us(0), us(10), key="run")
    builder.xla_op("fusion.1", ms(5), ms(6), launched_by="run")
    builder.xla_op("fusion.2", ms(6), ms(7), launched_by="run")
    assert signals_of(builder.build()).unrecorded_work is None


def steps_of_three(late_ns: int) -> Trace:
    """Three steps of 10 ms; the first kernel is launched at 0 and starts late."""
    builder = TraceBuilder()
    for number in range(3):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.launch(begin, begin + us(5), key=f"launch {number}")
        start = begin + (late_ns if number == 0 else us(10))
        builder.kernel("gemm", start, begin + ms(9), launched_by=f"launch {number}")
    return builder.build()


def test_a_step_that_loses_its_beginning_is_partial() -> None:
    steps = signals_of(steps_of_three(ms(4))).steps
    assert steps.number.tolist() == [1, 2]
    assert [(step.number, step.reason) for step in steps.excluded] == [(0, EARLIER_WORK)]
    # The window is cut at a step, not within one.
    assert steps.window_start_ns == ms(10)
    assert len(signals_of(steps_of_three(us(10))).steps) == 3


def test_without_a_whole_step_the_rest_is_analyzed_as_one() -> None:
    builder = TraceBuilder().step(7, 0, ms(10)).launch(0, us(5), key="launch")
    builder.kernel("gemm", ms(4), ms(9), launched_by="launch")
    steps = signals_of(builder.build()).steps
    assert (steps.source, len(steps)) == ("none", 0)
    assert [step.number for step in steps.excluded] == [7]
    assert (steps.window_start_ns, steps.window_end_ns) == (ms(4), ms(9))
