"""The parallelism view, worked out by hand."""

from __future__ import annotations

from tb_perfadvisor.report.views.ranks import MAX_DIMENSIONS, make_parallelism_view
from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of

RANK = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKK.......|KKK.......|
    gpu 13 |..NNNN....|..NNNN....|
"""
LATER = RANK.replace("..NNNN", "....NN")


def test_totals_of_the_reference_rank_and_times_of_all_ranks() -> None:
    traces = [
        draw(text, rank=rank, world_size=2, backend="nccl")
        for rank, text in enumerate((RANK, LATER))
    ]
    view = make_parallelism_view(reference_worker(run_of(*traces)))
    assert view is not None
    (row,) = view.dimensions
    # Rank 1 waits for nobody: 2 ms in each of two steps.
    assert (view.exposed_ns, row.cost.exposed_ns, row.cost.hidden_ns) == (ms(4), ms(4), 0)
    assert (row.cost.count, row.dimension, row.evidence) == (2, "unknown", None)
    assert row.rank_exposed_ns is None


def test_times_by_rank_are_per_step() -> None:
    def rank(number: int, start: int) -> TraceBuilder:
        drawn = TraceBuilder(rank=number, world_size=2, backend="nccl")
        for step in range(2):
            at = ms(10 * step)
            drawn.step(step, at, at + ms(10)).kernel("gemm", at, at + ms(start))
            drawn.collective("ncclDevKernel", at + ms(start), at + ms(8), description="mesh_tp")
        return drawn

    view = make_parallelism_view(reference_worker(run_of(rank(0, 2).build(), rank(1, 5).build())))
    assert view is not None
    (row,) = view.dimensions
    assert (row.dimension, row.rank_exposed_ns) == ("tensor", [ms(6), ms(3)])
    assert row.rank_waiting_ns == [ms(3), 0]
    assert row.rank_sent_bytes is None


def test_many_groups_of_unknown_purpose_are_cut() -> None:
    drawn = TraceBuilder(rank=0, world_size=64, backend="nccl").step(0, 0, ms(50))
    for group in range(MAX_DIMENSIONS + 3):
        drawn.collective("ncclDevKernel", ms(group), ms(group + 1), group=str(group))
    view = make_parallelism_view(Signals(run_of(drawn.build())))
    assert view is not None
    assert (len(view.dimensions), view.truncated) == (MAX_DIMENSIONS, 3)


def test_a_program_that_does_not_communicate_has_no_view() -> None:
    trace = TraceBuilder().step(0, 0, ms(10)).kernel("gemm", 0, ms(10)).build()
    assert make_parallelism_view(Signals(run_of(trace))) is None
