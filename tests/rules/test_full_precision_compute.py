from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.precision.matrix_products import FullPrecisionCompute
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of, us
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import Device, KernelFamily, Precision
from tests.support.program_values import MODULE, program

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


# Blocks of `ampere_sgemm_128x64_tn` read 128 + 64 numbers of 2 bytes for 2 * 128 * 64 operations,
# and do 66.9 T of these per second at most. H100 SXM: 3.35 TB/s, of which 0.85 is reached, and
# 989.4 TFLOP/s in bf16, of which 0.9 is. Expected is halfway between reading and computing.
THEN = (66.9e12 * 2 * 192 / (2 * 128 * 64) / (0.85 * 3.35e12) + 66.9 / (989.4 * 0.9)) / 2


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(FullPrecisionCompute, slow=SLOW, fixed=FIXED, saves="4ms", device=H100)
    assert checked.expected_ns == pytest.approx(8e6 * (1 - THEN), rel=0.01)


def test_kernels_of_an_hour_save_as_much_as_short_ones() -> None:
    """Times of damaged files; the product of two of them does not fit into 64 bits."""
    hour = SLOW.replace("cell 1ms", "cell 450000ms")  # a kernel has eight cells
    (finding,) = find(FullPrecisionCompute, hour, device=H100) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(7_200e9 * (1 - THEN), rel=0.01)


def test_without_shapes_high_is_the_ratio_of_the_peaks() -> None:
    (finding,) = find(FullPrecisionCompute, SLOW, device=H100) or ()
    assert finding.saving is not None
    # H100 SXM: 989.4 TFLOP/s dense in bf16, 66.9 in fp32 (NVIDIA, H100 datasheet). Measurements
    # reach between two thirds and nine tenths of that.
    for achievable in (2 / 3, 0.9):
        bound = 16e6 * (1 - 66.9 / (989.4 * achievable))
        assert abs(finding.saving.high_ns - bound) < 0.05 * bound


def test_with_shapes_high_is_what_each_kernel_can_achieve() -> None:
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
    # Their FLOP at 0.90 of the peaks: 989.4 TFLOP/s in bf16, 66.9 in fp32. The large product takes
    # 125 waves instead of 124.1: 128 x 128 tiles of 64 x 64 on 132 multiprocessors. The narrow one
    # has 128 tiles of 64 x 8 for a single column.
    large_flop = 2 * 8192**3 * 125 / (128**2 / 132)
    narrow_flop = 2 * 8192**2 * 8 * 132 / 128

    def achievable_ns(flop: float, peak: float, numbers: float, results: float) -> float:
        bytes_per_ns = 3.352e3 * 0.85
        item_bytes = 2 if peak == 989.4e3 else 4
        # Half of the results are written while the product is computed.
        reads_ns, half_ns = (count * item_bytes / bytes_per_ns for count in (numbers, results / 2))
        return 4_000 + math.hypot(flop / (peak * 0.90), reads_ns + half_ns) + half_ns

    large = (large_flop, 2 * 8192**2, 8192**2)
    narrow = (narrow_flop, 8192**2 + 8192, 8192)
    best = [achievable_ns(flop, 989.4e3, *numbers) for flop, *numbers in (large, narrow)]
    assert finding.saving.high_ns == pytest.approx(2 * now_ns - sum(best), rel=1e-3)
    # Expected is the same share of what is achievable as now.
    now = [achievable_ns(flop, 66.9e3, *numbers) for flop, *numbers in (large, narrow)]
    same_share_ns = now_ns * (best[0] / now[0] + best[1] / now[1])
    expected_ns = 2 * now_ns - same_share_ns
    assert finding.saving.expected_ns == pytest.approx(expected_ns, rel=1e-3)
    assert finding.saving.low_ns == pytest.approx(expected_ns / 2, rel=1e-3)


def test_16_bit_compute_passes() -> None:
    assert find(FullPrecisionCompute, FIXED, device=H100) == ()


@pytest.mark.parametrize("device", ["", "A GPU nobody knows", "NVIDIA GPU"])
def test_on_an_unknown_gpu_a_rule_of_thumb_replaces_the_roofline(device: str) -> None:
    (finding,) = find(FullPrecisionCompute, SLOW, device=device) or ()
    assert finding.saving is not None
    # Two steps of 8 ms of 32-bit products: a quarter, at most half.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, ms(4), ms(8))
    assert saving.basis == "heuristic"
    assert "whose rates are unknown" in finding.summary
    assert find(FullPrecisionCompute, FIXED, device=device) == ()


