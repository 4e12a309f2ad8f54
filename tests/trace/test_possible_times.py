"""Events with impossible times are left out one by one, and sums of the others stay right."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor import analyze
from tb_perfadvisor.signals import Cause
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.assembler import FARTHEST_NS, LONGEST_NS, is_impossible
from tests.support.kineto_files import event, read, to_bytes


def impossible(*spans: tuple[int, int]) -> list[bool]:
    start, duration = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    return is_impossible(start, duration).tolist()


def test_events_far_from_most_others() -> None:
    near = (10, 5)
    assert impossible(near, near, (10 + FARTHEST_NS, 5)) == [False] * 3
    assert impossible(near, near, (11 + FARTHEST_NS, 5)) == [False, False, True]
    assert impossible((9 - FARTHEST_NS, 5), near, near) == [True, False, False]
    # The difference of these does not fit into 64 bits.
    assert impossible((-(2**63), 0), near, (2**63 - 1, 0)) == [True, False, True]
    assert is_impossible(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []


def test_durations_that_are_too_long_alone_or_together() -> None:
    assert impossible((0, LONGEST_NS), (0, 1)) == [False, False]
    assert impossible((0, LONGEST_NS + 1), (0, 1)) == [True, False]
    # 2,048 events of 2^52 ns are 2^63 ns, which no sum holds. Then 2^62 / 2,048 = 2^51 is the most.
    many = impossible(*[(0, LONGEST_NS)] * 2047, (0, 2**51))
    assert many == [True] * 2047 + [False]


def drawn(*, far_us: float) -> Trace:
    """Two steps of 10 ms, and an event whose time is wrong."""
    steps = [
        event(f"ProfilerStep#{step}", 10_000 * step, 10_000, cat="user_annotation")
        for step in (0, 1)
    ]
    work = [event("aten::mm", start, 2_000) for start in (0, 10_000)]
    return read(to_bytes([*steps, *work, event("aten::mm", far_us, 10)]))


def test_a_wrong_time_does_not_move_the_others() -> None:
    for far_us in (9.1e15, -9.1e15, 3e12):  # the last is 34 days
        trace = drawn(far_us=far_us)
        assert [note.id for note in trace.notes] == ["impossible-times"]
        assert len(trace.events) == 4
        assert trace.duration_ns == 20_000_000
        report = analyze(trace)
        # 4 of 20 ms are work, whatever the damaged event says.
        assert report.overview.window_ns == 20_000_000
        shares = {part.cause: part.total_ns for part in report.overview.breakdown}
        assert shares[Cause.HOST_COMPUTE.value] == 4_000_000


def test_memory_changes_far_from_the_events_are_left_out() -> None:
    builder = TraceBuilder(has_memory=True).operator("aten::mm", 0, ms(1))
    trace = builder.memory(5, 512).memory(2**62, 512).build()
    assert trace.memory.at_ns.tolist() == [5]


def test_a_trace_starts_with_its_first_possible_event() -> None:
    far = 2**62
    builder = TraceBuilder().host(EventKind.OPERATOR, "stray", 0, 5)
    for number in range(3):
        builder.host(EventKind.OPERATOR, "op", far + 10 * number, far + 10 * number + 5)
    trace = builder.build()
    assert trace.events.start_ns.tolist() == [0, 10, 20]
    assert [note.id for note in trace.notes] == ["impossible-times"]
