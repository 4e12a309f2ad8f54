from __future__ import annotations

from tb_perfadvisor.signals import Signals, collectives_of, ranks_of, reference_worker
from tb_perfadvisor.signals.recording.availability import shows_communication
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Run, Trace


def rank(
    number: int,
    *durations_ms: int,
    sequences: tuple[int, ...] | None = None,
    world_size: int = 2,
    group: str = "0",
) -> Trace:
    """All-reduces that end at multiples of 10 ms."""
    builder = TraceBuilder(rank=number, world_size=world_size)
    builder.step(0, 0, ms(10 * len(durations_ms)))
    for index, duration in enumerate(durations_ms):
        end = ms(10 * (index + 1))
        sequence = sequences[index] if sequences else -1
        builder.collective("ncclKernel", end - ms(duration), end, sequence=sequence, group=group)
    return builder.build()


def waits_ms(*traces: Trace) -> list[float | None]:
    run = run_of(*traces)
    waits = ranks_of(Signals(run)).waiting_ns.tolist()
    return [None if wait < 0 else wait / 1e6 for wait in waits]


def test_the_transfer_is_the_shortest_duration_over_the_ranks() -> None:
    # (5, 4) and (2, 4): transfers of 2 and 4; rank 0 arrived early once and waited for 3.
    first, second = rank(0, 5, 4), rank(1, 2, 4)
    ranks = ranks_of(Signals(run_of(first, second)))
    assert [sorted(ranks.transfers_of(worker).values()) for worker in (0, 1)] == [
        [ms(2), ms(4)]
    ] * 2
    assert ranks.waiting_ns.tolist() == [ms(3), 0]


def test_the_critical_worker_waits_least() -> None:
    assert reference_worker(run_of(rank(0, 5, 4), rank(1, 2, 4))).worker == 1
    # Ties go to the lowest rank.
    assert reference_worker(run_of(rank(1, 4), rank(0, 4))).worker == 0


def test_slowest_worker_is_critical_without_collectives() -> None:
    def alone(number: int, length_ms: int) -> Trace:
        return TraceBuilder(rank=number).step(0, 0, ms(length_ms)).build()

    assert reference_worker(run_of(alone(0, 5), alone(1, 9), alone(2, 7))).worker == 1


def test_sequence_numbers_match_before_positions() -> None:
    # Rank 1 recorded one more at the beginning: both have only numbers 1 and 2.
    # 1: 5 against 3, 2: 4 against 6; so both waited for 2.
    assert waits_ms(rank(0, 5, 4, sequences=(1, 2)), rank(1, 9, 3, 6, sequences=(0, 1, 2))) == [
        2,
        2,
    ]


def test_positions_match_only_where_the_ends_do() -> None:
    assert waits_ms(rank(0, 5, 4), rank(1, 9, 3, 6)) == [None, None]
    # Repeated numbers are ignored: by position, 5 against 3 and 4 against 6.
    assert waits_ms(rank(0, 5, 4, sequences=(7, 7)), rank(1, 3, 6, sequences=(7, 7))) == [2, 2]


def test_groups_are_matched_separately() -> None:
    assert waits_ms(rank(0, 5, group="tensor"), rank(1, 3, group="data")) == [None, None]


def test_waiting_is_unknown_if_ranks_are_missing() -> None:
    few = rank(0, 5, world_size=4), rank(1, 3, world_size=4)
    assert collectives_of(Signals(run_of(*few))).transfer_ns.tolist() == [-1]
    # But the other recorded rank arrived 2 ms later, whenever the missing ones did.
    assert waits_ms(*few) == [2, 0]
    assert waits_ms(rank(0, 5)) == [None]
    collectives = collectives_of(Signals(run_of(rank(0, 5))))
    assert collectives.transfer_ns.tolist() == [-1]


def test_communication_without_compute_is_exposed() -> None:
    trace = draw(
        """
        cell 1ms
        step   |......|
        gpu 7  |KK...K|
        gpu 20 |.NNN..|
        """,
        world_size=8,
    )
    collectives = collectives_of(Signals(run_of(trace)))
    assert collectives.operation == ("all-reduce",)
    assert collectives.duration_ns.tolist() == [ms(3)]
    assert collectives.exposed_ns.tolist() == [ms(2)]
    # No size was recorded, so the only group counts as all ranks.
    assert collectives.group_size.tolist() == [8]
    assert not collectives.sizes_known


