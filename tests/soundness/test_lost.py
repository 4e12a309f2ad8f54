"""Work that is missing from a recording."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.soundness.lost import unanswered_launches
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import total_ns
from tests.support.device_loops import KERNELS, loop


def decode(steps: int = 10, *, kernels_of_graphs: bool = False) -> Trace:
    """Each step of 30 ms runs a kernel of 0.2 ms, launches a graph at 0.3 ms, and waits from 1 ms
    to 29.5 ms. The graph's kernels run from 0.4 ms on, for 29 ms.
    """
    builder = TraceBuilder().device("AMD Instinct MI300X")
    for step in range(steps):
        at = ms(30 * step)
        builder.step(step, at, at + ms(30))
        builder.launch(at, at + us(5), name="hipLaunchKernel", key=f"eager {step}")
        builder.kernel("prepare", at + us(20), at + us(220), launched_by=f"eager {step}")
        builder.launch(at + us(300), at + us(350), name="hipGraphLaunch", key=f"graph {step}")
        if kernels_of_graphs:
            builder.kernel("gemm", at + us(400), at + us(29_400), launched_by=f"graph {step}")
        builder.synchronize(at + ms(1), at + ms(29.5), name="hipStreamSynchronize")
    return examined(builder.build())


def test_a_wait_proves_the_kernels_of_graphs() -> None:
    trace = decode()
    assert len(unanswered_launches(trace)) == 10
    # Each wait lasts 28.5 ms, and nothing that was recorded runs meanwhile.
    assert total_ns(trace.soundness.proven) == 10 * ms(28.5)
    # The graph may have run from its launch on, at 0.3 ms.
    assert total_ns(trace.soundness.not_recorded) == 10 * ms(29.2)
    signals = Signals(run_of(trace))
    attribution = signals.attribution
    # A step: 0.2 ms of compute, 29.2 not recorded; the rest is 0.02 before the kernel, 0.08 after
    # it, and 0.5 after the wait.
    assert attribution.total_ns(Cause.NOT_RECORDED) == 10 * ms(29.2)
    assert attribution.total_ns(Cause.COMPUTE_UNKNOWN) == 10 * ms(0.2)
    assert sum(attribution.total_ns(cause) for cause in Cause) == attribution.window_ns


def test_nothing_is_missing_if_the_kernels_are_there() -> None:
    trace = decode(kernels_of_graphs=True)
    assert len(unanswered_launches(trace)) == 0
    assert total_ns(trace.soundness.not_recorded) == 0


def test_a_lost_kernel_leaves_a_hole_between_its_neighbors() -> None:
    # Kernel 3 of step 2 is missing: kernel 2 ends at 3.21 ms, and kernel 4 begins at 4.21 ms.
    trace = examined(loop(lost=frozenset({(2, 3)})).build())
    assert trace.soundness.unanswered == 1
    at = trace.events.start_ns[trace.rows(EventKind.STEP)[2]]
    assert trace.soundness.not_recorded.tolist() == [[at + us(3210), at + us(4210)]]
    attribution = Signals(run_of(trace)).attribution
    assert attribution.total_ns(Cause.NOT_RECORDED) == ms(1)
    # Before each first kernel: its launch returns at 108 us, plus 20 of latency; it starts at 210.
    assert attribution.total_ns(Cause.QUEUED) == 6 * us(82)


def test_a_link_that_is_missing_is_no_event_that_is_missing() -> None:
    # As RCCL's kernels: their launches have a correlation, they have none.
    builder = TraceBuilder()
    for step in range(6):
        at = ms(10 * step)
        builder.launch(at, at + us(5), key=f"{step}")
        builder.kernel("gemm", at + us(10), at + ms(6), launched_by=f"{step}")
        builder.launch(at + us(50), at + us(55), name="hipExtLaunchKernel")
        builder.kernel("ncclDevKernel", at + ms(6), at + ms(8), stream=9)
    trace = examined(builder.build())
    assert len(unanswered_launches(trace)) == 0
    assert total_ns(trace.soundness.not_recorded) == 0


def test_events_from_before_the_recording_answer_no_launch() -> None:
    builder = loop(lost=frozenset({(2, 3), (2, 4)}))
    builder.kernel("older", 0, us(50))
    assert len(unanswered_launches(builder.build())) == 2


def test_launches_into_a_captured_graph_have_no_events() -> None:
    lost = frozenset((0, k) for k in range(KERNELS))
    builder = loop(lost=lost)
    at = ms(10)
    builder.host(EventKind.RUNTIME, "cudaStreamBeginCapture", at + us(90), at + us(95))
    builder.host(EventKind.RUNTIME, "cudaStreamEndCapture", at + us(280), at + us(285))
    assert len(unanswered_launches(builder.build())) == 0


def waits_that_outlast(count: int, *, name: str = "cudaStreamSynchronize", steps: int = 6) -> Trace:
    """Steps of 10 ms; in some, the wait for a kernel of 1 ms lasts until 6 ms."""
    builder = TraceBuilder()
    for step in range(steps):
        at = ms(10 * step)
        builder.launch(at, at + us(5), key=f"{step}")
        builder.kernel("gemm", at + us(10), at + ms(1), launched_by=f"{step}")
        builder.synchronize(at + us(50), at + (ms(6) if step < count else ms(1.01)), name=name)
    return examined(builder.build())


def test_waits_alone_prove_missing_work_if_there_are_several() -> None:
    # Five milliseconds each.
    assert total_ns(waits_that_outlast(6).soundness.proven) == 6 * ms(5)
    assert total_ns(waits_that_outlast(3).soundness.proven) == 3 * ms(5)
    # A thread may have been preempted twice.
    assert total_ns(waits_that_outlast(2).soundness.proven) == 0
    # In a long recording, three such waits are no pattern: 15 of 600 ms.
    assert total_ns(waits_that_outlast(3, steps=60).soundness.proven) == 0


def test_a_wait_of_a_framework_proves_nothing() -> None:
    # JAX's may wait for the host as well.
    assert total_ns(waits_that_outlast(6, name="block_until_ready").soundness.proven) == 0


def test_a_stream_may_wait_for_a_function_of_the_host() -> None:
    builder = TraceBuilder()
    for step in range(6):
        at = ms(10 * step)
        builder.launch(at, at + us(5), key=f"{step}")
        builder.kernel("gemm", at + us(10), at + ms(1), launched_by=f"{step}")
        builder.host(EventKind.RUNTIME, "cudaLaunchHostFunc", at + us(6), at + us(9))
        builder.synchronize(at + us(50), at + ms(6))
    assert total_ns(examined(builder.build()).soundness.proven) == 0


@pytest.mark.parametrize("share", [0.019, 0.021])
def test_a_sample_of_the_events_is_known_as_such(share: float) -> None:
    trace = loop(lost=frozenset({(2, 3)})).source(recorded_calls_share=share).build()
    assert (total_ns(examined(trace).soundness.not_recorded) > 0) is (share > 0.02)


def test_kernels_without_time_prove_nothing() -> None:
    builder = (
        TraceBuilder().launch(0, us(5), key="a").kernel("empty", us(9), us(9), launched_by="a")
    )
    builder.launch(us(20), us(25)).synchronize(us(30), ms(5))
    assert total_ns(examined(builder.build()).soundness.not_recorded) == 0
