"""All ranks together: matching, waiting, clocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Signals, collectives_of, ranks_of, reference_worker
from tb_perfadvisor.signals.ranks.matching import align_clocks
from tb_perfadvisor.signals.ranks.ranks import CAUSES, collectives_kept, reduce_ranks, summarize
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, us
from tb_perfadvisor.trace import LazyTraces, Run, Source, Trace
from tests.support.night import examples

ORIGIN_NS = 1_795_234_145_000_000_000


def rank(
    number: int,
    *spans_ms: tuple[float, float],
    group: str = "",
    group_size: int = -1,
    **source: int,
) -> Trace:
    """A rank with an all-reduce for each span, on its own clock."""
    builder = TraceBuilder(rank=number, **{"world_size": 4, **source}).step(0, 0, ms(100))
    for sequence, (start, end) in enumerate(spans_ms):
        builder.collective(
            "ncclKernel", ms(start), ms(end), sequence=sequence, group=group, group_size=group_size
        )
    return builder.build()


def test_last_rank_and_waits_of_the_others() -> None:
    # All end at 20 and 40; rank 2 arrives last at the first, rank 0 at the second.
    ranks = ranks_of(
        Signals(
            run_of(
                rank(0, (10, 20), (39, 40)),
                rank(1, (12, 20), (31, 40)),
                rank(2, (18, 20), (32, 40)),
                rank(3, (11, 20), (33, 40)),
            )
        )
    )
    assert len(ranks.matched) == 2
    assert ranks.matched.last_rank.tolist() == [2, 0]
    assert ranks.matched.transfer_ns.tolist() == [ms(2), ms(1)]
    # Rank 0: 10 - 2 and 1 - 1; rank 1: 8 - 2 and 9 - 1; rank 2: 0 and 8 - 1; rank 3: 7 and 6.
    assert ranks.waiting_ns.tolist() == [ms(8), ms(14), ms(7), ms(13)]
    assert ranks.critical == 2


def test_a_group_within_the_run_is_matched_among_its_own_ranks() -> None:
    pair = {"group": "tensor 0", "group_size": 2}
    other = {"group": "tensor 1", "group_size": 2}
    traces = (
        rank(0, (10, 20), **pair),
        rank(1, (15, 20), **pair),
        rank(2, (12, 20), **other),
    )  # rank 3, the other of the second pair, is missing
    ranks = ranks_of(Signals(run_of(*traces)))
    assert ranks.matched.transfer_ns.tolist() == [ms(5)]
    assert ranks.waiting_ns.tolist() == [ms(5), 0, -1]
    assert collectives_of(Signals(run_of(*traces), 2)).transfer_ns.tolist() == [-1]


def test_clocks_are_aligned_at_the_ends_of_collectives() -> None:
    # Rank 1's clock is 3 ms ahead by its wall clock; its trace began 5 ms after rank 0's.
    first = rank(0, (10, 20), (30, 40), world_size=2, origin_unix_ns=ORIGIN_NS)
    second = rank(1, (12, 18), (33, 38), world_size=2, origin_unix_ns=ORIGIN_NS + ms(5))
    clocks = ranks_of(Signals(run_of(first, second))).clocks
    begin = clocks.begin_ns - clocks.begin_ns[0]
    # 20 ms on the first is 18 ms on the second: its trace began 2 ms after the first's.
    assert begin.tolist() == [0, ms(2)]
    assert clocks.is_aligned.tolist() == [True, True]
    assert clocks.skew_is_known
    # Half of the difference on either side of the median.
    assert clocks.skew_ns.tolist() == [-us(1500), us(1500)]


def test_wall_clocks_are_used_without_collectives() -> None:
    def alone(number: int, origin: int | None) -> Trace:
        return TraceBuilder(rank=number, origin_unix_ns=origin).step(0, 0, ms(5)).build()

    clocks = ranks_of(Signals(run_of(alone(0, ORIGIN_NS), alone(1, ORIGIN_NS + 7)))).clocks
    assert clocks.begin_ns.tolist() == [0, 7]
    assert not clocks.is_aligned.any()
    assert not clocks.skew_is_known


@examples(50)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=4, max_size=4))
def test_clocks_pass_through_overlapping_groups(ahead_ns: list[int]) -> None:
    """Ranks 0-1 and 2-3 share tensor groups, 0-2 and 1-3 data groups, which connects all four."""
    generator = np.random.default_rng(sum(map(abs, ahead_ns)))
    groups = [(0, 1), (2, 3), (0, 2), (1, 3)]
    entries = [
        (member, collective, int(end) + ahead_ns[member])
        for collective, (group, end) in enumerate(
            (groups[index % 4], generator.integers(0, 10**9)) for index in range(40)
        )
        for member in group
    ]
    member, collective, end = (np.array(column) for column in zip(*entries, strict=True))
    clocks = align_clocks(
        [Source("", "kineto") for _ in ahead_ns],
        member.astype(np.int32),
        collective.astype(np.int32),
        end.astype(np.int64),
    )
    begin = clocks.begin_ns - clocks.begin_ns[0]
    expected = np.array([ahead_ns[0] - offset_ns for offset_ns in ahead_ns])
    assert np.abs(begin - expected).max() <= 1_000


def test_a_summary_sums_exactly_to_the_window() -> None:
    trace = draw(
        """
        cell 1ms
        step   |....|....|....|
        main   |DDo.|DDo.|Doo.|
        gpu 7  |..KK|.NKK|..KK|
        """
    )
    signals = Signals(run_of(trace))
    summary = summarize(signals)
    assert summary.cause_total_ns.sum() == summary.window_ns == ms(12)
    assert summary.cause_ns.shape == (len(CAUSES), 3)
    assert summary.cause_ns.sum(axis=0).tolist() == [ms(4)] * 3
    assert summary.cause_ns.sum(axis=1).tolist() == summary.cause_total_ns.tolist()


def test_rank_summaries_are_comparable_and_bounded() -> None:
    spans = [(2 * number, 2 * number + 1) for number in range(40)]
    signals = Signals(run_of(rank(0, *spans)))
    summary = summarize(signals, max_collectives=25)
    assert len(summary.collectives) == 25
    assert summary.collectives.left_out == 15
    assert [collectives_kept(n) for n in (1, 8, 1_000, 4_096, 100_000)] == [
        65_536,
        65_536,
        8_000,
        1_953,
        1_024,
    ]


def test_summaries_made_while_reading_take_the_place_of_traces() -> None:
    traces = (rank(0, (10, 20), world_size=2), rank(1, (15, 20), world_size=2))
    whole = reference_worker(run_of(*traces))
    reads: list[int] = []

    def read(index: int) -> Trace:
        reads.append(index)
        return traces[index]

    lazy = Run(
        id="drawn",
        name="drawn",
        session="",
        traces=LazyTraces(
            [trace.source for trace in traces], [lambda: read(0), lambda: read(1)], kept=1
        ),
        summaries=tuple(summarize(Signals(run_of(trace))) for trace in traces),
    )
    signals = reference_worker(lazy)
    assert signals.worker == whole.worker == 1
    assert reads == [1]
    assert (
        collectives_of(signals).transfer_ns.tolist() == collectives_of(whole).transfer_ns.tolist()
    )
    assert lazy.traces[1] is signals.trace
    assert reads == [1]
    assert [trace.source.rank for trace in lazy.traces[0:2]] == [0, 1]
    assert reads == [1, 0, 1]  # only the last is kept


def test_many_ranks_are_matched_like_few() -> None:
    """Compare with a plain loop over ranks and collectives."""
    generator = np.random.default_rng(7)
    starts = generator.integers(0, 50, size=(16, 12))
    traces = [
        rank(
            number,
            *[(100 * k + int(starts[number, k]), 100 * k + 60) for k in range(12)],
            world_size=16,
        )
        for number in range(16)
    ]
    ranks = reduce_ranks(
        [trace.source for trace in traces], [summarize(Signals(run_of(trace))) for trace in traces]
    )
    durations = 60 - starts
    assert ranks.matched.transfer_ns.tolist() == [
        ms(int(duration_ms)) for duration_ms in durations.min(axis=0)
    ]
    waits = (durations - durations.min(axis=0)).sum(axis=1)
    assert ranks.waiting_ns.tolist() == [ms(int(duration_ms)) for duration_ms in waits]
    assert ranks.matched.last_rank.tolist() == durations.argmin(axis=0).tolist()


def test_matching_without_sorting_gives_the_same_result() -> None:
    """Compare ranks with equal collectives to the same ranks with an extra one on one of them."""
    generator = np.random.default_rng(11)
    starts = generator.integers(0, 50, size=(5, 9))
    spans = [
        [(100 * k + int(starts[number, k]), 100 * k + 60) for k in range(9)] for number in range(5)
    ]

    def matched(*more: tuple[float, float]) -> tuple[list[int], list[int], list[int], list[int]]:
        traces = [
            rank(number, *rank_spans, *(more if number == 2 else ()), world_size=5)
            for number, rank_spans in enumerate(spans)
        ]
        ranks = ranks_of(Signals(run_of(*traces)))
        found = ranks.matched
        return (
            found.last_rank.tolist(),
            found.transfer_ns.tolist(),
            ranks.waiting_ns.tolist(),
            [len(ranks.transfers_of(worker)) for worker in range(5)],
        )

    assert matched() == matched((2_000, 2_001))


def test_common_steps_are_those_that_all_workers_use() -> None:
    def numbered(rank: int, *numbers: int) -> Trace:
        builder = TraceBuilder(rank=rank, world_size=3)
        for place, number in enumerate(numbers):
            builder.step(number, ms(10 * place), ms(10 * place + 10))
            builder.kernel("k", ms(10 * place + 1), ms(10 * place + 9))
        return builder.build()

    run = run_of(numbered(0, 4, 5, 6, 7), numbered(1, 5, 6, 7, 8), numbered(2, 3, 5, 7))
    assert ranks_of(Signals(run)).common_steps().tolist() == [5, 7]
