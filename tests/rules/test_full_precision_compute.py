from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.precision.full_precision_compute import FullPrecisionCompute
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, run_of, us
from tb_perfadvisor.trace import KernelFamily, Precision

H100 = "NVIDIA H100 80GB HBM3"
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
    gpu 7  |HHHH|HHHH|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(FullPrecisionCompute, slow=SLOW, fixed=FIXED, saves="4ms", device=H100)
    assert checked.expected_ns == 4_000_000  # half of 8 ms


def test_without_shapes_high_is_the_ratio_of_the_peaks() -> None:
    (finding,) = find(FullPrecisionCompute, SLOW, device=H100) or ()
    assert finding.saving is not None
    # H100 SXM: 989.4 TFLOP/s dense in bf16, 66.9 in fp32 (NVIDIA, H100 datasheet). Measurements
    # reach between two thirds and nine tenths of that.
    for achievable in (2 / 3, 0.9):
        bound = 16e6 * (1 - 66.9 / (989.4 * achievable))
        assert abs(finding.saving.high_ns - bound) < 0.05 * bound


def test_with_shapes_high_is_the_roofline_of_each_kernel() -> None:
    # A large product, and one with a single column, which is memory bound in any data type.
    builder = TraceBuilder().device(H100).step(0, 0, ms(60))
    for at, columns in ((1, 8192), (31, 1)):
        builder.operator(
            "aten::mm", ms(at) - us(20), ms(at) - us(10), shapes=[[8192, 8192], [8192, columns]],
            dtypes=["float", "float"],
        )  # fmt: skip
        builder.kernel(
            "ampere_sgemm_128x64_nn", ms(at), ms(at + 24), family=KernelFamily.MATMUL,
            precision=Precision.BITS_32, tensor_cores=0,
        )  # fmt: skip
    (finding,) = FullPrecisionCompute().check(Signals(run_of(builder.build())))
    assert finding.saving is not None
    now_ns = 24e6
    # The large product: 2 x 8192^3 FLOP at 0.80 of 989.4 TFLOP/s in bf16.
    large_ns = 2 * 8192**3 / (989.4e12 * 0.80) * 1e9
    # The other one: 2 bytes for each of 8192^2 + 2 x 8192 numbers at 0.85 of 3.352 TB/s.
    narrow_ns = 2 * (8192**2 + 2 * 8192) / (3.352e12 * 0.85) * 1e9
    assert finding.saving.high_ns == pytest.approx(2 * now_ns - large_ns - narrow_ns, rel=1e-3)
    # Now: 0.80 of 66.9 TFLOP/s in fp32. The same share of the higher roof takes 66.9 / 989.4
    # of the time, or half of the time for the memory-bound product.
    same_share_ns = now_ns * (66.9 / 989.4 + 1 / 2)
    expected_ns = 2 * now_ns - (same_share_ns + now_ns) / 2
    assert finding.saving.expected_ns == pytest.approx(expected_ns, rel=1e-3)
    assert finding.saving.low_ns == pytest.approx(expected_ns / 2, rel=1e-3)


def test_16_bit_compute_passes() -> None:
    assert find(FullPrecisionCompute, FIXED, device=H100) == ()


def test_not_applicable_without_peaks() -> None:
    assert find(FullPrecisionCompute, SLOW, device="A device nobody knows") is None


def test_not_applicable_on_the_cpu() -> None:
    trace = """
        cell 1ms
        step   |....|....|
        main   |OOOO|OOOO|
    """
    assert find(FullPrecisionCompute, trace) is None


def test_fires_only_above_the_limit() -> None:
    # 32-bit matrix kernels take half of the step.
    trace = """
        cell 1ms
        step   |........|........|
        main   |o'......|o'......|
        gpu 7  |KKKKHHHH|KKKKHHHH|
    """
    below, above = {"minimum_share": 0.49}, {"minimum_share": 0.51}
    assert len(find(FullPrecisionCompute, trace, settings=below, device=H100) or ()) == 1
    assert find(FullPrecisionCompute, trace, settings=above, device=H100) == ()


def test_remedies_fit_the_device() -> None:
    def snippets(device: str) -> str:
        (finding,) = find(FullPrecisionCompute, SLOW, device=device) or ()
        return "".join(remedy.snippet for remedy in finding.remedies)

    assert "bfloat16" in snippets(H100)
    assert "set_float32_matmul_precision" in snippets(H100)
    # Volta's tensor cores only support float16 (NVIDIA, V100 architecture whitepaper).
    assert "bfloat16" not in snippets("Tesla V100-SXM2-16GB")
    assert "GradScaler" in snippets("Tesla V100-SXM2-16GB")
    assert "set_float32_matmul_precision" not in snippets("Tesla V100-SXM2-16GB")


@pytest.mark.corpus
def test_resnet50_on_a_v100_spends_two_thirds_in_32_bit_matrix_kernels(corpus: Path) -> None:
    report = analyze(corpus / "kineto/resnet50_num_workers_4")
    (finding,) = [f for f in report.findings if f.rule_id == "full-precision-compute"]
    # 68 % of kernel time, none of it on tensor cores (the golden file of PyTorch's own plugin
    # says 0.0 % of kernel time on tensor cores).
    share = float(finding.summary.split(" % of kernel time")[0].rsplit(" ", 1)[1])
    assert share == pytest.approx(68, abs=3)
    by_units = next(table for table in finding.evidence if "tensor cores" in table.title)
    assert [(row[0], row[1]) for row in by_units.rows if row[0] != "not used"] == [
        ("used", 0),
        ("unknown", 0),
    ]
