"""What exposed communication goes into."""

from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import (
    dominant_collective,
    exposed_by_role,
    gradient_messages,
)
from tb_perfadvisor.testing import TraceBuilder, ms, run_of

MB = 1_000_000


def tensor_parallel(*durations_ms: int, steps: int = 1, last: str = "OutputProjection") -> Signals:
    """All-gathers of DTensor, the last one of each step inside an annotation of the program."""
    builder = TraceBuilder(rank=0, world_size=2, backend="nccl")
    length = sum(durations_ms) + 2 * len(durations_ms)
    for step in range(steps):
        at = ms(length * step)
        builder.step(step, at, at + ms(length))
        for index, duration in enumerate(durations_ms):
            key = f"{step}.{index}"
            name = last if index == len(durations_ms) - 1 else "Attention"
            builder.annotation(name, at, at + ms(1))
            builder.operator("Redistribute", at + 1, at + ms(1) - 1)
            builder.annotation("nccl:all_gather", at + 2, at + ms(1) - 2)
            builder.launch(at + 10, at + 20, key=key)
            start = at + ms(1)
            builder.collective(
                "ncclDevKernel_AllGather_RING_LL",
                start,
                start + ms(duration),
                operation="all-gather",
                launched_by=key,
            )
            at = start + ms(duration) + ms(1)
    return Signals(run_of(builder.build()))


def test_one_of_many_collectives_dominates() -> None:
    # 44 of 44 + 4 x 3 ms.
    found = dominant_collective(tensor_parallel(3, 3, 3, 3, 44))
    assert found is not None
    assert (found.operation, found.annotation) == ("all-gather", "OutputProjection")
    assert found.exposed_ns == ms(44)


def test_it_is_the_same_one_in_each_step() -> None:
    found = dominant_collective(tensor_parallel(3, 3, 3, 3, 44, steps=3))
    assert found is not None
    assert found.exposed_ns == 3 * ms(44)


def test_none_of_equal_ones_dominates() -> None:
    assert dominant_collective(tensor_parallel(9, 9, 9, 9, 10)) is None


def test_one_of_few_is_no_surprise() -> None:
    assert dominant_collective(tensor_parallel(3, 44)) is None


def test_uses_come_in_order_of_their_exposed_time() -> None:
    builder = TraceBuilder(rank=0, world_size=2, backend="nccl").step(0, 0, ms(30))
    for at, length, name in (
        (0, 2, "DistributedDataParallel.forward"),
        (5, 4, "torch::autograd::AccumulateGrad"),
        (10, 3, "torch::autograd::AccumulateGrad"),
    ):
        builder.annotation(name, ms(at), ms(at + 1)).launch(ms(at), ms(at) + 9, key=f"{at}")
        operation = "broadcast" if at == 0 else "all-reduce"
        builder.collective(
            "nccl",
            ms(at + 1),
            ms(at + 1 + length),
            operation=operation,
            launched_by=f"{at}",
            size_bytes=length * MB,
            group_size=2,
        )
    signals = Signals(run_of(builder.build()))
    assert [(use.role, use.count, use.exposed_ns) for use in exposed_by_role(signals)] == [
        (Role.GRADIENTS, 2, ms(7)),
        (Role.BUFFERS, 1, ms(2)),
    ]
    sent = gradient_messages(signals)
    assert sent is not None
    assert (sent.count, sent.size_bytes) == (2, 7 * MB)
