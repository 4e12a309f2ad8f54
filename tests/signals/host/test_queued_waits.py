from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.queued_waits import QueuedWait, QueuedWaits, queued_waits
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind


def found_in(builder: Builder) -> QueuedWaits:
    return queued_waits(Signals(run_of(builder.build())))


def blocked(steps: int = 2) -> Builder:
    """Steps of 20 ms. A fill is launched at the beginning and starts at 12 ms; meanwhile the thread
    of the steps is in a blocking copy."""
    builder = TraceBuilder()
    for number in range(steps):
        begin = ms(20 * number)
        builder.step(number, begin, begin + ms(20))
        builder.launch(begin, begin + us(20), key=f"first {number}")
        builder.kernel("gemm", begin + us(40), begin + ms(2), launched_by=f"first {number}")
        builder.launch(begin + us(50), begin + us(80), key=f"fill {number}")
        builder.kernel("fill", begin + ms(12), begin + ms(20), launched_by=f"fill {number}")
        builder.annotation("exchange", begin + ms(1), begin + ms(15))
        builder.operator("aten::copy_", begin + ms(1), begin + ms(14), launches=False)
        builder.host(EventKind.RUNTIME, "cudaMemcpy", begin + ms(1), begin + ms(13))
    return builder


def test_what_waits_and_what_the_host_does_meanwhile() -> None:
    found = found_in(blocked())
    # From 2 to 12 ms of each step.
    assert found.total_ns == 2 * ms(10)
    assert found.waits == (
        QueuedWait(
            stream="stream 7",
            event="fill",
            launched_by="cudaLaunchKernel",
            host_call="cudaMemcpy",
            annotation="exchange",
            count=2,
            idle_ns=2 * ms(10),
        ),
    )


def test_a_host_that_does_nothing_has_no_call() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.launch(0, us(20), key="first").kernel("gemm", us(40), ms(2), launched_by="first")
    builder.launch(us(50), us(80), key="fill")
    builder.operator("aten::mm", us(100), ms(1), launches=False)
    builder.kernel("fill", ms(6), ms(10), launched_by="fill")
    (wait,) = found_in(builder).waits
    # At 4 ms, the middle of the gap, the operator has returned.
    assert (wait.host_call, wait.annotation, wait.idle_ns) == ("", "", ms(4))


def test_the_longest_wait_comes_first() -> None:
    builder = blocked(1)
    builder.step(1, ms(20), ms(50)).launch(ms(20), ms(20) + us(20), key="late")
    builder.kernel("softmax", ms(45), ms(50), launched_by="late")
    # 25 ms, less the call and its latency of 40 us in all.
    assert [(wait.event, wait.idle_ns) for wait in found_in(builder).waits] == [
        ("softmax", ms(25) - us(40)),
        ("fill", ms(10)),
    ]


def test_work_that_is_launched_too_late_does_not_wait() -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.launch(ms(10 * number), ms(10 * number) + us(10), key=f"{number}")
        begin = ms(10 * number) + us(20)
        builder.kernel("gemm", begin, begin + ms(4), launched_by=f"{number}")
    assert found_in(builder).waits == ()


def test_kernels_of_a_graph_that_start_at_once_wait_for_nothing() -> None:
    builder = TraceBuilder()
    for step in range(2):
        begin = ms(step)
        builder.step(step, begin, begin + ms(1)).launch(begin, begin + us(9), key=f"graph {step}")
        for kernel in range(50):
            start = begin + us(10 + 12 * kernel)
            builder.kernel("gemm", start, start + us(10), launched_by=f"graph {step}")
    # 2 us from each kernel to the next.
    assert found_in(builder).total_ns == 0
