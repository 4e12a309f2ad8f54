"""Lists of collectives of ranks that recorded different stretches, on clocks of their own."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals, ranks_of
from tb_perfadvisor.testing import TraceBuilder, run_of, us
from tb_perfadvisor.trace import Trace

COUNT = 24
ORIGIN_NS = 1_795_234_145_000_000_000


def recorded(
    rank: int, begin: int, end: int, *, clock_us: int = 0, group: str = "data", **source: int
) -> Trace:
    """All-reduces begin to end of the same sequence, as one rank of two sees them.

    They end about 10 ms apart, a little more or less each time. Rank 1 is in them for 100 us, and
    rank 0 for 100 us times the number of the all-reduce.
    """
    generator = np.random.default_rng(5)
    ends_us = np.cumsum(10_000 + generator.integers(-400, 400, size=COUNT))
    builder = TraceBuilder(rank=rank, world_size=2, **source)
    offset = clock_us - int(ends_us[begin]) + 9_000
    for number in range(begin, end):
        last = us(int(ends_us[number]) + offset)
        taken = us(100 * (number + 1) if rank == 0 else 100)
        builder.collective("ncclKernel", last - taken, last, group=group, size_bytes=1 << 20)
    return builder.build()


def waits_us(first: Trace, second: Trace) -> list[float]:
    """How long rank 0 waits in each all-reduce that both recorded."""
    matched = ranks_of(Signals(run_of(first, second))).matched
    assert matched.is_whole.all()
    return (matched.waiting_ns[matched.rank == 0] / 1_000).tolist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, 24), (0, 24)),
        ((0, 24), (5, 20)),
        ((3, 24), (0, 19)),
        ((0, 14), (8, 24)),
        # As many on each, but not the same ones.
        ((0, 20), (4, 24)),
    ],
)
def test_what_both_recorded_is_matched(first: tuple[int, int], second: tuple[int, int]) -> None:
    common = range(max(first[0], second[0]), min(first[1], second[1]))
    expected = [100.0 * number for number in common]
    assert waits_us(recorded(0, *first), recorded(1, *second)) == expected
    # Whatever the clocks say, and whatever they are relative to.
    for clock_us in (7, 123_456):
        assert waits_us(recorded(0, *first), recorded(1, *second, clock_us=clock_us)) == expected
    on_clocks = [
        recorded(rank, *span, origin_unix_ns=ORIGIN_NS + us(3_000_000 * rank))
        for rank, span in enumerate((first, second))
    ]
    assert waits_us(on_clocks[0], on_clocks[1]) == expected


def test_what_was_launched_before_the_recording_is_of_the_only_group() -> None:
    def begun_before(rank: int, unknown: int) -> Trace:
        builder = TraceBuilder(rank=rank, world_size=2)
        for number in range(9 - unknown, 20):
            last = us(10_000 * number + 37 * number**2)
            group = "data" if number >= 9 else ""
            builder.collective("ncclKernel", last - us(100 + 50 * rank), last, group=group)
        return builder.build()

    ranks = ranks_of(Signals(run_of(begun_before(0, 2), begun_before(1, 5))))
    # 2 launched before the recording of both, and 11 later.
    assert len(ranks.matched) == 13
    assert ranks.waiting_ns.tolist() == [0, 13 * us(50)]


def test_samples_of_different_collectives_do_not_match() -> None:
    # Ends in ms of the all-to-alls in a public sample of one event in 224 (HTA, trace_filter).
    ends_ms = [(46, 109, 730, 797), (108, 196, 662, 1050)]
    sampled = []
    for rank, ends in enumerate(ends_ms):
        builder = TraceBuilder(rank=rank, world_size=2, origin_unix_ns=ORIGIN_NS)
        for end in ends:
            builder.collective("ncclKernel", us(1000 * end - 900), us(1000 * end))
        sampled.append(builder.build())
    assert len(ranks_of(Signals(run_of(*sampled))).matched) == 0


def test_groups_of_the_same_name_are_told_apart_by_their_ranks() -> None:
    def pair(rank: int) -> Trace:
        members = "[0, 1]" if rank < 2 else "[2, 3]"
        builder = TraceBuilder(rank=rank, world_size=4)
        builder.collective(
            "ncclKernel", 0, us(100 * (rank + 1)), group="tp", group_size=2, ranks=members
        )
        return builder.build()

    ranks = ranks_of(Signals(run_of(*map(pair, range(4)))))
    assert len(ranks.matched) == 2
    assert ranks.waiting_ns.tolist() == [0, us(100), 0, us(100)]


def test_steps_are_those_of_most_ranks() -> None:
    def counted(rank: int, first: int) -> Trace:
        builder = TraceBuilder(rank=rank, world_size=3)
        for number in range(4):
            begin = us(1000 * number)
            builder.step(first + number, begin, begin + us(1000))
            builder.collective("ncclKernel", begin + us(500), begin + us(900), sequence=number)
        return builder.build()

    ranks = ranks_of(Signals(run_of(counted(0, 10), counted(1, 10), counted(2, 37))))
    assert ranks.step_shift.tolist() == [0, 0, -27]
    assert ranks.common_steps().tolist() == [10, 11, 12, 13]


# When two of four processes left 20 all-reduces over gloo on a throttled link: recorded, in ms.
ENDS_MS = (
    "214 445 700 912 1160 1380 1693 1940 2174 2390 2617 2841 3075 3273 3529 3719 3996 4134 4383"
    " 4603",
    "279 453 752 914 1212 1366 1750 1962 2182 2398 2603 2847 3088 3286 3496 3726 3966 4166 4422"
    " 4619",
)
CLOCKS_NS = (1_795_487_216_564_235_064, 1_795_487_216_552_661_350)


@pytest.mark.parametrize("has_clock", [True, False])
def test_few_ends_that_fit_better_by_chance_do_not_match(*, has_clock: bool) -> None:
    """Over a slow link, ranks leave up to 60 ms apart; fourteen later, six of them fit better."""
    traces = []
    for rank, ends in enumerate(ENDS_MS):
        clock = {"origin_unix_ns": CLOCKS_NS[rank]} if has_clock else {}
        builder = TraceBuilder(rank=rank, world_size=2, **clock)
        for place, end in enumerate(map(int, ends.split())):
            # Buckets of two sizes take turns.
            size = 4_198_400 if place % 2 == 0 else 12_595_200
            last = us(1_000 * end)
            builder.collective("gloo:all_reduce", last - us(90_000), last, size_bytes=size)
        traces.append(builder.build())
    matched = ranks_of(Signals(run_of(*traces))).matched
    assert len(matched) == 20
    assert matched.is_whole.all()
