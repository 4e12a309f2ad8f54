"""What twice the devices cost, worked out by hand."""

from __future__ import annotations

import math

import pytest

from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.ranks.parallel_dimensions import next_doubling
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.testing.symbols import collective, operator
from tb_perfadvisor.trace import Run

GRADIENT = operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXPOSED = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKKK....|KKKKKK....|
    gpu 13 |......NNNN|......NNNN|
"""
LINK = Options(link_bandwidth_bytes_per_s=100e9)


def ranks(*texts: str, group: int = 4, size_bytes: int = 100_000_000) -> Run:
    legend = {
        "N": collective(RING, group_size=group, size_bytes=size_bytes),
        "o": GRADIENT,
    }
    return run_of(
        *(
            draw(text, legend=legend, rank=rank, world_size=len(texts), backend="nccl")
            for rank, text in enumerate(texts)
        )
    )


def test_bytes_and_latency_grow_and_overlap_is_what_is_unknown() -> None:
    found = next_doubling(Signals(ranks(*[EXPOSED] * 4), 0, LINK))
    assert found is not None
    # Of 4 ms, 30 µs are latency. From 4 to 8 ranks, 3/4 of the bytes become 7/8: 7/6 of the rest.
    latency, moving = 30_000, 4_000_000 - 30_000
    # A tree has three levels in place of two, and everything is exposed as it is now.
    least = moving / 6 + latency / 2
    assert found.low_ns == pytest.approx(2 * least, abs=2)
    # A ring has twice the hops. Nobody waits, so waiting does not grow.
    assert found.high_ns == pytest.approx(2 * (moving / 6 + latency), abs=2)
    low, high = found.efficiency(ms(20))
    assert (low, high) == pytest.approx(
        (ms(20) / (ms(20) + found.high_ns), ms(20) / (ms(20) + found.low_ns))
    )
    assert (found.group, found.leaves_node) == (4, False)


def test_waiting_grows_at_worst_with_the_logarithm_of_the_ranks() -> None:
    late = EXPOSED.replace("......NNNN", "........NN").replace("KKKKKK....", "KKKKKKKK..")
    run = ranks(EXPOSED, EXPOSED, EXPOSED, late)
    found = next_doubling(Signals(run, 0, LINK))
    assert found is not None
    # Transfer takes 2 ms, and rank 0 waits 2 ms for rank 3.
    moving = 2_000_000 - 30_000
    waiting = 2_000_000 * (math.log(8) / math.log(4) - 1)
    assert found.high_ns == pytest.approx(2 * (moving / 6 + 30_000 + waiting), abs=4)
    assert found.low_ns == pytest.approx(2 * (moving / 6 + 15_000), abs=4)


def test_hidden_communication_may_stay_hidden() -> None:
    hidden = EXPOSED.replace("......NNNN", ".NNNN.....").replace("KKKKKK....", "KKKKKKKKK.")
    found = next_doubling(Signals(ranks(*[hidden] * 4), 0, LINK))
    assert found is not None
    # 5 of 9 ms of compute are free to hide 0.7 ms more.
    assert (found.low_ns, found.high_ns) == (0, 0)
    assert found.efficiency(ms(20)) == (1.0, 1.0)


def gpus(count: int) -> Signals:
    """Eight H100 of one node all-reduce 1 GB in 5 ms, at 7/4 ÷ 5 ms = 350 of 450 GB/s."""
    drawn = TraceBuilder(rank=0, world_size=count, backend="nccl")
    drawn.device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        at = ms(10 * step)
        drawn.step(step, at, at + ms(10)).kernel("gemm", at, at + ms(5))
        drawn.collective(
            RING,
            at + ms(5),
            at + ms(10),
            group_size=count,
            size_bytes=1_000_000_000,
            description="data_parallel",
        )
    return Signals(run_of(drawn.build()))


def test_the_network_between_nodes_is_a_range() -> None:
    found = next_doubling(gpus(8))
    assert found is not None
    assert found.leaves_node
    # 15/8 of 1 GB at 50 and at 12.5 GB/s: 37.5 and 150 ms in place of 5 ms, minus 5 ms of compute
    # that is free, at most.
    assert found.low_ns == pytest.approx(2 * 32_500_000, rel=0.01)
    assert found.high_ns == pytest.approx(2 * 145_000_000, rel=0.01)
    within = next_doubling(gpus(4))
    assert within is not None
    assert not within.leaves_node
    # 3/4 of the bytes become 7/8.
    assert within.low_ns == pytest.approx(2 * 5_000_000 / 6, rel=0.02)


def test_only_data_parallel_groups_grow() -> None:
    legend = {
        "N": collective(RING, group_size=4, size_bytes=1_000_000),
        "o": operator("_ReduceFromModelParallelRegion"),
    }
    trace = draw(EXPOSED, legend=legend, rank=0, world_size=4, backend="nccl")
    assert next_doubling(Signals(run_of(trace), 0, LINK)) is None


def test_unknown_sizes_tell_nothing() -> None:
    assert next_doubling(Signals(ranks(*[EXPOSED] * 4, size_bytes=-1), 0, LINK)) is None


def test_a_group_of_some_ranks_for_an_unknown_purpose_tells_nothing() -> None:
    def told(world: int) -> bool:
        unknown = {"N": collective(RING, group_size=4, size_bytes=1_000_000)}
        trace = draw(EXPOSED, legend=unknown, rank=0, world_size=world, backend="nccl")
        return next_doubling(Signals(run_of(trace), 0, LINK)) is not None

    assert told(4)  # of all ranks: it grows, whatever it is for
    assert not told(8)
