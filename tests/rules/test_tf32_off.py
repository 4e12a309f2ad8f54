from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.precision.matrix_products import Tf32Off
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.trace import KernelFamily, Precision

A100 = "NVIDIA A100-SXM4-80GB"
# segment-anything-fast's asdf_False (A100): a product in tf32.
LEGEND = {
    "T": kernel(
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(Params)",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_32,
        tensor_cores=1,
    ),
    "?": kernel("gemm_kernel", family=KernelFamily.MATMUL, precision=Precision.BITS_32),
}
SLOW = """
    cell 1ms
    step   |........|........|
    main   |oSSSSSSS|oSSSSSSS|
    gpu 7  |KKKKKKKK|KKKKKKKK|
"""
FIXED = """
    cell 1ms
    step   |....|....|
    main   |oSSS|oSSS|
    gpu 7  |TTTT|TTTT|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(Tf32Off, slow=SLOW, fixed=FIXED, saves="4ms", legend=LEGEND, device=A100)
    (finding,) = checked.findings
    assert finding.saving is not None
    # NVIDIA, A100 data sheet: 19.5 TFLOP/s in fp32, 156 in TF32, of which 0.93 is reached.
    assert finding.saving.high_ns == pytest.approx(16e6 * (1 - 19.5 / (156 * 0.93)), rel=0.01)
    assert "156 TFLOP/s with TF32 and 20 without" in finding.summary


@pytest.mark.parametrize(
    "device",
    [
        "Tesla V100-SXM2-16GB",  # no TF32
        "AMD Instinct MI300X",  # its matrix units multiply full 32 bits
        # NVIDIA, A40 data sheet: 74.8 TFLOP/s in TF32, of which 0.75 is reached; 37.4 in fp32
        "NVIDIA A40",
    ],
)
def test_devices_with_little_to_gain_pass(device: str) -> None:
    assert find(Tf32Off, SLOW, device=device, settings={"minimum_ratio": 1.6}) == ()


def test_the_tiles_of_a_long_kernel_bound_what_it_moves() -> None:
    sgemm = kernel(
        "ampere_sgemm_128x64_tn",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_32,
        tensor_cores=0,
    )
    (finding,) = find(Tf32Off, SLOW, legend={"K": sgemm}, device=A100)
    assert finding.saving is not None
    # For 2 * 128 * 64 operations, a block reads 128 + 64 numbers of 4 bytes. At 19.5 TFLOP/s and
    # 0.85 * 2,039 GB/s, reading takes 0.53 of the time.
    moving = 19.5e12 * 4 * (128 + 64) / (2 * 128 * 64) / (0.85 * 2.039e12)
    computing = 19.5 / (156 * 0.93)
    then = (moving + computing) / 2
    assert finding.saving.expected_ns == pytest.approx(16e6 * (1 - then), rel=0.01)


def test_products_that_are_slow_where_others_use_tf32_pass() -> None:
    """The switch is on: these are slow for their shape. One kernel in ten proves nothing."""
    mixed = SLOW.replace("|KKKKKKKK|KKKKKKKK|", "|KKKKKKTT|KKKKKKTT|")
    assert find(Tf32Off, mixed, legend=LEGEND, device=A100) == ()
    single = SLOW.replace("|KKKKKKKK|KKKKKKKK|", "|KKKKKKKT|KKKKKKKK|")  # 1 of 16 ms
    assert len(find(Tf32Off, single, legend=LEGEND, device=A100)) == 1


def test_unknown_kernels_pass() -> None:
    assert find(Tf32Off, SLOW.replace("K", "?"), legend=LEGEND, device=A100) == ()


def test_fires_only_above_the_limit() -> None:
    # 32-bit matrix kernels take half of the step.
    text = """
        cell 1ms
        step   |........|........|
        main   |o'......|o'......|
        gpu 7  |KKKKHHHH|KKKKHHHH|
    """
    below, above = {"minimum_share": 0.49}, {"minimum_share": 0.51}
    assert len(find(Tf32Off, text, settings=below, device=A100) or ()) == 1
    assert find(Tf32Off, text, settings=above, device=A100) == ()


@pytest.mark.corpus
def test_finds_tf32_off_in_untuned_segment_anything(corpus: Path) -> None:
    rules = [f.rule_id for f in analyze(corpus / "sam-fast/asdf_False_a73da0d1").findings]
    assert rules.index("tf32-off") == rules.index("full-precision-compute") + 1
    tuned = analyze(corpus / "sam-fast/asdf_True_02c6e091")
    assert "tf32-off" not in [finding.rule_id for finding in tuned.findings]
