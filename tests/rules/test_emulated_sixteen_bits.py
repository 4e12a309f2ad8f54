from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.precision.wide_numbers import EmulatedSixteenBits
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, kernel, ms
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

V100 = "Tesla V100-SXM2-16GB"
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |oSSSSSSSSS|oSSSSSSSSS|
    gpu 7  |bbbbbbbbkk|bbbbbbbbkk|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |oSSSSS|oSSSSS|
    gpu 7  |hhhhkk|hhhhkk|
"""
LEGEND = {
    "b": kernel(
        "cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_16,
    ),
    "h": kernel(
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_16,
    ),
}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        EmulatedSixteenBits,
        slow=draw(SLOW, legend=LEGEND, device=V100),
        fixed=draw(FIXED, legend=LEGEND, device=V100),
        saves="4ms",
    )
    (finding,) = checked.findings
    # Half of 8 ms.
    assert checked.expected_ns == 4_000_000
    assert finding.summary == (
        "8.00 ms of each step (80.0 %) goes into products in bfloat16, which the Tesla"
        " V100-SXM2-16GB has no units for."
    )


@pytest.mark.parametrize("device", ["NVIDIA A100-SXM4-80GB", "An unknown device"])
def test_other_devices_are_left_alone(device: str) -> None:
    assert find(EmulatedSixteenBits, draw(SLOW, legend=LEGEND, device=device)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    trace = draw(SLOW, legend=LEGEND, device=V100)
    assert find(EmulatedSixteenBits, trace, settings={"minimum_share": 0.81}) == ()
    assert find(EmulatedSixteenBits, trace, settings={"minimum_share": 0.79})


def keras(*names: str) -> Trace:
    builder = TraceBuilder("tensorflow")
    for step in range(2):
        builder.step(step, ms(10 * step), ms(10 * step + 10))
        for number, name in enumerate(names):
            start = 10 * step + number
            builder.operator(name, ms(start), ms(start + 1), launches=False)
    return builder.build()


# As Keras 3 names them in a recording (`local-tf-cpu/keras_mixed_bf16`).
READ = "sequential/conv2d/convolution/Cast/ReadVariableOp:ReadVariableOp"
CAST = "sequential/conv2d/convolution/Cast:Cast"
BIAS = ("sequential/conv2d/Reshape/Cast/ReadVariableOp:ReadVariableOp",
        "sequential/conv2d/Reshape/Cast:Cast")  # fmt: skip


def test_a_policy_on_the_cpu() -> None:
    (finding,) = (
        find(EmulatedSixteenBits, keras(READ, CAST, *BIAS, "sequential/Conv2D:Conv2D")) or ()
    )
    assert "casts the weights of one layer to 16 bits" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (("sequential/conv2d",),)
    assert (finding.saving, finding.severity) == (None, "medium")


@pytest.mark.parametrize(
    "names",
    [
        (READ, "sequential/Conv2D:Conv2D"),  # 32 bits: nothing to cast
        (CAST, "loss/Cast_1:Cast"),  # of no variable
        (READ, CAST, "sequential/conv2d:_MklNativeConv2D"),  # oneDNN has kernels for 16 bits
    ],
)
def test_what_is_no_policy_is_left_alone(names: tuple[str, ...]) -> None:
    assert find(EmulatedSixteenBits, keras(*names)) == ()


def test_a_recorded_policy_on_the_cpu(corpus: Path) -> None:
    mixed = analyze(corpus / "local-tf-cpu/keras_mixed_bf16")
    (finding,) = (f for f in mixed.findings if f.rule_id == "emulated-sixteen-bits")
    # gen_tf.py: two convolutions and a dense layer.
    assert "the weights of 3 layers" in finding.summary
    for name in ("keras_prefetch_fast", "keras_slow_input", "custom_loop_trace_steps"):
        report = analyze(corpus / "local-tf-cpu" / name)
        assert all(f.rule_id != "emulated-sixteen-bits" for f in report.findings)
