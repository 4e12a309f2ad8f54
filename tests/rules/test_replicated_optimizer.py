from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.rules.communication.redundancy import ReplicatedOptimizer
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import collective, host, kernel, operator
from tb_perfadvisor.trace import Run

# Each of two ranks updates all parameters (u) for 8 ms; or its half, and gathers the rest (G).
SLOW = """
    cell 1ms
    step   |................|................|................|
    main   |BoSSzzSSSSSSSSSS|BoSSzzSSSSSSSSSS|BoSSzzSSSSSSSSSS|
    main   |....o...........|....o...........|....o...........|
    gpu 7  |KKKK..kkkkkkkk..|KKKK..kkkkkkkk..|KKKK..kkkkkkkk..|
    gpu 13 |....NN..........|....NN..........|....NN..........|
"""
FIXED = """
    cell 1ms
    step   |.............|.............|.............|
    main   |BoSSzzSSSSSSS|BoSSzzSSSSSSS|BoSSzzSSSSSSS|
    main   |....oo.......|....oo.......|....oo.......|
    gpu 7  |KKKK.kkkk....|KKKK.kkkk....|KKKK.kkkk....|
    gpu 13 |....Q....G...|....Q....G...|....Q....G...|
"""
LEGEND = {
    "B": operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
    "o": operator("torch::autograd::AccumulateGrad"),
    "z": host("Optimizer.step#AdamW.step"),
    "N": collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", group_size=2),
    "G": collective("ncclDevKernel_AllGather_RING_LL", "all-gather", group_size=2),
    "Q": collective("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce-scatter", group_size=2),
}


def ranks(text: str, **others: Any) -> Run:
    legend = {**LEGEND, **others}
    return run_of(
        *(draw(text, legend=legend, rank=rank, world_size=2, backend="nccl") for rank in (0, 1))
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(ReplicatedOptimizer, slow=ranks(SLOW), fixed=ranks(FIXED), saves="3ms")
    (finding,) = checked.findings
    # Half of 8 ms, less half of the all-reduce's 2 ms for gathering: in each step.
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns) == (
        3 * 2_000_000,
        3 * 3_000_000,
        3 * 4_000_000,
    )
    assert finding.summary.startswith("8.00 ms of each step (50.0 %) is the optimizer's compute")


def test_updates_that_are_sharded_already_pass() -> None:
    # ZeroRedundancyOptimizer broadcasts what each rank updated.
    gathered = SLOW.replace("....NN..........", "....NN........GG")
    broadcast = collective("ncclDevKernel_Broadcast_RING_LL", "broadcast", group_size=2)
    assert find(ReplicatedOptimizer, ranks(gathered, G=broadcast)) == ()


def test_gathering_may_cost_more_than_it_gains() -> None:
    slow = SLOW.replace("kkkkkkkk..", "kk........").replace("....NN...", "....NNNN.")
    assert find(ReplicatedOptimizer, ranks(slow)) == ()


@pytest.mark.parametrize("launcher", ["_ReduceFromModelParallelRegion", "aten::mm"])
def test_only_sums_of_gradients_show_replicas(launcher: str) -> None:
    other = operator(launcher)
    assert find(ReplicatedOptimizer, ranks(SLOW, B=other, o=other)) == ()


def test_a_loop_over_parameters_is_fused_first() -> None:
    """Twelve launches for each parameter: the fused form leaves little to shard."""
    loop = """
        cell 1ms
        step   |........................|........................|
        main   |B'SSzzzzzzzzzzzzzzzzzzzz|B'SSzzzzzzzzzzzzzzzzzzzz|
        main   |....o'o'o'o'o'o'o'o'o'o'|....o'o'o'o'o'o'o'o'o'o'|
        gpu 7  |KKKKk'k'k'k'k'k'k'k'k'k'|KKKKk'k'k'k'k'k'k'k'k'k'|
        gpu 13 |..NN....................|..NN....................|
    """
    alone = kernel("at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>")
    assert find(ReplicatedOptimizer, ranks(loop, k=alone, o=operator("aten::add_"))) == ()
    assert find(ReplicatedOptimizer, ranks(loop, o=operator("aten::_fused_adamw_")))
