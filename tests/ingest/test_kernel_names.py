"""Names of real kernels, row by row: the table's names come from the recordings that it names.

Those of GitHub threads are from profiles that people posted there.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.ingest import kernel_names
from tb_perfadvisor.ingest.collective_names import (
    collective_dtype,
    collective_operation,
    is_collective,
)
from tb_perfadvisor.ingest.kernel_names import classify_kernels, is_copy, is_fill
from tb_perfadvisor.trace.kinds import KernelFamily, Precision

# Family, precision and matrix units were judged by hand from the conventions of the libraries.
# Long C++ names are cut at their end.
TABLE = Path(__file__).parent / "kernel_names.tsv"
# Names from recordings, posted profiles and the libraries' own sources.
COLLECTIVES = TABLE.with_name("collective_names.tsv")


def _rows(table: Path = TABLE) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


# Names that the recordings lack, with where they were seen, or whose convention they follow.
MORE = [
    # openxla/xprof kernel_stats_utils.cc lists h884, s884, h1688, i8816, i16832 as tensor cores
    ("volta_h884gemm_256x64_ldg8_tn", "MATMUL", 16, 1),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "MATMUL", 16, 1),
    ("turing_s1688cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1", "CONVOLUTION", 16, 1),
    ("turing_int8_i8816gemm_int8_128x128_ldg16_relu_tn", "MATMUL", 8, 1),
    ("ampere_int8_i16832gemm_int8_int32_128x128_ldg16_stages_64x3_tn", "MATMUL", 8, 1),
    # an A30 (asked about at NVIDIA/cutlass), an RTX 3060 (profile of karpathy/nanochat)
    ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1", "MATMUL", 16, 1),
    ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn", "MATMUL", 16, 1),
    # an H100 with fp8 (profile of neuralmagic/nm-vllm)
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128", "MATMUL", 8, 1),
    ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1>", "MATMUL", 64, 1),
    ("ampere_dgemm_64x64_nn", "MATMUL", 64, -1),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "MATMUL", 16, 1),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "MATMUL", 16, 1),
    ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", "MATMUL", 16, 1),
    ("nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_TNT", "MATMUL", 8, 1),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "ATTENTION",
        16,
        1,
    ),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention", "ATTENTION", 32, 1),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention", "ATTENTION", 32, 0),
    ("fmha_cutlassB_f16_aligned_64x64_k64_sm70(PyTorchMemEffAttention", "ATTENTION", 16, 1),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u>", "MATMUL", 8, 1),
    # mixed: the lowest input counts
    ("void cudnn::bn_fw_tr_1C11_singleread<__half, 512, true>(float)", "NORMALIZATION", 16, 0),
    # Inductor and XLA: what was fused is not what it is
    ("triton_tem_fused_mm_3", "MATMUL", 0, -1),
    ("triton_tem_fused_flex_attention_0", "ATTENTION", 0, -1),
    ("triton_poi_fused_all_gather_into_tensor_cat_3", "ELEMENTWISE", 0, 0),
    ("triton_per_fused__log_softmax_nll_loss_forward_3", "SOFTMAX", 0, 0),
    ("loop_convert_fusion.kd", "ELEMENTWISE", 0, 0),
    ("input_reduce_fusion_1.kd", "REDUCTION", 0, 0),
    ("input_transpose_fusion_1.kd", "LAYOUT", 0, 0),
    ("gemm_fusion_dot_general_1.kd", "MATMUL", 0, -1),
    ("fusion_12", "OTHER", 0, -1),
    # Itanium-mangled: float, half, double
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
     "ELEMENTWISE", 32, 0),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIN3c104HalfEEEEEviT0_T1_",
     "ELEMENTWISE", 16, 0),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIdEEEEviT0_T1_",
     "ELEMENTWISE", 64, 0),
    # Tensile's types; without a matrix instruction in the name its use is unknown
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SN_1LDSB0", "MATMUL", 16, 1),
    ("Cijk_Ailk_Bljk_HB_MT64x64x8_SE_K1", "MATMUL", 16, -1),
    ("Cijk_Ailk_Bljk_SB_MT128x64x8_SN_1LDSB0", "MATMUL", 32, -1),
    ("Cijk_Alik_Bljk_DB_MT64x64x8_MI16x16x4x1_SN", "MATMUL", 64, 1),
    ("Cijk_Alik_Bljk_F8B8SS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x512_MI16x16x1_SN", "MATMUL", 8, 1),
    ("Cijk_Alik_Bljk_S_MX_B_Bias_AS_SAV_UserArgs_MT16x16x64_MI16x16x1_SN", "MATMUL", 32, 1),
    ("Cijk_Alik_Bljk_I8II_BH_MT128x128x64_MI32x32x16x1", "MATMUL", 8, 1),
    ("Cijk_SS_BiasSB_HAS_ScaleAlphaVec_PostGSU2_VW4", "MATMUL", 0, -1),
    ("miopenSp3AsmConv_v21_1_2_gfx9_fp32_stride1", "CONVOLUTION", 32, -1),
    ("__amd_rocclr_copyBuffer.kd", "COPY", 0, 0),
]  # fmt: skip

_WIDTHS = {
    0: Precision.UNKNOWN,
    8: Precision.BITS_8,
    16: Precision.BITS_16,
    32: Precision.BITS_32,
    64: Precision.BITS_64,
}


def test_the_table_is_large_and_covers_every_family() -> None:
    rows = _rows()
    assert len(rows) >= 300
    assert {row["family"] for row in rows} == {family.name for family in KernelFamily}


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["name"][:60])
def test_recorded_names(row: dict[str, str]) -> None:
    classes = classify_kernels([row["name"]])
    assert KernelFamily(classes.family[0]).name == row["family"]
    assert Precision(classes.precision[0]).name == row["precision"]
    assert classes.tensor_cores[0] == int(row["tensor_cores"])


@pytest.mark.parametrize(
    ("name", "family", "bits", "tensor_cores"), MORE, ids=lambda v: str(v)[:50]
)
def test_names_by_convention(name: str, family: str, bits: int, tensor_cores: int) -> None:
    classes = classify_kernels([name])
    assert KernelFamily(classes.family[0]).name == family
    assert classes.precision[0] == _WIDTHS[bits]
    assert classes.tensor_cores[0] == tensor_cores


def test_columns_have_the_trace_models_types() -> None:
    classes = classify_kernels([])
    assert (classes.family.dtype, classes.precision.dtype) == (np.uint8, np.uint8)
    assert classes.tensor_cores.dtype == np.int8
    assert len(classes.family) == len(classes.precision) == len(classes.tensor_cores) == 0


def test_libraries_of_all_makers_are_there() -> None:
    names = " ".join(row["name"].lower() for row in _rows(COLLECTIVES))
    for part in ("nccldevkernel", "rccl", "msccl", "oneccl", "hcom", "vllm", "tensorrt_llm"):
        assert part in names
    assert all(row["source"] for row in _rows(COLLECTIVES))


@pytest.mark.parametrize("row", _rows(COLLECTIVES), ids=lambda row: row["name"][:60])
def test_collectives(row: dict[str, str]) -> None:
    assert is_collective(row["name"])
    assert collective_operation(row["name"]) == row["operation"]
    assert collective_dtype(row["name"]) == row["dtype"]
    assert classify_kernels([row["name"]]).family[0] == KernelFamily.COLLECTIVE


@pytest.mark.parametrize(
    "name",
    [
        "hipMemcpyAsync",
        "__amd_rocclr_copyBuffer",
        "block_all_reduce_sum",  # inside one thread block
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float",
        "triton_poi_fused_all_gather_into_tensor_cat_3",
        "void step_combine_kernel<float>",
        "c10d::allreduce_",  # the operator on the host, not the kernel
        "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>",
    ],
)
def test_what_only_looks_like_a_collective(name: str) -> None:
    assert not is_collective(name)


def test_copies_that_rocm_records_as_kernels() -> None:
    assert is_copy("__amd_rocclr_copyBuffer.kd")
    assert not is_copy("__amd_rocclr_fillBufferAligned.kd")
    assert is_fill("__amd_rocclr_fillBufferAligned.kd")
    assert not is_fill(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"
    )


# Shares of kernel time. The corpus's own figures are of a rougher pattern, which counts s1688 (on
# Ampere the 32-bit tf32) as low precision and misses nvjet, 4-bit and pointwise kernels.
SHARES = [
    ("tracelens/h100/google_owlv2*/*.json.gz", "low", 0.99, 1.0),
    ("tracelens/h100/Falconsai*/*.json.gz", "low", 0.99, 1.0),
    ("tracelens/h100/Qwen*/*.json.gz", "low", 0.77, 0.90),
    ("tracelens/mi210/**/gpu_only_trace.json.gz", "low", 0.88, 0.91),
    ("sam-fast/asdf_True_02c6e091/*.json.gz", "low", 0.86, 0.89),
    ("sam-fast/asdf_True_10b61b2f/*.json.gz", "low", 0.35, 0.38),
    ("tracelens/eval_moe_nv/moe_05*/*.json.gz", "low", 0.36, 0.38),  # 1.2 % without nvjet
    ("kineto/resnet50_num_workers_0/*.json.gz", "low", 0.0, 0.0),
    ("kineto/resnet50_num_workers_0/*.json.gz", "32", 0.99, 1.0),
    ("hta/amd_trace/*/*.json.gz", "32", 0.99, 1.0),
    ("quentin-tutorial/transformer/*.json", "32", 0.99, 1.0),  # tf32, 9.9 % of it named s1688
]


@pytest.mark.corpus
@pytest.mark.parametrize(("pattern", "width", "least", "most"), SHARES)
def test_share_of_kernel_time(pattern: str, width: str, least: float, most: float) -> None:
    corpus = os.environ.get("PERFADVISOR_CORPUS")
    if not corpus:
        pytest.skip("PERFADVISOR_CORPUS is not set")
    path = next(iter(sorted(Path(corpus).glob(pattern))))
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, strict=False)
    kernels = [e for e in document["traceEvents"] if str(e.get("cat")).lower() == "kernel"]
    names = sorted({e["name"] for e in kernels})
    precision = dict(zip(names, classify_kernels(names).precision.tolist(), strict=True))
    wanted = {"low": (Precision.BITS_8, Precision.BITS_16), "32": (Precision.BITS_32,)}[width]
    total = sum(e["dur"] for e in kernels)
    share = sum(e["dur"] for e in kernels if precision[e["name"]] in wanted) / total
    assert least <= share <= most


def _least(items: Any) -> list[str]:
    """What a parsed expression matches at least, one text per alternative; gaps are spaces."""
    texts = [""]
    for op, value in items:
        name = str(op)
        if name == "LITERAL":
            more = [chr(value).lower()]
        elif name == "IN":
            letters = {chr(one).lower() if str(kind) == "LITERAL" else " " for kind, one in value}
            more = [*letters] if len(letters) == 1 else [" "]
        elif name == "BRANCH":
            more = [text for branch in value[1] for text in _least(branch)]
        elif name == "SUBPATTERN":
            more = _least(value[3])
        elif name == "MAX_REPEAT":
            more = [f"{text} " for text in _least(value[2])] if value[0] else [" "]
        else:
            more = [""] if name.startswith(("AT", "ASSERT")) else [" "]
        texts = [text + one for text in texts for one in more]
    return texts


@pytest.mark.parametrize("table", [kernel_names._FAMILIES, kernel_names._WIDTHS])
def test_no_name_that_fits_lacks_the_words(table: Any) -> None:
    for words, pattern, _ in table:
        for text in _least(re._parser.parse(pattern)):  # type: ignore[attr-defined]
            assert any(word in text for word in words), (pattern, text)
        assert all(word == word.lower() for word in words)
