"""The width of stored weights in names of kernels. `kernel_names.tsv` has their sources."""

from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.kernels.kernel_names import stored_bits

MARLIN = "void marlin_moe_wna16::Marlin<__nv_bfloat16, {}l, 1125899906909960l, 256, 1, 8, 8>(int4*)"


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", 4),
        ("_matmul_ogs_NNT_bf16xbf16xfp8e4nv_128x256x128x1", 8),
        ("_p_matmul_ogs_NNN_fp8e5xfp8e5xfp8e5_16x256x128x1", None),
        ("bmm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x256_s5_et128x8_m128x8x16_TN_sm100f", 4),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_Ab32_Bb32_t128x128x128_s7_et128x64", 4),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s6_et64x8_m64x8x32", None),
        ("gemm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s9_et64x8_m64x8x32", None),
        # vLLM's `ScalarType`: 4 bits of mantissa and a bias of 8; or 4 of exponent, 3 of mantissa
        # and a sign, without infinities.
        (MARLIN.format((4 << 8) + (8 << 17) + (1 << 50)), 4),
        (MARLIN.format(4 + (3 << 8) + (1 << 16) + (1 << 49) + (2 << 50)), 8),
        (
            "void cutlass::device_kernel<machete::MacheteKernelTemplate<cutlass::bfloat16_t, "
            "cutlass::integer_subbyte<4, false>, cutlass::bfloat16_t, float>",
            4,
        ),
        ("void kgemm_4bit_inference_naive<hip_bfloat16, 128, 16>", 4),
        ("aiter::mla_a16w8_qh16", 8),
        ("fused_moe_kernel_gptq_awq", None),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", None),
    ],
)
def test_names_that_tell_the_width_of_weights(name: str, bits: int | None) -> None:
    assert stored_bits(name) == bits
