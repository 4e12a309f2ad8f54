"""When the operations of a compiled program run, worked out by hand."""

from __future__ import annotations

import pytest

from demo_logs.record.compiled import CompiledOperation, Timeline, play

US = 1_000_000
SHORT = 1_000
"""Of a start, or of a done that waits for nothing: 1 ns."""


def work(name: str, duration_us: int, memory_us: int = 0) -> CompiledOperation:
    return CompiledOperation(
        name, f"%{name}", "loop fusion", duration_us * US, memory_ps=memory_us * US
    )


def start(name: str, transfer_us: int, channel: str = "memory") -> CompiledOperation:
    return CompiledOperation(
        name, f"%{name}", "copy-start", transfer_ps=transfer_us * US, channel=channel
    )


def done(name: str, waits_for: str) -> CompiledOperation:
    return CompiledOperation(name, f"%{name}", "copy-done", waits_for=waits_for)


def durations(timeline: Timeline) -> dict[str, int]:
    return {run.operation.name: run.duration_ps for run in timeline.executions}


def test_operations_run_one_after_the_other() -> None:
    timeline = play([work("a", 3), work("b", 4)])
    assert [(run.start_ps, run.duration_ps) for run in timeline.executions] == [
        (0, 3 * US),
        (3 * US, 4 * US),
    ]
    assert timeline.duration_ps == 7 * US


def test_a_transfer_is_hidden_by_work_that_leaves_the_memory_alone() -> None:
    timeline = play([start("s", 5), work("a", 8), done("d", "s")])
    assert durations(timeline)["d"] == SHORT
    (transfer,) = timeline.transfers
    # It begins when its start returns, and the memory is free from then on.
    assert (transfer.start_ps, transfer.duration_ps) == (SHORT, 5 * US)


def test_work_that_uses_the_memory_leaves_the_rest_of_it_to_transfers() -> None:
    # Of 8 us of work, 6 use the memory: 2 us of the transfer are done, 3 remain.
    timeline = play([start("s", 5), work("a", 8, 6), done("d", "s")])
    assert durations(timeline)["d"] == 3 * US
    assert timeline.duration_ps == SHORT + 11 * US


def test_transfers_of_one_channel_queue_and_those_of_others_do_not() -> None:
    timeline = play([start("s", 5), start("t", 5), done("e", "t")])
    # Both take 10 us, of which one start covers 1 ns.
    assert durations(timeline)["e"] == 10 * US - SHORT
    apart = play([start("s", 5), start("t", 5, "host"), done("e", "t")])
    assert durations(apart)["e"] == 5 * US


def test_work_does_not_use_the_links() -> None:
    timeline = play([start("s", 5, "links"), work("a", 8, 8), done("d", "s")])
    assert durations(timeline)["d"] == SHORT


def test_a_loop_encloses_all_runs_of_its_body() -> None:
    loop = CompiledOperation("w", "%w", "while", body=(work("a", 2), work("b", 1)), trips=3)
    timeline = play([work("c", 1), loop, work("d", 1)])
    names = [run.operation.name for run in timeline.executions]
    assert names == ["c", "w", "a", "b", "a", "b", "a", "b", "d"]
    enclosing = timeline.executions[1]
    assert (enclosing.start_ps, enclosing.duration_ps) == (1 * US, 9 * US)
    assert timeline.duration_ps == 11 * US


def test_a_program_ends_with_its_last_transfer() -> None:
    timeline = play([start("s", 5), work("a", 2)])
    assert timeline.duration_ps == SHORT + 5 * US
    assert len(timeline.transfers) == 1


@pytest.mark.parametrize("trips", [1, 4])
def test_a_transfer_may_end_in_the_next_iteration(trips: int) -> None:
    body = (done("d", "s"), work("a", 3), start("s", 2))
    timeline = play([CompiledOperation("w", "%w", "while", body=body, trips=trips)])
    waits = [run.duration_ps for run in timeline.executions if run.operation.name == "d"]
    # The first one has nothing to wait for; after that, nothing hides the 2 us.
    assert waits == [SHORT] + [2 * US] * (trips - 1)
