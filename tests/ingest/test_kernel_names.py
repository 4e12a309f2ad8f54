"""Classifies names of real kernels. The table names the recording that each comes from.

Names from GitHub threads, and those marked "posted", are from published profiles and logs.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.ingest.kernels import kernel_names
from tb_perfadvisor.ingest.kernels.collective_names import (
    collective_dtype,
    collective_operation,
    is_collective,
)
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels, is_copy, is_fill
from tb_perfadvisor.trace.kinds import KernelFamily, Precision
from tests.support.corpus_traces import CORPUS

# Family, precision and matrix units were determined by hand from the conventions of the libraries.
# Long C++ names are truncated.
TABLE = Path(__file__).parent / "kernel_names.tsv"
# Names from recordings, posted profiles and the libraries' source code.
COLLECTIVES = TABLE.with_name("collective_names.tsv")


def _rows(table: Path = TABLE) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_table_covers_every_family() -> None:
    rows = _rows()
    assert len(rows) >= 300
    assert all(row["source"] for row in rows)
    assert {row["family"] for row in rows} == {family.name for family in KernelFamily}


def test_recorded_names() -> None:
    rows = _rows()
    classes = classify_kernels([row["name"] for row in rows])
    found = [
        (name, KernelFamily(family).name, Precision(precision).name, str(tensor_cores))
        for name, family, precision, tensor_cores in zip(
            (row["name"] for row in rows),
            classes.family.tolist(),
            classes.precision.tolist(),
            classes.tensor_cores.tolist(),
            strict=True,
        )
    ]
    columns = ("name", "family", "precision", "tensor_cores")
    expected = [tuple(row[column] for column in columns) for row in rows]
    assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []


def test_a_name_may_not_tell_whether_a_product_runs_on_tensor_cores() -> None:
    # A Triton template multiplies on them or not, by its types; an own kernel may do anything.
    classes = classify_kernels(["triton_tem_fused_mm_0", "my_gemm_kernel"])
    assert [KernelFamily(family).name for family in classes.family] == ["MATMUL", "MATMUL"]
    assert classes.tensor_cores.tolist() == [-1, -1]


def test_columns_have_the_types_of_the_kernel_table() -> None:
    classes = classify_kernels([])
    assert (classes.family.dtype, classes.precision.dtype) == (np.uint8, np.uint8)
    assert classes.tensor_cores.dtype == np.int8
    assert len(classes.family) == len(classes.precision) == len(classes.tensor_cores) == 0


def test_table_covers_the_libraries_of_all_vendors() -> None:
    names = " ".join(row["name"].lower() for row in _rows(COLLECTIVES))
    for part in ("nccldevkernel", "rccl", "msccl", "oneccl", "hcom", "vllm", "tensorrt_llm"):
        assert part in names
    assert all(row["source"] for row in _rows(COLLECTIVES))


def test_collectives() -> None:
    for row in _rows(COLLECTIVES):
        name = row["name"]
        assert is_collective(name), name
        assert collective_operation(name) == row["operation"], name
        assert collective_dtype(name) == row["dtype"], name
        assert classify_kernels([name]).family[0] == KernelFamily.COLLECTIVE, name


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
def test_similar_names_are_not_collectives(name: str) -> None:
    assert not is_collective(name)


def test_copies_that_rocm_records_as_kernels() -> None:
    assert is_copy("__amd_rocclr_copyBuffer.kd")
    assert not is_copy("__amd_rocclr_fillBufferAligned.kd")
    assert is_fill("__amd_rocclr_fillBufferAligned.kd")
    assert not is_fill(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"
    )


# Shares of kernel time. The corpus's own figures come from a simpler pattern, which counts s1688
# (tf32 on Ampere) as low precision and misses nvjet, 4-bit and pointwise kernels.
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
    path = next(iter(sorted(CORPUS.glob(pattern))))
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, strict=False)
    kernels = [e for e in document["traceEvents"] if str(e.get("cat")).lower() == "kernel"]
    names = sorted({e["name"] for e in kernels})
    precision = dict(zip(names, classify_kernels(names).precision.tolist(), strict=True))
    wanted = {"low": (Precision.BITS_8, Precision.BITS_16), "32": (Precision.BITS_32,)}[width]
    total = sum(e["dur"] for e in kernels)
    share = sum(e["dur"] for e in kernels if precision[e["name"]] in wanted) / total
    assert least <= share <= most


PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def _shortest_matches(items: Any) -> list[str]:
    """The shortest text that each alternative of a parsed pattern matches; gaps are spaces."""
    texts = [""]
    for op, value in items:
        name = str(op)
        if name == "LITERAL":
            more = [chr(value).lower()]
        elif name == "IN":
            letters = {chr(code).lower() if str(kind) == "LITERAL" else " " for kind, code in value}
            more = [*letters] if len(letters) == 1 else [" "]
        elif name == "BRANCH":
            more = [text for branch in value[1] for text in _shortest_matches(branch)]
        elif name == "SUBPATTERN":
            more = _shortest_matches(value[3])
        elif name == "MAX_REPEAT":
            more = [f"{text} " for text in _shortest_matches(value[2])] if value[0] else [" "]
        else:
            more = [""] if name.startswith(("AT", "ASSERT")) else [" "]
        texts = [text + suffix for text in texts for suffix in more]
    return texts


@pytest.mark.parametrize("table", [kernel_names._FAMILIES, kernel_names._KERNEL_WIDTHS])
def test_every_match_contains_one_of_the_words(table: Any) -> None:
    for words, pattern, _ in table:
        for text in _shortest_matches(PARSER.parse(pattern)):
            assert any(word in text for word in words), (pattern, text)
        assert all(word == word.lower() for word in words)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        # Weights in 4 bits, multiplied in the format of the activations.
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", Precision.BITS_16),
        ("_matmul_ogs_NNT_bf16xfp8e4nvxmxfp4_16x256x128x1", Precision.BITS_8),
        ("gemm_a16w4_kernel", Precision.BITS_16),
        ("gemm_a8w8_blockscale_kernel", Precision.BITS_8),
        ("_w4a4_gemm", Precision.BITS_8),  # 4-bit formats count as 8-bit
        ("fpA_intB_gemm_kernel<half, uint8_t>", Precision.BITS_16),
        # The output is in 16 bits, both operands are not.
        ("bmm_Bfloat16_E4m3_Fp32_t128x8x512_s6_et64x8_sm100f", Precision.BITS_8),
    ],
)
def test_precision_is_that_of_the_arithmetic(name: str, precision: Precision) -> None:
    classes = classify_kernels([name])
    assert KernelFamily(classes.family[0]) == KernelFamily.MATMUL
    assert Precision(classes.precision[0]) == precision


@pytest.mark.parametrize(
    "name",
    [
        "void vllm::gptq_marlin_repack_kernel<256, 4, false>(unsigned int const*",
        "void marlin::permute_cols_kernel(int4 const*, int const*, int4*, int, int, int, int)",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(__nv_bfloat16*",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, float, int>(float*",
    ],
)
def test_neighbors_of_matrix_kernels_are_none(name: str) -> None:
    (family,) = classify_kernels([name]).family
    assert family not in (KernelFamily.MATMUL, KernelFamily.ATTENTION)


def test_kernels_that_quantize_compute_in_the_wider_type() -> None:
    name = "void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, true>"
    assert Precision(classify_kernels([name]).precision[0]) == Precision.BITS_16
