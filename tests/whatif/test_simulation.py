"""Compare the replay with programs that ran with and without what slows them down."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.whatif import (
    Async,
    Fix,
    NotReplayable,
    Overlap,
    Remove,
    Shorten,
    simulation,
)
from tb_perfadvisor.whatif import replay as replay_module
from tb_perfadvisor.whatif.replay import remove_time, replay
from tests.support.cuda_executor import (
    GAP,
    Backward,
    Item,
    Launch,
    Operation,
    Played,
    Sync,
    Work,
    play,
    shortened,
    without_delays,
)
from tests.support.night import examples

ROUNDS = 8
Steps = Sequence[Sequence[Operation]]
# Contains every cost once: a latency, a gap, a signal from another stream, a wait for the device,
# and a wait for finished work.
_TWO_KERNELS = (Sync(), Launch(7, 40_000), Launch(7, 40_000))
CALIBRATION = {
    1: (*_TWO_KERNELS, Sync(), Sync()),
    2: (*_TWO_KERNELS, Launch(9, 50_000, after_stream=7), Sync(), Sync()),
}


def delays(trace: Trace) -> Intervals:
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[np.array([trace.name(row) == "delay" for row in rows.tolist()], dtype=bool)]
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])


def round_ns(played: Played, steps: Steps) -> int:
    """Duration of each further round of the steps, in the steady state."""
    return played.finished_ns[-1] - played.finished_ns[-1 - len(steps)]


def simulated(slow: Played, *fixes: Fix) -> int | None:
    found = simulation(Signals(run_of(slow.trace)))
    if isinstance(found, NotReplayable):
        return None
    return found.length_ns - found.saved_ns(*fixes)


microseconds = st.integers(1, 60).map(lambda us: us * 1_000)
host_work = st.builds(Work, microseconds)
delay = st.builds(Work, microseconds, st.just(True))


def operations(streams: Sequence[int]) -> st.SearchStrategy[Operation]:
    stream = st.sampled_from(streams)
    launches = [st.builds(Launch, stream, microseconds)]
    if len(streams) > 1:
        launches += [
            st.builds(lambda us: Launch(7, us, after_stream=9), microseconds),
            st.builds(lambda us: Launch(9, us, after_stream=7), microseconds),
        ]
    waits = st.one_of(st.builds(Sync, st.one_of(st.none(), stream)), st.builds(Item, stream))
    return st.one_of(host_work, *launches, *launches, waits)


@st.composite
def programs(
    draw: st.DrawFn, extra: st.SearchStrategy[Operation], streams: Sequence[int] = (7, 9)
) -> list[tuple[Operation, ...]]:
    some = st.lists(st.one_of(operations(streams), extra), max_size=6).map(tuple)
    steps: list[tuple[Operation, ...]] = []
    for number in range(3):
        first = CALIBRATION[len(streams)] if number == 0 else ()
        rest = (draw(some.map(Backward)), *draw(some)) if draw(st.booleans()) else ()
        steps.append((*first, *draw(some), *rest, Launch(7, 5_000)))
    return steps


many = examples(25)


# The work of both streams ends at the same moment, and the work that waits for both starts with
# the signal.
_TIED: Steps = [
    (*CALIBRATION[2], Launch(7, 5_000)),
    (
        Backward((Launch(7, 52_000, after_stream=9), Item(9))),
        Work(20_000),
        Launch(9, 16_000, after_stream=7),
        Launch(7, 17_000),
        Work(7_000),
        Launch(9, 1_000, after_stream=7),
        Launch(7, 5_000),
    ),
    (Work(2_000, is_delay=True), Launch(7, 5_000)),
]


@many
@example(_TIED)
@given(programs(delay))
def test_removing_a_delay_gives_the_time_of_the_program_without_it(steps: Steps) -> None:
    slow = play(steps, ROUNDS)
    fast = play([without_delays(step) for step in steps], ROUNDS)
    assert simulated(slow, Remove(delays(slow.trace))) == round_ns(fast, steps)


@pytest.mark.parametrize("kernel_us", [20, 200])
def test_launches_into_a_full_queue_wait_for_the_device(kernel_us: int) -> None:
    """The host runs ahead until the queue is full; a faster device makes room sooner."""
    step = tuple(Launch(7, 1_000 * kernel_us) for _ in range(300))
    slow, fast = (play([each], 12, marked_repeats=4) for each in (step, shortened(step, 2)))
    rows = slow.trace.rows(EventKind.KERNEL)
    halves = Shorten(rows, slow.trace.events.duration_ns[rows] // 2)
    # Each kernel ends GAP after the one before it: 20 + 1 us, and 10 + 1 us.
    assert round_ns(fast, [step]) == 300 * (500 * kernel_us + GAP)
    assert simulated(slow, halves) == pytest.approx(4 * round_ns(fast, [step]), rel=0.02)


@many
@given(programs(delay), st.data())
def test_time_removed_twice_counts_once(steps: Steps, data: st.DataObject) -> None:
    slow = play(steps, ROUNDS)
    found = simulation(Signals(run_of(slow.trace)))
    assert not isinstance(found, NotReplayable)
    graph = found.graph
    moments = st.integers(0, int(slow.trace.events.end_ns.max()))

    def any_intervals() -> Intervals:
        ends = data.draw(st.lists(st.tuples(moments, moments).map(sorted), max_size=5))
        return union(*np.array(ends, dtype=np.int64).reshape(-1, 2).T)

    first, second = any_intervals(), any_intervals()
    removed = remove_time(graph, first)
    assert replay(graph, (), removed) == replay(graph, (Remove(first),))
    both = (Remove(first), Remove(second))
    assert replay(graph, (Remove(second),), removed) == replay(graph, both)


@many
@given(programs(delay), st.integers(1, 10), st.data())
def test_rounds_that_change_nothing_are_not_replayed(
    steps: Steps, divisor: int, data: st.DataObject
) -> None:
    slow = play(steps, ROUNDS)
    found = simulation(Signals(run_of(slow.trace)))
    assert not isinstance(found, NotReplayable)
    rows = slow.trace.rows(EventKind.KERNEL)
    some = st.lists(st.sampled_from(rows.tolist()), unique=True).map(sorted)
    overlapped = data.draw(st.one_of(st.just(rows.tolist()), some))
    fixes = (
        Shorten(rows, slow.trace.events.duration_ns[rows] // divisor),
        Remove(delays(slow.trace)),
        Overlap(np.array(overlapped, dtype=np.int32)),
    )
    stopped_early = replay(found.graph, fixes)
    with patch.object(replay_module, "_advance_alike", return_value=False):
        assert replay(found.graph, fixes) == stopped_early


@many
@given(programs(host_work, (7,)))
def test_removing_waits_gives_the_time_of_the_program_without_them(steps: Steps) -> None:
    slow, fast = play(steps, ROUNDS), play(steps, ROUNDS, waits=False)
    assert simulated(slow, Async(waiting_calls(slow.trace))) == round_ns(fast, steps)


@many
@given(programs(host_work, (7,)), st.integers(2, 10))
def test_faster_kernels_give_the_time_of_the_program_with_them(steps: Steps, divisor: int) -> None:
    slow = play(steps, ROUNDS)
    fast = play([shortened(step, divisor) for step in steps], ROUNDS)
    rows = slow.trace.rows(EventKind.KERNEL)
    faster = Shorten(rows, slow.trace.events.duration_ns[rows] // divisor)
    # If host and device limit each other, rounds may still differ by a gap.
    assert simulated(slow, faster) == pytest.approx(round_ns(fast, steps), abs=GAP)


def test_a_stated_wait_holds_although_the_recorded_work_was_never_late() -> None:
    # Stream 9 is done long before the delayed thread launches what waits for it. Without the delay
    # of 300 us, the wait is what counts.
    steps: Steps = [
        (*CALIBRATION[2], Launch(7, 5_000)),
        (
            Launch(9, 200_000),
            Work(300_000, is_delay=True),
            Launch(7, 30_000, after_stream=9),
            Sync(),
        ),
    ]
    # Both when one thread launches and when two do.
    backward = [*steps, (Backward((Launch(9, 20_000), Launch(7, 9_000, after_stream=9))), Sync())]
    for program in (steps, backward):
        slow = play(program, ROUNDS)
        fixed = play([without_delays(step) for step in program], ROUNDS)
        expected = round_ns(fixed, program)
        assert round_ns(slow, program) - 300_000 < expected - 100_000
        assert simulated(slow, Remove(delays(slow.trace))) == pytest.approx(expected, rel=0.02)


def test_work_with_the_usual_latency_waits_for_no_other_stream() -> None:
    # The kernel of stream 9 ends 3 us before the one of stream 7 starts, by chance: that one starts
    # 7 us after its launch, as any other. Without the delay it runs beside the first.
    steps: Steps = [
        (*CALIBRATION[1], Launch(7, 5_000)),
        (
            Launch(9, 100_000),
            Work(96_000, is_delay=True),
            Launch(7, 50_000),
            Sync(),
        ),
    ]
    slow = play(steps, ROUNDS)
    fixed = play([without_delays(step) for step in steps], ROUNDS)
    saved = round_ns(slow, steps) - round_ns(fixed, steps)
    assert saved == 51_000  # from 101 + 7 + 50 us to the 107 us that the first kernel takes
    assert simulated(slow, Remove(delays(slow.trace))) == round_ns(fixed, steps)


def test_calls_that_copy_from_pageable_memory_tell_nothing_of_launches() -> None:
    # Two arrays go to the device, one kernel runs, and both return; most launches are copies.
    builder = TraceBuilder()
    copies = [CopyDirection.HOST_TO_DEVICE] * 2 + [CopyDirection.DEVICE_TO_HOST] * 2
    for step in range(4):
        begin = at = ms(50 * step)
        for place, direction in enumerate(copies):
            key = f"{step} {place}"
            builder.launch(at, at + ms(10), key=key)
            builder.copy(
                direction, at + us(10), at + ms(10), pageable=1, size_bytes=1 << 20, launched_by=key
            )
            at += ms(10)
            if place == 1:
                builder.launch(at, at + us(5), key=f"{step} kernel")
                builder.kernel("solve", at + us(10), at + us(20), launched_by=f"{step} kernel")
                at += us(20)
        builder.step(step, begin, ms(50 * (step + 1)))
    signals = Signals(run_of(builder.build()))
    table = signals.trace.copies
    to_host = table.row[table.direction == CopyDirection.DEVICE_TO_HOST]
    replayed = simulation(signals)
    assert not isinstance(replayed, NotReplayable)
    saved_ns = replayed.saved_ns(Shorten(to_host, np.zeros(len(to_host), dtype=np.int64)))
    # Eight copies of 9.99 ms.
    assert saved_ns == pytest.approx(8 * 9.99e6, rel=0.01)
