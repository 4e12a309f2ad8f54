"""What collectives are for. Names come from the sources that the signal names."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import Trace


def launched_in(*enclosing: str, operation: str = "all-reduce", **columns: str) -> TraceBuilder:
    """A collective whose launch is inside these host events, the outermost first."""
    builder = TraceBuilder(rank=0, world_size=8, backend="nccl").step(0, 0, ms(20))
    for depth, name in enumerate(enclosing):
        builder.annotation(name, ms(1) + depth, ms(7) - depth)
    builder.launch(ms(5), ms(6), key="launch")
    return builder.collective(
        "ncclDevKernel", ms(6), ms(9), operation=operation, launched_by="launch", **columns
    )


def role_of(trace: Trace) -> tuple[Role, str]:
    (use,) = collective_roles(Signals(run_of(trace))).uses()
    return use.role, use.evidence


@pytest.mark.parametrize(
    ("role", "operation", "enclosing"),
    [
        (
            Role.GRADIENTS,
            "all-reduce",
            (
                "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
                "c10d::allreduce_",
                "nccl:all_reduce",
            ),
        ),
        (
            Role.BUFFERS,
            "broadcast",
            ("DistributedDataParallel.forward", "c10d::broadcast_", "nccl:broadcast"),
        ),
        (
            Role.TENSOR,
            "all-reduce",
            ("DistributedDataParallel.forward", "_ReduceFromModelParallelRegion"),
        ),
        (Role.TENSOR, "all-gather", ("Redistribute", "_c10d_functional::all_gather_into_tensor")),
        (Role.SHARDS, "all-gather", ("FSDP::pre_forward (layers.0)", "FSDP::all_gather")),
        (
            Role.SHARDS,
            "reduce-scatter",
            (
                "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
                "FullyShardedDataParallel._post_backward_hook",
            ),
        ),
        (Role.EMBEDDINGS, "all-to-all", ("DistributedDataParallel.forward", "All2All_Pooled_Req")),
        (
            Role.PIPELINE,
            "send",
            ("megatron/core/pipeline_parallel/p2p_communication.py(120): _communicate",),
        ),
        (Role.EXPERTS, "all-to-all", ("megatron/core/transformer/moe/moe_layer.py(89): forward",)),
        (Role.CONTEXT, "all-to-all", ("FSDP::pre_forward", "AllToAll4D", "c10d::alltoall_base_")),
        (Role.STATISTICS, "all-gather", ("SyncBatchNorm",)),
        # Nothing but the backward pass is known, as with compiled autograd.
        (
            Role.GRADIENTS,
            "all-reduce",
            ("autograd::engine::evaluate_function: CompiledFunctionBackward", "c10d::allreduce_"),
        ),
        (Role.UNKNOWN, "all-reduce", ("forward", "c10d::allreduce_", "nccl:all_reduce")),
        # A model's own all-gather is no buffer of DDP.
        (Role.UNKNOWN, "all-gather", ("DistributedDataParallel.forward",)),
    ],
)
def test_what_encloses_the_launch(role: Role, operation: str, enclosing: tuple[str, ...]) -> None:
    assert role_of(launched_in(*enclosing, operation=operation).build())[0] is role


@pytest.mark.parametrize(
    ("role", "description"),
    [
        (Role.TENSOR, "mesh_tp"),
        (Role.TENSOR, "TENSOR_MODEL_PARALLEL_GROUP"),
        (Role.TENSOR, "EXPERT_TENSOR_PARALLEL_GROUP"),
        (Role.SHARDS, "mesh_dp_shard_cp"),
        (Role.GRADIENTS, "mesh_dp_replicate"),
        (Role.GRADIENTS, "DATA_PARALLEL_GROUP_WITH_CP"),
        (Role.GRADIENTS, "EXPERT_DATA_PARALLEL_GROUP"),
        (Role.PIPELINE, "PIPELINE_MODEL_PARALLEL_GROUP"),
        (Role.PIPELINE, "mesh_pp"),
        (Role.EXPERTS, "EXPERT_MODEL_PARALLEL_GROUP"),
        (Role.EXPERTS, "mesh_ep"),
        (Role.CONTEXT, "mesh_cp"),
        (Role.UNKNOWN, "default_pg"),
        (Role.UNKNOWN, "undefined"),
    ],
)
def test_what_the_process_group_is_called(role: Role, description: str) -> None:
    assert role_of(launched_in("forward", description=description).build())[0] is role


def test_what_encloses_the_launch_says_more_than_the_group() -> None:
    # A mesh that a program shares between FSDP and tensor parallelism.
    trace = launched_in("FSDP::all_gather", operation="all-gather", description="mesh_tp").build()
    assert role_of(trace) == (Role.SHARDS, "in `FSDP::all_gather`")


def test_the_group_says_more_than_dtensor() -> None:
    trace = launched_in("Redistribute", operation="all-gather", description="mesh_cp").build()
    assert role_of(trace) == (Role.CONTEXT, "in the process group `mesh_cp`")


def test_the_backward_pass_of_tensor_parallel_layers_reduces_no_gradients() -> None:
    builder = launched_in("_ReduceFromModelParallelRegion")
    builder.annotation("autograd::engine::evaluate_function: MmBackward0", ms(11), ms(14))
    builder.launch(ms(12), ms(13), key="backward")
    builder.collective("ncclDevKernel", ms(15), ms(16), launched_by="backward")
    uses = collective_roles(Signals(run_of(builder.build()))).uses()
    assert [(use.role, use.count) for use in uses] == [(Role.UNKNOWN, 1), (Role.TENSOR, 1)]


def test_collectives_without_a_launch_are_like_the_others() -> None:
    # The recording began after the second one was launched.
    builder = launched_in("torch::autograd::AccumulateGrad")
    builder.collective("ncclDevKernel", ms(10), ms(11), launched_by="")
    builder.collective("ncclDevKernel", ms(12), ms(13), launched_by="", operation="all-gather")
    roles = collective_roles(Signals(run_of(builder.build())))
    assert [(use.role, use.count) for use in roles.uses()] == [
        (Role.GRADIENTS, 2),
        (Role.UNKNOWN, 1),
    ]


def test_gloo_reduces_the_gradients_of_ddp_on_its_own_thread() -> None:
    builder = TraceBuilder(rank=0, world_size=2, backend="gloo").step(0, 0, ms(20))
    builder.annotation("DistributedDataParallel.forward", ms(1), ms(4))
    builder.collective("gloo:all_reduce", ms(6), ms(9), thread="pool")
    role, evidence = role_of(builder.build())
    assert role is Role.GRADIENTS
    assert evidence == "the program calls `DistributedDataParallel.forward`"


def test_custom_all_reduces_are_of_tensor_parallel_inference() -> None:
    # vLLM, csrc/custom_all_reduce.cuh.
    builder = TraceBuilder(rank=0, world_size=2).step(0, 0, ms(20))
    builder.launch(ms(1), ms(2), name="cudaGraphLaunch", key="graph")
    builder.collective("cross_device_reduce_1stage<__half, 2>", ms(3), ms(4), launched_by="graph")
    assert role_of(builder.build())[0] is Role.TENSOR


def test_only_collectives_of_the_used_window_are_asked_for() -> None:
    builder = launched_in("torch::autograd::AccumulateGrad")
    builder.collective("late", ms(30), ms(31), launched_by="")
    signals = Signals(run_of(builder.build()))
    assert has_role(signals, Role.GRADIENTS).tolist() == [True]


def test_a_trace_without_collectives_has_no_roles() -> None:
    trace = TraceBuilder().step(0, 0, ms(2)).kernel("gemm", 0, ms(1)).build()
    assert collective_roles(Signals(run_of(trace))).uses() == ()
