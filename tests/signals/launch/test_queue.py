from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.launch.delays import launch_queue
from tb_perfadvisor.testing import TraceBuilder, draw, run_of


def test_depth_counts_launched_events_that_have_not_ended() -> None:
    # Launch i is called at cell i, kernel i ends at cell 2 (i + 1): at the call of launch i
    # i // 2 have ended. The seventh is called at cell 12, when all six have.
    trace = draw(
        """
        cell 10us
        step   |..............|
        main   |L'''''......L.|
        gpu 7  |K-'-'-'-'-'-.K|
        """,
        links={("gpu 7", i): ("main", i) for i in range(7)},
    )
    queue = launch_queue(Signals(run_of(trace)))
    assert queue.depth.tolist() == [0, 1, 1, 2, 2, 3, 0]
    # Kernel i starts at cell 2 i: i cells after its call; the seventh one cell after.
    assert queue.lead_ns.tolist() == [i * 10_000 for i in (0, 1, 2, 3, 4, 5, 1)]
    assert queue.empty_share == 2 / 7
    assert queue.median_depth == 1


def test_a_graph_is_one_launch() -> None:
    # Two kernels launched by one call.
    trace = draw(
        """
        cell 10us
        main   |L..|
        gpu 7  |.K'|
        """
    )
    assert launch_queue(Signals(run_of(trace))).depth.tolist() == [0]


def test_depth_is_unknown_without_launches() -> None:
    queue = launch_queue(Signals(run_of(TraceBuilder().build())))
    assert queue.empty_share is queue.median_depth is queue.median_lead_ns is None
