from __future__ import annotations

import math
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.precision.matrix_products import MisalignedShapes
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import KernelFamily, Precision

H100 = "NVIDIA H100 80GB HBM3"
# TraceLens' owlv2 and Falconsai (H100) have these kernels.
NARROW = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"
BF16, F32 = "c10::BFloat16", "float"


def product(shapes: str, dtype: str = BF16, name: str = "aten::mm") -> dict[str, Symbol]:
    width = Precision.BITS_16 if dtype == BF16 else Precision.BITS_32
    return {
        "v": operator(name, shapes=shapes, dtypes=f"{dtype};{dtype}"),
        "t": kernel(NARROW, family=KernelFamily.MATMUL, precision=width, tensor_cores=1),
    }


VOCABULARY = "[[8192,1024],[1024,50257]]"
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |tttttttttt|tttttttttt|
"""
FIXED = """
    cell 1ms
    step   |....|....|
    main   |vSSS|vSSS|
    gpu 7  |tttt|tttt|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        MisalignedShapes, slow=SLOW, fixed=FIXED, saves="6ms", legend=product(VOCABULARY),
        device=H100, settings={"maximum_achieved_share": 0.2}, scales=False,
    )  # fmt: skip
    (finding,) = checked.findings
    assert finding.saving is not None
    # 2 x 8192 x 1024 x 50,304 FLOP at 0.90 of 989.4 TFLOP/s, in 763 waves instead of 762.2 (128 x
    # 786 tiles of 64 x 64 on 132 multiprocessors), while the operands are read and half of the
    # result is written; the rest follows. Padding from 50,257 adds less than 0.1 %.
    bytes_per_ns = 3.352e3 * 0.85
    compute_ns = 2 * 8192 * 1024 * 50304 / (989.4e3 * 0.90) * 763 / (128 * 786 / 132)
    reads_ns = 2 * 1024 * (8192 + 50304) / bytes_per_ns
    half_ns = 8192 * 50304 / bytes_per_ns
    best_ns = 4_000 + math.hypot(compute_ns, reads_ns + half_ns) + half_ns
    assert finding.saving.high_ns == pytest.approx(2 * (10e6 - best_ns), rel=1e-3)
    assert "pad n (columns of the second operand) from 50257 to 50304" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows[0][:2] == ("aten::mm", "(8192, 50257, 1024)")


@pytest.mark.parametrize(
    ("shapes", "dtype", "advice"),
    [
        ("[[8192,1023],[1023,4096]]", BF16, "k (columns of the first operand) from 1023 to 1024"),
        ("[[8192,1030],[1030,100]]", BF16, "from 100 to 104 and k"),  # 8 elements of 16 bits
        ("[[8192,1024],[1024,1026]]", F32, "from 1026 to 1056"),  # 4 elements of TF32; 32 are best
        ("[[8191,1024],[1024,4096]]", BF16, ""),  # rows are not contiguous
        ("[[8192,1024],[1024,1]]", BF16, ""),  # a single column
        ("[[8192,1024],[1024,1028]]", F32, ""),
    ],
)
def test_advice_names_the_size_and_the_multiple(shapes: str, dtype: str, advice: str) -> None:
    findings = find(MisalignedShapes, SLOW, legend=product(shapes, dtype), device=H100)
    assert findings is not None
    assert len(findings) == bool(advice)
    assert all(advice in finding.summary for finding in findings)


def test_aligned_or_fast_products_pass() -> None:
    assert find(MisalignedShapes, SLOW, legend=product("[[8192,1024],[1024,50304]]")) is None
    aligned = product("[[8192,1024],[1024,50304]]")
    assert find(MisalignedShapes, SLOW, legend=aligned, device=H100) == ()
    # 1.8 ms are achievable, 2 ms actual.
    fast = product("[[16384,1024],[1024,40001]]")
    text = SLOW.replace("tttttttttt", "tt........")
    assert find(MisalignedShapes, text, legend=fast, device=H100) == ()


def test_kernels_with_too_few_blocks_do_not_count() -> None:
    few = product(VOCABULARY)
    few["t"] = kernel(
        NARROW, family=KernelFamily.MATMUL, precision=Precision.BITS_16, tensor_cores=1,
        grid_blocks=131,
    )  # fmt: skip
    assert find(MisalignedShapes, SLOW, legend=few, device=H100) == ()


def test_inner_size_of_gradients_does_not_count() -> None:
    text = """
        cell 1ms
        step   |..........|..........|
        main   |BBBBBBBBBB|BBBBBBBBBB|
        main   |.v........|.v........|
        gpu 7  |..tttttttt|..tttttttt|
    """
    legend = product("[[4096,8191],[8191,1024]]")
    legend["B"] = operator("MmBackward0", launches=False)
    assert find(MisalignedShapes, text, legend=legend, device=H100) == ()
    legend |= {"B": operator("aten::linear", launches=False)}
    assert find(MisalignedShapes, text, legend=legend, device=H100)


def test_fires_only_beyond_the_limits() -> None:
    legend = product(VOCABULARY)  # 1.14 of 10 ms are achievable, in the whole step
    for name, fires_at, passes_at in (
        ("minimum_share", 0.99, 1.01),
        ("maximum_achieved_share", 0.12, 0.11),
    ):
        assert find(MisalignedShapes, SLOW, legend=legend, device=H100, settings={name: fires_at})
        assert (
            find(MisalignedShapes, SLOW, legend=legend, device=H100, settings={name: passes_at})
            == ()
        )


@pytest.mark.corpus
def test_finds_image_patches_with_a_class_token(corpus: Path) -> None:
    # 72 x 72 patches plus a class token: 5185 positions; 3137 in timesformer.
    for name, size in (
        ("google_owlv2-large-patch14-ensemble", "5185 to 5248"),
        ("facebook_timesformer-base-finetuned-k400", "3137 to 3200"),
    ):
        report = analyze(corpus / f"tracelens/h100/{name}")
        (finding,) = [f for f in report.findings if f.rule_id == "misaligned-shapes"]
        assert size in finding.summary