@pytest.mark.parametrize(
    "device",
    [
        Device(0, "NVIDIA GeForce GTX 1080", "gpu", vendor="nvidia", compute_capability="6.1"),
        Device(0, "Nvidia GPU (Pascal)", "gpu"),  # as in TensorFlow's overview
        Device(0, "ARTEMIS", "other"),
    ],
)
def test_devices_without_matrix_units_and_unknown_accelerators_are_left_alone(
    device: Device,
) -> None:
    assert find(FullPrecisionCompute, SLOW, device=device) == ()


def test_remedies_fit_the_generation_of_an_unknown_gpu() -> None:
    def texts(name: str) -> str:
        (finding,) = find(FullPrecisionCompute, SLOW, device=name) or ()
        return "".join(remedy.snippet for remedy in finding.remedies)

    assert "torch.bfloat16" not in texts("Nvidia GPU (Volta)")
    assert "torch.bfloat16" in texts("Nvidia GPU (Hopper)")


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
        return "".join(f"{remedy.text}\n{remedy.snippet}" for remedy in finding.remedies)

    assert "bfloat16" in snippets(H100)
    assert "set_float32_matmul_precision" in snippets(H100)
    # Volta's tensor cores only support float16 (NVIDIA, V100 architecture whitepaper).
    assert "torch.bfloat16" not in snippets("Tesla V100-SXM2-16GB")
    assert "GradScaler" in snippets("Tesla V100-SXM2-16GB")
    assert "set_float32_matmul_precision" not in snippets("Tesla V100-SXM2-16GB")
    # Turing, whose rates are not in the table.
    assert "torch.bfloat16" not in snippets("NVIDIA GeForce RTX 2070 SUPER")


@pytest.mark.corpus
def test_resnet50_on_a_v100_spends_two_thirds_in_32_bit_matrix_kernels(corpus: Path) -> None:
    report = analyze(corpus / "kineto/resnet50_num_workers_4")
    (finding,) = [f for f in report.findings if f.rule_id == "full-precision-compute"]
    # 68 % of kernel time, none of it on tensor cores (the golden file of PyTorch's own plugin
    # says 0.0 % of kernel time on tensor cores).
    said = re.search(r"([\d.]+) ms of each step .* compute, ([\d.]+) ms of it", finding.summary)
    assert said is not None
    assert float(said[2]) / float(said[1]) == pytest.approx(0.68, abs=0.03)
    by_units = next(table for table in finding.evidence if "tensor cores" in table.title)
    assert [(row[0], row[1]) for row in by_units.rows if row[0] != "not used"] == [
        ("used", 0),
        ("unknown", 0),
    ]


ON_TPU = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXssssss|XXXXssssss|
"""
ON_TPU_FIXED = """
    cell 1ms
    step  |.....|.....|
    main  |LSSSS|LSSSS|
    tpu 0 |XXXXs|XXXXs|
