from __future__ import annotations

import math
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.compute.kernels import SlowMatmul
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import device_alphabet, kernel, operator, xla_op
from tb_perfadvisor.trace import Device, KernelFamily, Precision

H100 = Device(0, "NVIDIA H100 80GB HBM3", "gpu", multiprocessors=132)
# TraceLens' owlv2 (H100) has this kernel.
GEMM = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"


def legend(blocks: int = 1024, dtype: str = "c10::BFloat16") -> dict[str, object]:
    return {
        "v": operator("aten::mm", shapes="[[4096,4096],[4096,4096]]", dtypes=f"{dtype};{dtype}"),
        "t": kernel(
            GEMM,
            family=KernelFamily.MATMUL,
            precision=Precision.BITS_16,
            tensor_cores=1,
            grid_blocks=blocks,
        ),
    }


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |ttttkkkkkk|ttttkkkkkk|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |vSSSSSSS|vSSSSSSS|
    gpu 7  |ttkkkkkk|ttkkkkkk|
"""
# 2 x 4096^3 FLOP at 0.90 of 989.4 TFLOP/s in bf16 (NVIDIA, H100 data sheet): 64 x 64 tiles on 132
# multiprocessors take 32 waves instead of 31.03, while 2 x 33.6 MB are read and 16.8 written at
# 0.85 of 3.352 TB/s. Then another 16.8 MB are written. With 4 us to start, this is 172 us.
COMPUTE_NS = 2 * 4096**3 / (989.4e12 * 0.90) * 1e9 * 32 / (64**2 / 132)
HALF_NS = 4096**2 / (3.352e12 * 0.85) * 1e9
BEST_NS = 4_000 + math.hypot(COMPUTE_NS, 5 * HALF_NS) + HALF_NS


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SlowMatmul, slow=SLOW, fixed=FIXED, saves="2ms", legend=legend(), device=H100,
        settings={"maximum_achieved_share": 0.08}, scales=False,
    )  # fmt: skip
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(2 * (4e6 - BEST_NS), rel=1e-3)
    assert finding.saving.expected_ns == pytest.approx(4e6 - BEST_NS, rel=1e-3)
    assert "reach 4.3 %" in finding.summary  # 172 µs of 4 ms
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows[0][:6] == ("aten::mm", "(4096, 4096, 4096)", "bf16", "compute", 2, 8_000_000)


def test_unknown_shapes_or_types_yield_no_finding() -> None:
    bare = legend() | {"v": operator("aten::mm")}
    assert find(SlowMatmul, SLOW, legend=bare, device=H100) is None
    assert find(SlowMatmul, SLOW, legend=legend(dtype="c10::complex<float>"), device=H100) == ()


def test_kernels_with_too_few_blocks_do_not_count() -> None:
    assert find(SlowMatmul, SLOW, legend=legend(blocks=131), device=H100) == ()


def test_fires_only_beyond_the_limits() -> None:
    # Four cells of ten, 4.3 % of what is achievable, 4 ms per kernel.
    for name, fires_at, passes_at in (
        ("minimum_share", 0.39, 0.41),
        ("maximum_achieved_share", 0.05, 0.04),
        ("minimum_duration_ns", 3_999_999, 4_000_001),
    ):
        assert find(SlowMatmul, SLOW, legend=legend(), device=H100, settings={name: fires_at})
        assert (
            find(SlowMatmul, SLOW, legend=legend(), device=H100, settings={name: passes_at}) == ()
        )


def test_products_that_xla_compiles_for_a_tpu_pass() -> None:
    # 2 x 1,024 x 1,024 x 1,024 FLOP in 6 ms are a thousandth of what the device achieves.
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXXXXXYYYY|XXXXXXYYYY|
    """
    text = device_alphabet("tpu")["X"].hlo["text"]
    product = xla_op(
        "fusion.1", text, family=KernelFamily.MATMUL, flop=2 * 1024**3, traffic_bytes=6 * 1024**2
    )
    assert find(SlowMatmul, trace, legend={"X": product}, device="TPU v5e") == ()


@pytest.mark.corpus
def test_finds_the_slow_attention_scores_of_owlv2(corpus: Path) -> None:
    report = analyze(corpus / "tracelens/h100/google_owlv2-large-patch14-ensemble")
    (finding,) = [f for f in report.findings if f.rule_id == "slow-matmul"]
    assert finding.saving is not None
    # 130 ms of 1.21 s go into products of 16 x (5185, 64, 5185), 1.083 ms each. Writing 860 MB at
    # 0.85 of 3.352 TB/s takes 0.302 of them.
    share = 0.130 * (1 - 0.302 / 1.083) / 1.21
    assert finding.saving.share_high == pytest.approx(share, rel=0.03)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["Falconsai_nsfw_image_detection", "gaunernst_bert-small-uncased"])
def test_small_models_pass(corpus: Path, name: str) -> None:
    rules = [finding.rule_id for finding in analyze(corpus / f"tracelens/h100/{name}").findings]
    assert "slow-matmul" not in rules
    assert "misaligned-shapes" not in rules
