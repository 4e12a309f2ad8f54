from __future__ import annotations

from tb_perfadvisor.rules.communication.transfers import FullPrecisionGradients
from tb_perfadvisor.testing import check_rule, draw, find, kernel, run_of
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import KernelFamily, Precision, Run

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |HHHHHH....|HHHHHH....|
    gpu 13 |......NNNN|......NNNN|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |o'SSSSSS|o'SSSSSS|
    gpu 7  |HHHHHH..|HHHHHH..|
    gpu 13 |......NN|......NN|
"""


def two_ranks(text: str, dtype: str = "Float", precision: Precision = Precision.BITS_16) -> Run:
    legend = {
        "N": collective("ncclKernel_AllReduce", size_bytes=10**8, dtype=dtype, group_size=2),
        "H": kernel(
            "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
            family=KernelFamily.MATMUL,
            precision=precision,
        ),
    }
    return run_of(
        *(draw(text, legend=legend, rank=rank, world_size=2, backend="nccl") for rank in (0, 1))
    )


def test_saves_what_the_fix_saves() -> None:
    check_rule(
        FullPrecisionGradients, slow=two_ranks(SLOW), fixed=two_ranks(FIXED, "Half"), saves="2ms"
    )


def test_32_bit_programs_are_not_reported() -> None:
    assert find(FullPrecisionGradients, two_ranks(SLOW, precision=Precision.BITS_32)) == ()


def test_16_bit_gradients_pass() -> None:
    assert find(FullPrecisionGradients, two_ranks(SLOW, "BFloat16")) == ()


def test_reductions_of_tensor_parallel_layers_are_no_gradients() -> None:
    name, size = "ncclKernel_AllReduce", {"size_bytes": 10**8, "dtype": "Float", "group_size": 2}
    for description, is_found in (("mesh_dp", True), ("mesh_tp", False)):
        legend = {"N": collective(name, description=description, **size)}
        trace = draw(SLOW, legend=legend, rank=0, world_size=2, backend="nccl")
        assert bool(find(FullPrecisionGradients, trace)) is is_found
