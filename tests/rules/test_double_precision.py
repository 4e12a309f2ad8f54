from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.precision.wide_numbers import DoublePrecision
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

# segment-anything-fast's asdf_True_10b61b2f has this kernel, in 64 and in 32 bits.
RESIZE = "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<{0}, {0}>(int, {0}"
LEGEND = {
    "d": kernel(RESIZE.format("double"), precision=Precision.BITS_64),
    "f": kernel(RESIZE.format("float"), precision=Precision.BITS_32),
    "M": kernel(  # a 64-bit product, as named on Volta
        "volta_dgemm_64x64_nn", family=KernelFamily.MATMUL, precision=Precision.BITS_64
    ),
}
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |oSSSSSSSSS|oSSSSSSSSS|
    gpu 7  |KKKKKKdddd|KKKKKKdddd|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |oSSSSSSS|oSSSSSSS|
    gpu 7  |KKKKKKff|KKKKKKff|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(DoublePrecision, slow=SLOW, fixed=FIXED, saves="2ms", legend=LEGEND)
    assert checked.expected_ns == 2_000_000
    assert "40.0 % of all compute" in checked.findings[0].summary


def test_matrix_kernels_save_by_the_ratio_of_the_peaks() -> None:
    text = SLOW.replace("d", "M")
    (finding,) = find(DoublePrecision, text, legend=LEGEND, device="Tesla T4") or ()
    assert finding.saving is not None
    # NVIDIA, T4 data sheet: 8.1 TFLOP/s in fp32; Turing reaches 1/32 of that in fp64. Where the
    # hardware table has no fp64 peak, half of the time is saved.
    assert finding.saving.high_ns in (8_000_000 // 2, pytest.approx(8e6 * (1 - 1 / 32), rel=0.02))
    (volta,) = find(DoublePrecision, text, legend=LEGEND, device="Tesla V100-SXM2-16GB") or ()
    assert volta.saving is not None
    assert volta.saving.high_ns == pytest.approx(8e6 * (1 - 7.8 / 15.7), rel=0.01)


def test_64_bit_programs_pass() -> None:
    text = SLOW.replace("KKKKKKdddd", "KKddddMMMM")
    assert find(DoublePrecision, text, legend=LEGEND) == ()


def test_narrower_types_pass() -> None:
    assert find(DoublePrecision, FIXED, legend=LEGEND) == ()


def test_fires_only_beyond_the_limits() -> None:
    # 40 % of the step, and of compute.
    for name, fires_at, passes_at in (
        ("minimum_share", 0.39, 0.41),
        ("maximum_compute_share", 0.41, 0.39),
    ):
        assert find(DoublePrecision, SLOW, legend=LEGEND, settings={name: fires_at})
        assert find(DoublePrecision, SLOW, legend=LEGEND, settings={name: passes_at}) == ()


def on_the_cpu(
    operators: Sequence[tuple[str, int]], *, dtype: str = "double", other_us: int = 1000
) -> Trace:
    """Three steps on the CPU: operators one after the other, and one on 32-bit numbers."""
    length = sum(each for _, each in operators) + other_us
    builder = TraceBuilder()
    for number in range(3):
        at = number * length
        builder.step(number, us(at), us(at + length))
        for name, operator_us in operators:
            shapes, types = [[64, 64], [64, 64]], [dtype] * 2
            until = us(at + operator_us)
            builder.operator(name, us(at), until, shapes=shapes, dtypes=types, launches=False)
            at += operator_us
        builder.annotation("Optimizer.step#Adam.step", us(at), us(at + other_us))
        until = us(at + other_us)
        builder.operator(
            "aten::sort", us(at), until, shapes=[[9]], dtypes=["float"], launches=False
        )
    return builder.build()


def test_saves_what_32_bits_save_on_the_cpu() -> None:
    # A product of 4 ms keeps 50 %, a convolution of 4 ms 35 %, and an addition of 2 ms 50 %.
    checked = check_rule(
        DoublePrecision,
        slow=on_the_cpu(
            [("aten::mm", 4000), ("aten::_slow_conv2d_forward", 4000), ("aten::add", 2000)],
            other_us=10_000,
        ),
        fixed=on_the_cpu(
            [("aten::mm", 2000), ("aten::_slow_conv2d_forward", 1400), ("aten::add", 1000)],
            dtype="float",
            other_us=10_000,
        ),
        saves="5600us",
        scales=False,  # what is shorter than 20 us does not count
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.low_ns == 3 * us(0.35 * 4000 + 0.5 * 4000 + 0.25 * 2000)
    assert finding.saving.expected_ns == 3 * us(0.5 * 4000 + 0.65 * 4000 + 0.5 * 2000)
    assert finding.saving.high_ns == 3 * us(0.6 * 4000 + 0.75 * 4000 + 0.75 * 2000)


def test_a_program_that_computes_mostly_in_64_bits_on_the_cpu_does_so_on_purpose() -> None:
    # Half of the compute, and a little more.
    assert find(DoublePrecision, on_the_cpu([("aten::mm", 1000)]))
    assert find(DoublePrecision, on_the_cpu([("aten::mm", 1001)])) == ()


@pytest.mark.parametrize(
    "trace",
    [
        on_the_cpu([("aten::mm", 4000)], dtype="float"),
        on_the_cpu([("aten::mm", 19)] * 400),
        on_the_cpu([("aten::mm", 500)], other_us=9500),  # 2.5 %
    ],
    ids=["32 bits", "tiny operators", "few operators"],
)
def test_says_nothing_on_the_cpu_where_little_would_be_saved(trace: Trace) -> None:
    assert find(DoublePrecision, trace) == ()


@pytest.mark.corpus
def test_finds_masks_resized_in_64_bits(corpus: Path) -> None:
    report = analyze(corpus / "sam-fast/asdf_True_10b61b2f")
    (finding,) = [f for f in report.findings if f.rule_id == "double-precision"]
    assert finding.severity == "low"
    # Half of the resizing kernels in that recording work in 64 bits.
    assert "aten::upsample_bilinear2d" in str(finding.evidence[0])