"""


def product(precision: str, dtype: str = "f32") -> dict[str, Symbol]:
    """A product as libtpu 0.0.52 writes it, in a fusion that does not name its precision."""
    array = f"{dtype}[4096,4096]{{1,0:T(8,128)}}"
    operands = f"{array} %x, {array} %w"
    attribute = f", operand_precision={{{precision},{precision}}}" if precision else ""
    return {
        "s": xla_op(
            "fusion",
            f"%fusion = {array} fusion({operands}), kind=kOutput, calls=%fused_computation",
            family=KernelFamily.MATMUL,
            precision=Precision.BITS_32 if attribute else Precision.BITS_16,
            product=f"%convolution.1 = {array} convolution({operands}), dim_labels=bf_io->bf"
            + attribute,
        )
    }


def test_the_highest_precision_takes_six_passes_on_a_tpu() -> None:
    checked = check_rule(
        FullPrecisionCompute,
        slow=draw(ON_TPU, legend=product("highest"), device="TPU v5e"),
        fixed=draw(ON_TPU_FIXED, legend=product(""), device="TPU v5e"),
        saves="5ms",
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.title == "Multiply 32-bit numbers in one pass"
    assert "6 passes of the matrix unit" in finding.summary
    # Five of six passes; 3 x 4,096 x 4,096 x 4 B need only 0.29 ms of memory time.
    assert checked.expected_ns == 5_000_000


def test_other_work_in_the_fusion_of_a_product_stays() -> None:
    legend = product("highest")
    legend["s"] = replace(
        legend["s"], hlo={**legend["s"].hlo, "inside_opcodes": "convolution exponential multiply"}
    )
    (finding,) = find(FullPrecisionCompute, ON_TPU, legend=legend, device="TPU v4") or ()
    assert finding.saving is not None
    # Of 6 ms in each of two steps, five passes go at best: 10 ms.
    assert finding.saving.high_ns == ms(10)
    # By its FLOP, a pass takes 2 x 4,096^3 / 275 TFLOP/s = 0.5 ms at the peak, so five of them
    # take 2.5 ms at least, and 5 ms in both steps; up to half more at the rate that is reached.
    assert ms(5) < finding.saving.expected_ns < ms(7.5)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, abs=4)


@pytest.mark.parametrize(
    ("precision", "dtype", "expected_ms"),
    [("high", "f32", 8), ("default", "f32", 0), ("", "f32", 0), ("highest", "bf16", 0)],
)
def test_passes_of_other_products(precision: str, dtype: str, expected_ms: int) -> None:
    legend = product(precision, dtype)
    findings = find(FullPrecisionCompute, ON_TPU, legend=legend, device="TPU v5e")
    # Two of three passes of 6 ms, in both steps.
    savings = [finding.saving.expected_ns for finding in findings or () if finding.saving]
    assert savings == ([ms(expected_ms)] if expected_ms else [])


WIDE = "f32[16384,1024]{1,0:T(8,128)}"
ON_CHIP = "f32[16384,1024]{1,0:T(8,128)S(1)}"


def exchanged(*, operand: str = "hidden", **columns: str) -> dict[str, Symbol]:
    """Two operations of a normalization, which wait for the memory; the second reads the first."""
    first = f"%hidden = {WIDE} fusion({WIDE} %x, {ON_CHIP} %copy-done), kind=kLoop"
    second = f"%result = {WIDE} fusion({WIDE} %{operand}), kind=kLoop"
    return {
        "X": xla_op("hidden", first, precision=Precision.BITS_32, traffic_bytes=2**27, **columns),
        "s": xla_op("result", second, precision=Precision.BITS_32, traffic_bytes=2**27, **columns),
    }


# Each operation reads and writes 2^26 B, which take 192.8 us at 85 % of 819 GB/s.
WAITING = """
    cell 32us
    step  |............|............|
    main  |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0 |XXXXXXssssss|XXXXXXssssss|
"""


def test_arrays_that_operations_exchange_take_half_of_the_bytes_in_16_bits() -> None:
    (finding,) = find(FullPrecisionCompute, WAITING, legend=exchanged(), device="TPU v5e") or ()
    assert finding.title == "Keep activations in 16 bits"
    assert finding.saving is not None
    # Half of the bytes of each operation are exchanged, and half of those go: a quarter of 192 us
    # each, in two steps. Half of that is expected: 2 x 2 x 24 us.
    assert finding.saving.low_ns == 0
    assert finding.saving.expected_ns == pytest.approx(96_000, rel=0.01)
    # At best the exchanged array stays on the chip, and half of the argument and of the result
    # goes: three quarters of 2 x 2 x 192 us.
    assert finding.saving.high_ns == pytest.approx(576_000, rel=0.01)


def test_arguments_and_results_may_have_to_stay_in_32_bits() -> None:
    legend = exchanged(operand="y")
    assert find(FullPrecisionCompute, WAITING, legend=legend, device="TPU v5e") == ()


def test_operations_that_compute_for_longer_do_not_wait_for_their_bytes() -> None:
    # 324 us are 1.7 times 192.8 us.
    slow = WAITING.replace("32us", "54us")
    assert find(FullPrecisionCompute, slow, legend=exchanged(), device="TPU v5e") == ()


@pytest.mark.parametrize(("source", "is_found"), [("bf16", False), ("f32", True)])
def test_arrays_that_are_widened_on_purpose_stay_wide(source: str, is_found: bool) -> None:
    narrow = WIDE.replace("f32", source)
    values = program(f"""
        %x = {narrow} parameter(0)
        %wide = {WIDE} convert({narrow} %x) // in hidden
        %square = {WIDE} multiply({WIDE} %wide, {WIDE} %wide) // in hidden
        %root = {WIDE} sqrt({WIDE} %square) // in result result
    """)
    trace = draw(WAITING, legend=exchanged(module=MODULE), device="TPU v5e")
    trace = replace(trace, programs=(values,))
    assert bool(find(FullPrecisionCompute, trace)) == is_found
