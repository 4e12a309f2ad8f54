from __future__ import annotations

import pytest

from tb_perfadvisor.rules.precision.matrix_products import TensorCoresIdle
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import KernelFamily, Precision

H100 = "NVIDIA H100 80GB HBM3"
# segment-anything-fast's asdf_True (A100): a product without tensor cores, and one with them.
SCALAR = (
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched"
    "<__nv_bfloat16 const>, cublasGemvTensorStridedBatched<__nv_bfloat16> >"
)
TENSOR = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_relu_f2f_stages_64x3_tn"
BF16 = "c10::BFloat16"


def legend(
    shapes: str = "[[4096,4096],[4096,4096]]", tensor_cores: int = 0, dtype: str = BF16
) -> dict[str, Symbol]:
    def product(name: str, used: int) -> Symbol:
        return kernel(
            name, family=KernelFamily.MATMUL, precision=Precision.BITS_16, tensor_cores=used
        )

    return {
        "v": operator("aten::mm", shapes=shapes, dtypes=f"{dtype};{dtype}"),
        "s": product(SCALAR, tensor_cores),
        "T": product(TENSOR, 1),
    }


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |sssskkkkkk|sssskkkkkk|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |vSSSSSSS|vSSSSSSS|
    gpu 7  |TTkkkkkk|TTkkkkkk|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        TensorCoresIdle, slow=SLOW, fixed=FIXED, saves="2ms", legend=legend(), device=H100,
        scales=False,
    )  # fmt: skip
    (finding,) = checked.findings
    assert finding.saving is not None
    best_ns = 2 * 4096**3 / (989.4e12 * 0.80) * 1e9
    assert finding.saving.high_ns == pytest.approx(2 * (4e6 - best_ns), rel=1e-3)


@pytest.mark.parametrize(
    "other",
    [
        legend(tensor_cores=1),
        legend(tensor_cores=-1),  # unknown is not idle
        legend(dtype="float"),  # not a 16-bit type
        legend("[[4096,4096],[4096,4]]"),  # four columns: memory bound
    ],
)
def test_other_kernels_pass(other: dict[str, Symbol]) -> None:
    assert find(TensorCoresIdle, SLOW, legend=other, device=H100) == ()


def test_kernels_with_too_few_blocks_do_not_count() -> None:
    few = legend()
    few["s"] = kernel(
        SCALAR, family=KernelFamily.MATMUL, precision=Precision.BITS_16, tensor_cores=0,
        grid_blocks=131,
    )  # fmt: skip
    assert find(TensorCoresIdle, SLOW, legend=few, device=H100) == ()


def test_a_product_that_runs_as_fast_as_its_shape_allows_passes() -> None:
    # Writing 4096 x 32768 numbers at 0.85 of 3.352 TB/s takes 94 of 200 us.
    text = SLOW.replace("cell 1ms", "cell 50us")
    bound = legend("[[4096,32],[32,32768]]")
    assert find(TensorCoresIdle, text, legend=bound, device=H100) == ()


def test_kernels_that_assist_tensor_core_kernels_pass() -> None:
    text = SLOW.replace("sssskkkkkk", "ssssTTkkkk")
    assert find(TensorCoresIdle, text, legend=legend(), device=H100) == ()


def test_needs_matrix_units_and_shapes() -> None:
    # Pascal has no tensor cores.
    assert find(TensorCoresIdle, SLOW, legend=legend(), device="Tesla P100-SXM2-16GB") == ()
    bare = legend() | {"v": operator("aten::mm")}
    assert find(TensorCoresIdle, SLOW, legend=bare, device=H100) is None


def test_fires_only_beyond_the_limits() -> None:
    for name, fires_at, passes_at in (
        ("minimum_share", 0.39, 0.41),
        ("minimum_size", 4096, 4097),
        ("maximum_achieved_share", 0.05, 0.04),  # 174 µs of 4 ms
    ):
        assert find(TensorCoresIdle, SLOW, legend=legend(), device=H100, settings={name: fires_at})
        assert (
            find(TensorCoresIdle, SLOW, legend=legend(), device=H100, settings={name: passes_at})
            == ()
        )