def test_no_group_is_assumed_to_span_all_ranks() -> None:
    builder = TraceBuilder(world_size=8).step(0, 0, ms(4))
    builder.collective("a", ms(0), ms(1), group="tensor", size_bytes=4, group_size=4)
    builder.collective("b", ms(2), ms(3), group="data", size_bytes=4)
    collectives = collectives_of(Signals(Run("id", "run", "", (builder.build(),))))
    assert collectives.group_size.tolist() == [4, -1]
    assert not collectives.sizes_known


def test_communication_is_unknown_for_several_workers() -> None:
    # Hosts of an XSpace session have no ranks and no world size.
    first, second = (
        draw("cell 1ms\ngpu 7 |KK|", device="a", host=f"host-{number}") for number in (0, 1)
    )
    assert shows_communication(Signals(run_of(first)))
    assert not shows_communication(Signals(run_of(first, second)))


def devices(*durations_ms: tuple[int, ...], host: bool = False, **source: object) -> Trace:
    """All-reduces of the devices of one process that end at multiples of 10 ms.

    The first device computes as well, so that it is the busiest.
    """
    builder = TraceBuilder("jax", **source).step(0, 0, ms(10 * len(durations_ms[0])))
    for index, device_durations_ms in enumerate(durations_ms):
        for number, duration in enumerate(device_durations_ms):
            end = ms(10 * (number + 1))
            thread = f"pool {index}" if host else ""
            start = end - ms(duration)
            builder.collective("ncclKernel", start, end, device=index, thread=thread, size_bytes=8)
            if index == 0 and not host:
                builder.kernel("gemm", start - ms(1), start)
    return builder.build()


def test_busiest_device_of_a_process_is_used() -> None:
    collectives = collectives_of(Signals(run_of(devices((5, 4), (2, 6)))))
    assert collectives.duration_ns.tolist() == [ms(5), ms(4)]
    # The other device arrived last at the first all-reduce, and this one at the second.
    assert collectives.transfer_ns.tolist() == [ms(2), ms(4)]
    (stream,) = ranks_of(Signals(run_of(devices((5, 4), (2, 6))))).summaries[0].collectives.streams
    assert stream == ("", "all-reduce", False)


def test_devices_without_matching_collectives_give_no_result() -> None:
    for trace in (devices((5, 4), (2,)), devices((5, 4)), devices((5, 4), (2, 6), world_size=4)):
        assert collectives_of(Signals(run_of(trace))).transfer_ns.tolist() == [-1, -1]


def test_device_threads_enter_a_collective_together() -> None:
    trace = devices((5, 4), (2, 6), host=True)
    collectives = collectives_of(Signals(run_of(trace)))
    assert sorted(collectives.duration_ns.tolist()) == [ms(2), ms(4), ms(5), ms(6)]
    # 5 and 2 end together, and 6 and 4.
    assert collectives.transfer_ns.tolist() == [ms(2), ms(2), ms(4), ms(4)]


def test_start_and_done_of_a_collective_count_once() -> None:
    builder = TraceBuilder("jax").step(0, 0, ms(10))
    builder.collective("all-gather-start.1", ms(0), ms(3), operation="all-gather")
    builder.collective("all-gather-done.1", ms(6), ms(7), operation="all-gather")
    builder.collective("all-reduce.1", ms(8), ms(9))
    collectives = collectives_of(Signals(run_of(builder.build())))
    assert (len(collectives), collectives.count) == (3, 2)
    assert collectives.is_start.tolist() == [True, False, False]


def test_a_group_larger_than_the_process_leaves_the_transfer_unknown() -> None:
    # Both devices leave together, but may wait for the other two of the group.
    builder = TraceBuilder("jax").step(0, 0, ms(10))
    for device, duration in enumerate((5, 2)):
        builder.collective(
            "ncclKernel", ms(8 - duration), ms(8), device=device, size_bytes=8, group_size=4
        )
    collectives = collectives_of(Signals(run_of(builder.build())))
    assert set(collectives.transfer_ns.tolist()) == {-1}
