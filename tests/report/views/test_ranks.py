"""The ranks view, worked out by hand."""

from __future__ import annotations

from tb_perfadvisor.report.views.ranks import make_ranks_view
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.testing import draw, ms, run_of

EARLY = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKK.......|KKK.......|
    gpu 13 |...NNNNNNN|...NNNNNNN|
"""
LATE = """
    cell 1ms
    step   |..........|..........|
    main   |.....o'SSS|.....o'SSS|
    gpu 7  |.....KKK..|.....KKK..|
    gpu 13 |........NN|........NN|
"""


def test_waits_between_ranks_and_the_critical_rank() -> None:
    traces = [
        draw(text, rank=rank, world_size=3, backend="nccl")
        for rank, text in enumerate((EARLY, LATE, EARLY))
    ]
    signals = reference_worker(run_of(*traces))
    view = make_ranks_view(signals)
    assert view is not None
    assert signals.worker == 1
    assert view.step_ns == [ms(10)] * 3
    assert [sum(column) for column in zip(*view.total_ns, strict=True)] == [ms(10)] * 3
    # One collective per step; ranks 0 and 2 arrive 5 ms before rank 1.
    assert (view.collectives, view.times_late, view.late) == (2, [0, 2, 0], [1])
    assert view.waiting_ns == [ms(5), 0, ms(5)]
    assert view.late_ns == [0, ms(5), 0]
    assert (view.waited_for, view.pairs_ns) == ([1], [[ms(5), 0, ms(5)]])
    assert (view.step_index, view.critical) == ([0, 1], [1, 1])
    assert view.step_waiting_ns == [[ms(5), 0, ms(5)]] * 2


def test_ranks_without_matching_collectives_have_a_breakdown() -> None:
    once = EARLY.replace("NNNNNNN|\n", ".......|\n")
    traces = [
        draw(text, rank=rank, world_size=4, backend="nccl")
        for rank, text in enumerate((EARLY, once))
    ]
    view = make_ranks_view(reference_worker(run_of(*traces)))
    assert view is not None
    assert "communication" in view.causes
    assert (view.collectives, view.times_late, view.waiting_ns) == (0, None, None)
    assert (view.waited_for, view.critical) == ([], [])


def test_a_single_rank_has_no_view() -> None:
    assert make_ranks_view(reference_worker(run_of(draw(EARLY)))) is None
