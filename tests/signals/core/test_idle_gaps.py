from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.idle_gaps import LAUNCH_LATENCY_NS, Idle
from tb_perfadvisor.testing import TraceBuilder, draw, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace


def idle_of(trace: Trace) -> Idle:
    return Signals(run_of(trace)).attribution.idle


def idle_us(trace: Trace) -> dict[str, int]:
    """Microseconds of idle by cause."""
    attribution = Signals(run_of(trace)).attribution
    causes = (Cause.QUEUED, Cause.LAUNCHING, Cause.PYTHON, Cause.UNEXPLAINED)
    totals = {cause.value: attribution.total_ns(cause) // 1000 for cause in causes}
    return {cause: total for cause, total in totals.items() if total}


def request(builder: Builder, start_us: int, end_us: int, stream: int = 7) -> Builder:
    """A device's own request for direct memory access, which no call launches."""
    return builder.copy(
        CopyDirection.DEVICE_TO_DEVICE,
        us(start_us),
        us(end_us),
        name="dma_request",
        stream=stream,
        launched_by="",
    )


def launched(
    builder: Builder, key: str, call: tuple[int, int], kernel: tuple[int, int], stream: int = 7
) -> Builder:
    """A launch call and its kernel, in microseconds."""
    builder.launch(us(call[0]), us(call[1]), key=key)
    return builder.kernel(key, us(kernel[0]), us(kernel[1]), stream=stream, launched_by=key)


def test_the_host_is_judged_until_the_launch_returns() -> None:
    # The first kernel ends at 100, inside the second call (80 to 150). 20 us of latency after the
    # call, at 170, the work is queued; it starts at 300.
    builder = launched(TraceBuilder(), "a", (0, 10), (10, 100))
    trace = launched(builder, "b", (80, 150), (300, 400)).build()
    assert LAUNCH_LATENCY_NS == 20_000
    assert idle_us(trace) == {"launching": 70, "queued": 130}
    idle = idle_of(trace)
    assert idle.queued_from_ns.tolist() == [us(170)]
    assert idle.is_queued.tolist() == [False]


def test_kernels_of_a_graph_are_launched_until_its_call_returns() -> None:
    # One call launches three kernels, and returns at 200: after the first gap, before the second.
    trace = (
        TraceBuilder()
        .launch(us(0), us(200), key="graph")
        .kernel("a", us(20), us(50), launched_by="graph")
        .kernel("b", us(120), us(230), launched_by="graph")
        .kernel("c", us(260), us(300), launched_by="graph")
        .build()
    )
    assert idle_us(trace) == {"launching": 70, "queued": 30}


def test_rows_without_launches_prove_nothing() -> None:
    # Requests at 200 and 300 interrupt the gap before the second kernel, which is launched at 400.
    # Each part of the gap is Python's, up to the call; 60 us of the last part are the launch.
    builder = launched(TraceBuilder(), "a", (0, 10), (20, 100))
    builder.host(EventKind.PYTHON, "build", us(100), us(400))
    request(builder, 200, 210)
    request(builder, 300, 310, stream=8)
    trace = launched(builder, "b", (400, 440), (460, 500)).build()
    assert idle_us(trace) == {"python": 100 + 90 + 90, "launching": 60}
    # All three gaps are judged by the call that launched the second kernel.
    idle = idle_of(trace)
    assert len(set(idle.launch_row.tolist())) == 1
    assert [trace.name(row) for row in idle.next_row.tolist()] == ["dma_request"] * 2 + ["b"]


def test_a_request_before_a_queued_kernel_is_no_end_of_the_queue() -> None:
    # The second kernel was launched at 30, long before the gaps on both sides of the request.
    builder = launched(TraceBuilder(), "a", (0, 10), (20, 100))
    request(builder, 150, 160)
    trace = launched(builder, "b", (30, 40), (200, 300)).build()
    assert idle_us(trace) == {"queued": 50 + 40}


def test_kernels_older_than_the_first_launch_of_their_stream_were_queued() -> None:
    # The first two kernels have no launch and start before the first launch, at 300. The fourth
    # has none either, but comes later: its record may have been lost, so it proves nothing.
    builder = TraceBuilder()
    builder.kernel("a", us(0), us(100), launched_by="")
    builder.kernel("b", us(150), us(200), launched_by="")
    launched(builder, "c", (300, 310), (320, 400))
    builder.kernel("d", us(500), us(600), launched_by="")
    trace = launched(builder, "e", (700, 710), (720, 800)).build()
    # 100 to 150 queued; 200 to 300 and 400 to 500 and 600 to 700 unknown; 20 us twice in launches.
    assert idle_us(trace) == {"queued": 50, "unexplained": 300, "launching": 40}


@pytest.mark.parametrize(("begin", "queued"), [(40, True), (60, False)])
def test_a_stream_without_launches_is_older_than_all_launches(begin: int, queued: bool) -> None:
    # Stream 8 has no launches at all. The first launch on the other stream is at 50.
    builder = TraceBuilder().kernel("x", us(0), us(20), stream=8, launched_by="")
    builder.kernel("y", us(begin), us(begin + 5), stream=8, launched_by="")
    trace = launched(builder, "a", (50, 55), (90, 200)).build()
    assert idle_of(trace).is_queued.tolist()[0] is queued


def test_without_any_launch_nothing_is_queued() -> None:
    trace = draw(
        """
        cell 1ms
        main  |pppppp|
        gpu 7 |K..KKK|
        """
    )
    assert idle_us(trace) == {"python": 2000}
    assert idle_of(trace).is_queued.tolist() == [False]
