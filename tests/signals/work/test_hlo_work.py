from __future__ import annotations

import pytest

from tb_perfadvisor.signals.work.matrix_work import work_of_hlo
from tb_perfadvisor.signals.work.operator_inputs import Matmul
from tb_perfadvisor.trace import KernelFamily

# HLO text from GPU profiles.
GEMM = (
    "%custom-call.1 = (bf16[8192,4096]{1,0}, s8[25165824]{0}) custom-call("
    "bf16[8192,1024]{1,0} %bitcast.4.0, bf16[1024,4096]{1,0} %b.1), "
    'custom_call_target="__cublas$gemm"'
)
CONVERT = (
    "%loop_convert_fusion = bf16[4,2048,4096]{2,1,0} fusion("
    "f32[] %x.1, bf16[4,2048,4096]{2,1,0} %y.1), kind=kLoop"
)


def test_a_library_call_is_a_matrix_product() -> None:
    work = work_of_hlo(GEMM, KernelFamily.MATMUL)
    assert work is not None
    assert work.matmul == Matmul(1, 8192, 4096, 1024)
    assert work.flop == 2 * 8192 * 4096 * 1024
    # The second result is a workspace.
    assert work.traffic_bytes == 2 * (8192 * 4096 + 8192 * 1024 + 1024 * 4096)
    assert work.number_format == "bf16"


def test_an_operand_may_be_transposed() -> None:
    text = GEMM.replace("bf16[1024,4096]{1,0} %b.1", "bf16[4096,1024]{1,0} %b.1")
    work = work_of_hlo(text, KernelFamily.MATMUL)
    assert work is not None
    assert work.matmul == Matmul(1, 8192, 4096, 1024)


def test_products_may_be_batched() -> None:
    text = (
        "%custom-call.1 = (bf16[4,2048,2048]{2,1,0}, s8[33554432]{0}) custom-call("
        "bf16[4,2048,1024]{2,1,0} %a.1, bf16[4,1024,2048]{2,1,0} %b.1), "
        'custom_call_target="__cublas$gemm"'
    )
    work = work_of_hlo(text, KernelFamily.MATMUL)
    assert work is not None
    assert work.flop == 2 * 4 * 2048 * 2048 * 1024


def test_a_fusion_moves_operands_and_results() -> None:
    work = work_of_hlo(CONVERT, KernelFamily.ELEMENTWISE)
    assert work is not None
    assert work.family is KernelFamily.ELEMENTWISE
    assert work.traffic_bytes == 2 * 2 * (4 * 2048 * 4096) + 4
    assert work.number_format == "bf16"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fusion.1",
        GEMM.replace("__cublas$gemm", "te_fused_attn_forward_ffi"),
        GEMM.replace("[1024,4096]{1,0} %b.1", "[1000,4096]{1,0} %b.1"),  # k differs
        GEMM.replace(", bf16[1024,4096]{1,0} %b.1", ""),
        CONVERT.replace("kind=kLoop", "kind=kCustom"),  # it may contain a product, or anything else
        "%g = bf16[4096,6144]{1,0} fusion(bf16[4096,2,1024]{2,1,0} %b), kind=kCustom",
    ],
)
def test_work_of_other_texts_is_unknown(text: str) -> None:
    assert work_of_hlo(text, KernelFamily.MATMUL) is None
