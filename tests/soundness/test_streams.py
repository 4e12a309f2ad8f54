"""One stream runs one thing after another, and no call returns before what it waits for."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.device_loops import KERNELS, loop


def kernel_ns(trace: Trace) -> list[int]:
    rows = trace.rows(EventKind.KERNEL)
    durations: list[int] = trace.events.duration_ns[rows].tolist()
    return durations


def stream(*spans: tuple[float, float]) -> Trace:
    """Kernels on one stream, from and to so many milliseconds."""
    builder = TraceBuilder()
    for begin, end in spans:
        builder.kernel("gemm", ms(begin), ms(end))
    return builder.build()


def test_sound_recordings_stay_as_they_are() -> None:
    trace = loop().build()
    assert examined(trace).events is trace.events
    assert examined(trace).notes == trace.notes


def test_a_kernel_that_outlasts_others_of_its_stream_ends_where_the_next_begins() -> None:
    # Its neighbors begin 1 ms apart.
    trace = examined(loop(stretched=(2, 3, ms(3_000))).build())
    assert kernel_ns(trace) == [ms(1)] * 6 * KERNELS
    (note,) = trace.notes
    assert note.id == "impossible-durations"
    assert "1 device event ends" in note.message
    assert "gemm says 3.00 s and takes 1.00 ms at most" in note.message
    # One of 48 kernels: 2 % of the device's time.
    assert (note.severity, trace.soundness.shortened) == ("info", 1)
    signals = Signals(run_of(trace))
    assert signals.attribution.window_ns == 6 * ms(10)
    # No kernel is inside another one any more.
    assert (trace.events.parent[trace.rows(EventKind.KERNEL)] == -1).all()


def test_a_repair_that_matters_is_a_warning() -> None:
    # 3 of 6 ms, whose end is only known to lie in them.
    trace = examined(stream((0, 1), (1, 900), (4, 5), (5, 6)))
    assert kernel_ns(trace) == [ms(1), ms(3), ms(1), ms(1)]
    assert trace.notes[0].severity == "warning"


def test_programmatic_dependent_launch_overlaps_only_the_next_kernel() -> None:
    # Each kernel begins before the one before it ends.
    spans = [(0.9 * k, 0.9 * k + 1) for k in range(8)]
    trace = stream(*spans)
    assert examined(trace).events is trace.events


def test_branches_of_a_graph_are_no_stream() -> None:
    # Three of eight kernels overlap two others each.
    spans = [(k, k + (2.5 if k % 3 == 0 else 0.5)) for k in range(8)]
    trace = stream(*spans)
    assert examined(trace).events is trace.events


@pytest.mark.parametrize(("end_us", "is_cut"), [(2_001.0, False), (2_001.1, True)])
def test_rounding_to_a_microsecond_is_no_overlap(end_us: float, is_cut: bool) -> None:
    trace = stream((0, end_us / 1000), (1, 2), (2, 3))
    assert (kernel_ns(examined(trace))[0] == ms(1)) is is_cut


def test_streams_are_looked_at_one_by_one() -> None:
    builder = TraceBuilder().kernel("long", 0, ms(10), stream=9)
    for k in range(8):
        builder.kernel("gemm", ms(k), ms(k + 1), stream=7)
    trace = builder.build()
    assert examined(trace).events is trace.events


def test_a_loop_of_a_tpu_holds_its_operations() -> None:
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu")
    builder.xla_op("while.1", 0, ms(9))
    for k in range(8):
        builder.xla_op(f"fusion.{k}", ms(k), ms(k + 1))
    trace = builder.build()
    assert examined(trace).events is trace.events


@pytest.mark.parametrize(
    ("wait", "streams", "ends"),
    [
        ("cudaDeviceSynchronize", (7, 9), 2),
        ("cudaStreamSynchronize", (7, 7), 2),
        # Which of the two streams the call waits for is not known.
        ("cudaStreamSynchronize", (7, 9), 50),
        ("cudaEventSynchronize", (7, 7), 50),
    ],
)
def test_no_work_outlasts_a_wait_for_it(wait: str, streams: tuple[int, int], ends: int) -> None:
    builder = TraceBuilder()
    for number in range(20):
        builder.launch(us(number), us(number + 1), key=f"{number}")
        at = us(100 + 50 * number)
        builder.kernel("add", at, at + us(50), stream=streams[0], launched_by=f"{number}")
    builder.launch(us(30), us(31), key="last")
    # From 1.1 ms on; by the file, for 50 ms.
    builder.kernel("gemm", ms(1.1), ms(50), stream=streams[1], launched_by="last")
    builder.synchronize(us(40), ms(2), name=wait)
    trace = examined(builder.build())
    assert trace.events.end_ns.max() == ms(ends)


def test_a_copy_ends_before_its_blocking_call_returns() -> None:
    trace = loop().build()
    rows = trace.rows(EventKind.COPY)
    durations = trace.events.duration_ns.copy()
    durations[rows[3]] = ms(1)
    from msgspec.structs import replace

    damaged = replace(trace, events=replace(trace.events, duration_ns=durations))
    repaired = examined(damaged)
    # The call returns 20 us after the copy begins, at 8.23 and 8.21 ms.
    assert repaired.events.duration_ns[repaired.rows(EventKind.COPY)[3]] == us(20)
