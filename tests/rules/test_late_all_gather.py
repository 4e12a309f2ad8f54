from __future__ import annotations

from tb_perfadvisor.rules.communication.overlap import LateAllGather
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import collective, operator
from tb_perfadvisor.trace import Run

# Parameters are gathered (G) when a layer begins; gradients are scattered (Q) at the end.
SLOW = """
    cell 1ms
    step   |............|............|
    main   |o'o'SSSSSSSS|o'o'SSSSSSSS|
    gpu 7  |..KKK..KKK..|..KKK..KKK..|
    gpu 13 |GG...GG...QQ|GG...GG...QQ|
"""
FIXED = """
    cell 1ms
    step   |..........|..........|
    main   |o'o'SSSSSS|o'o'SSSSSS|
    gpu 7  |..KKKKKK..|..KKKKKK..|
    gpu 13 |GGGG....QQ|GGGG....QQ|
"""
LEGEND = {
    "G": collective("ncclDevKernel_AllGather_RING_LL", "all-gather"),
    "o": operator("FSDP::all_gather"),
    "Q": collective("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce-scatter"),
}


def two_ranks(text: str) -> Run:
    return run_of(
        *(draw(text, legend=LEGEND, rank=rank, world_size=2, backend="nccl") for rank in (0, 1))
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        LateAllGather,
        slow=two_ranks(SLOW),
        fixed=two_ranks(FIXED.replace("GGGG....", "GG'GG...")),
        saves="2ms",
    )
    assert "2 all-gathers per step" in checked.findings[0].summary


def test_programs_that_shard_no_parameters_pass() -> None:
    # DTensor gathers activations of tensor-parallel layers, and reduce-scatters them as well.
    legend = {**LEGEND, "o": operator("Redistribute")}
    trace = draw(SLOW, legend=legend, rank=0, world_size=2, backend="nccl")
    assert find(LateAllGather, trace) == ()


def test_xla_programs_that_scatter_gradients_shard_their_parameters() -> None:
    trace = draw(SLOW, legend=LEGEND, framework="jax", rank=0, world_size=2)
    assert find(LateAllGather, trace)
    without = draw(SLOW.replace("Q", "N"), legend=LEGEND, framework="jax", rank=0, world_size=2)
    assert find(LateAllGather, without) == ()
