from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.synchronization import Synchronizations
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Trace


def synchronizations_of(trace: Trace) -> Synchronizations:
    return Signals(run_of(trace)).synchronizations


def test_a_wait_costs_the_idle_from_its_return_to_the_next_kernel() -> None:
    # The wait returns with the kernel at 4; Python for 2 ms, a launch of 1; next kernel at 7.
    found = synchronizations_of(
        draw(
            """
            cell 1ms
            step  |..........|
            main  |LSSSppL...|
            gpu 7 |.KKK...KKK|
            """
        )
    )
    assert found.duration_ns.tolist() == [ms(3)]
    assert found.induced_ns.tolist() == [ms(3)]
    assert found.induced.tolist() == [[ms(4), ms(7)]]


def test_wait_costs_at_most_the_duration_of_the_call() -> None:
    # Without the wait of 1 ms the host would have been ahead by 1 ms, not by 5.
    found = synchronizations_of(
        draw(
            """
            cell 1ms
            step  |..........|
            main  |L..SppppL.|
            gpu 7 |.KKK.....K|
            """
        )
    )
    assert found.induced_ns.tolist() == [ms(1)]


def test_a_wait_while_work_is_queued_costs_nothing() -> None:
    found = synchronizations_of(
        draw(
            """
            cell 1ms
            step  |..........|
            main  |LLSSS.....|
            gpu 7 |.KKKKKKKK.|
            """,
            links={("gpu 7", 0): ("main", 0)},
        )
    )
    assert found.induced_ns.tolist() == []  # nothing is launched after it: it ends the work


def test_blocking_copy_waits() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.launch(ms(0), ms(1), key="first").kernel("a", ms(1), ms(3), launched_by="first")
    builder.launch(ms(1), ms(3), name="cudaMemcpy").launch(ms(4), ms(5), name="cudaMemcpyAsync")
    builder.launch(ms(5), ms(6), key="last").kernel("b", ms(6), ms(10), launched_by="last")
    trace = builder.build()
    found = synchronizations_of(trace)
    assert [trace.name(row) for row in found.row.tolist()] == ["cudaMemcpy"]
    # Idle from 3 to 6, but the call took 2 ms: ahead by no more than that.
    assert found.induced_ns.tolist() == [ms(2)]
