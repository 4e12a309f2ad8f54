"""What communication costs by parallel dimension, worked out by hand."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.ranks.parallel_dimensions import (
    MAX_UNKNOWN,
    Dimension,
    ParallelDimension,
    ProcessGroup,
    dimension_of_axes,
    parallel_dimensions,
)
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, xla_op
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace

MIB = 1 << 20
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"


def builder(rank: int = 0, world_size: int = 8) -> TraceBuilder:
    return TraceBuilder(rank=rank, world_size=world_size, backend="nccl").step(0, 0, ms(20))


def only(signals: Signals) -> ParallelDimension:
    (found,) = parallel_dimensions(signals)
    return found


def test_each_dimension_has_its_own_time_bytes_and_bandwidth() -> None:
    trace = (
        builder()
        .kernel("gemm", 0, ms(10))
        # 2 of 4 ms run beside the kernel.
        .collective(
            NCCL, ms(8), ms(12), description="mesh_dp", group="1", group_size=4, ranks="[0, 2]",
            size_bytes=64 * MIB,
        )
        .collective(NCCL, ms(13), ms(15), description="mesh_tp", group_size=2, size_bytes=8 * MIB)
        .collective(NCCL, ms(16), ms(18), description="mesh_tp", group_size=2, size_bytes=8 * MIB)
        .build()
    )  # fmt: skip
    tensor, data = parallel_dimensions(Signals(run_of(trace)))
    assert (tensor.dimension, data.dimension) == (Dimension.TENSOR, Dimension.DATA)
    cost = data.cost
    assert (cost.count, cost.time_ns, cost.exposed_ns, cost.hidden_ns) == (1, ms(4), ms(2), ms(2))
    assert cost.bytes_per_step == 64 * MIB
    # 64 MiB in 4 ms are 16.8 GB/s; a ring of 4 sends 2 x 3/4 of them over each link.
    assert cost.algorithm_bytes_per_s == pytest.approx(64 * MIB / 0.004)
    assert cost.bus_bytes_per_s == pytest.approx(1.5 * 64 * MIB / 0.004)
    assert data.groups == (ProcessGroup("1", "mesh_dp", "[0, 2]", 4),)
    assert data.evidence == "in the process group `mesh_dp`"
    assert not data.is_transfer_known
    assert (tensor.cost.count, tensor.cost.exposed_ns, tensor.cost.hidden_ns) == (2, ms(4), 0)
    assert tensor.cost.bytes_per_step == 16 * MIB
    assert tensor.cost.bus_bytes_per_s == pytest.approx(2 * 0.5 * 16 * MIB / 0.004)
    assert data.workers is None


def test_a_group_of_unknown_purpose_stays_unknown_whatever_its_size() -> None:
    trace = (
        builder()
        .collective(NCCL, ms(1), ms(3), group="0", description="default_pg", group_size=8)
        .collective(NCCL, ms(4), ms(9), group="5", description="undefined", group_size=2)
        .build()
    )
    found = parallel_dimensions(Signals(run_of(trace)))
    assert [row.dimension for row in found] == [Dimension.UNKNOWN] * 2
    assert [row.groups[0].name for row in found] == ["5", "0"]
    assert found[0].cost.bytes_per_step is None
    assert found[0].cost.bus_bytes_per_s is None


def test_operations_of_a_dimension_add_up() -> None:
    gather = "ncclDevKernel_AllGather_RING_LL(x)"
    scatter = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)"
    shards = {"description": "mesh_dp_shard", "group_size": 4, "size_bytes": 4 * MIB}
    trace = (
        builder()
        .kernel("gemm", ms(4), ms(16))
        .collective(gather, 0, ms(5), operation="all-gather", **shards)
        .collective(scatter, ms(14), ms(18), operation="reduce-scatter", **shards)
        .build()
    )
    found = only(Signals(run_of(trace)))
    assert found.dimension is Dimension.SHARDED
    parts = {entry.operation: entry.cost for entry in found.operations}
    assert list(parts) == ["all-gather", "reduce-scatter"]
    assert (parts["all-gather"].exposed_ns, parts["all-gather"].hidden_ns) == (ms(4), ms(1))
    assert (parts["reduce-scatter"].exposed_ns, parts["reduce-scatter"].hidden_ns) == (ms(2), ms(2))
    assert found.cost.exposed_ns == ms(6)
    assert found.cost.bytes_per_step == 8 * MIB


def test_stages_of_a_pipeline_by_rank() -> None:
    """Rank 1 waits 6 ms for the first activations; rank 0 sends them within 1 ms."""

    def stage(
        rank: int, kernel: tuple[int, int], message: tuple[int, int], operation: str
    ) -> object:
        return (
            builder(rank, world_size=2)
            .kernel("gemm", ms(kernel[0]), ms(kernel[1]))
            .collective(
                "ncclDevKernel_SendRecv(x)", ms(message[0]), ms(message[1]), operation=operation,
                description="mesh_pp", group_size=2, size_bytes=MIB,
            )
            .build()
        )  # fmt: skip

    traces = [stage(0, (0, 6), (6, 7), "send"), stage(1, (7, 13), (1, 7), "recv")]
    found = only(reference_worker(run_of(*traces)))
    assert found.dimension is Dimension.PIPELINE
    assert found.workers is not None
    assert found.workers.exposed_ns.tolist() == [ms(1), ms(6)]
    assert found.workers.waiting_ns is None  # a send and a receive are two operations


def test_waits_and_bytes_of_expert_parallel_ranks() -> None:
    """Rank 1 has three times the tokens, and arrives 4 ms later."""

    def rank(number: int, start: int, sent: int) -> Trace:
        return (
            builder(number, world_size=2)
            .kernel("gemm", 0, ms(start))
            .collective(
                "ncclDevKernel_SendRecv(x)", ms(start), ms(10), operation="all-to-all",
                description="mesh_ep", group_size=2, size_bytes=3 * MIB, sent_bytes=sent,
            )
            .build()
        )  # fmt: skip

    found = only(reference_worker(run_of(rank(0, 4, MIB), rank(1, 8, 3 * MIB))))
    assert found.dimension is Dimension.EXPERT
    assert found.is_transfer_known
    assert found.workers is not None
    assert found.workers.exposed_ns.tolist() == [ms(6), ms(2)]
    assert found.workers.waiting_ns is not None
    assert found.workers.waiting_ns.tolist() == [ms(4), 0]
    assert found.workers.sent_bytes is not None
    assert found.workers.sent_bytes.tolist() == [MIB, 3 * MIB]


def all_reduce(axes: str) -> Symbol:
    text = (
        "%all-reduce.1 = f32[1024,1024]{1,0:T(8,128)} all-reduce(f32[1024,1024]{1,0:T(8,128)} %p)"
    )
    symbol = xla_op("all-reduce.1", text, kind=EventKind.COLLECTIVE, category="all-reduce")
    return Symbol(
        symbol.kind,
        symbol.name,
        hlo=symbol.hlo,
        collective={
            "operation": "all-reduce", "size_bytes": 4 * MIB, "group_size": 4, "description": axes,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "dimension"), [("model", Dimension.TENSOR), ("axis_0", Dimension.UNKNOWN)]
)
def test_axes_of_a_mesh_name_the_dimension_of_xla_programs(axes: str, dimension: Dimension) -> None:
    text = """
        cell 1ms
        step   |..........|..........|
        main   |o.........|o.........|
        tpu 0  |XXXXAAA...|XXXXAAA...|
    """
    found = only(Signals(run_of(draw(text, framework="jax", legend={"A": all_reduce(axes)}))))
    assert found.dimension is dimension
    assert found.groups[0].description == axes
    assert (found.cost.count, found.cost.exposed_ns) == (2, ms(6))


@pytest.mark.parametrize(
    ("names", "dimension"),
    [
        ("data", Dimension.DATA),
        ("data,fsdp", Dimension.DATA),
        ("fsdp,fsdp_transpose", Dimension.SHARDED),
        ("Model", Dimension.TENSOR),
        ("stage", Dimension.PIPELINE),
        ("data,model", Dimension.UNKNOWN),
        ("x", Dimension.UNKNOWN),
    ],
)
def test_axes_that_disagree_are_unknown(names: str, dimension: Dimension) -> None:
    assert dimension_of_axes(names) is dimension


def test_without_collectives_there_are_no_dimensions() -> None:
    assert parallel_dimensions(Signals(run_of(builder().kernel("gemm", 0, ms(5)).build()))) == ()


def test_least_busy_groups_of_unknown_purpose_share_a_row() -> None:
    trace = builder()
    count, us = MAX_UNKNOWN + 10, 1_000
    for number in range(count):
        # Group 0 takes 1 us, group 1 takes 2 us, and so on.
        start_ns = 200 * us * number
        trace.collective(NCCL, start_ns, start_ns + us * (number + 1), group=str(number))
    found = parallel_dimensions(Signals(run_of(trace.build())))
    assert len(found) == MAX_UNKNOWN
    alone = {row.groups[0].name for row in found if row.cost.count == 1}
    assert alone == {str(number) for number in range(11, count)}
    (rest,) = [row for row in found if row.cost.count > 1]
    # Groups 0 to 10: 1 + 2 + ... + 11 us. Eight of the eleven are named.
    assert (rest.cost.count, rest.cost.time_ns, rest.groups_left_out) == (11, 66 * us, 3)
