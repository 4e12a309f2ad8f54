from __future__ import annotations

from tb_perfadvisor.rules.memory.capacity import ReplicatedState
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace

GIB = 1 << 30


def trained(state_gib: int, step_gib: int, *operations: str) -> Trace:
    """Steps that allocate and free memory on top of the state, on a device of 80 GiB."""
    builder = TraceBuilder(rank=0, world_size=8, backend="nccl")
    builder.device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    for number in range(3):
        at = number * 10
        builder.step(number, ms(at), ms(at + 10))
        builder.operator("aten::mm", ms(at), ms(at + 1))
        builder.kernel("sgemm", ms(at), ms(at + 6))
        for index, operation in enumerate(operations or ("all-reduce",)):
            begin = ms(at + 6 + index)
            builder.collective("ncclKernel", begin, begin + ms(1), operation=operation)
        for offset, change in ((1, step_gib), (5, -step_gib)):
            total = state_gib + (step_gib if change > 0 else 0)
            builder.memory(
                ms(at + offset),
                change * GIB,
                allocated_bytes=total * GIB,
                reserved_bytes=78 * GIB,
                device=0,
                address=4096 + number,
            )
    return builder.build()


def test_fires_on_replicas_and_not_on_shards() -> None:
    # 50 GiB on each of 8 ranks are 6.25 GiB when they are sharded.
    checked = check_rule(
        ReplicatedState,
        slow=trained(50, 20),
        fixed=trained(6, 20, "all-gather", "reduce-scatter"),
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "50.0 GiB of the 70.0 GiB in use at the peak (71.4 %) was allocated before the steps, in"
        " full on each of 8 ranks; sharded, it would be 6.25 GiB."
    )


def test_just_below_and_just_above_the_limits() -> None:
    assert find(ReplicatedState, trained(40, 23)) == ()  # 63 of 80 GiB
    assert len(find(ReplicatedState, trained(40, 24)) or ()) == 1  # 64 of 80 GiB
    assert find(ReplicatedState, trained(27, 43)) == ()  # 27 of 70 GiB are 38.6 %
    assert len(find(ReplicatedState, trained(28, 42)) or ()) == 1  # 28 of 70 GiB are 40 %
