from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.machine.facts import Facts, Machine
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


def products(dtype: str, sets: tuple[str, ...] | None) -> Trace:
    """Half of each step is a product on the CPU."""
    builder = TraceBuilder()
    for step in range(2):
        begin = ms(20 * step)
        builder.step(step, begin, begin + ms(20))
        builder.operator(
            "aten::mm", begin, begin + ms(10), launches=False, dtypes=(dtype, dtype),
            shapes=((512, 512), (512, 512)),
        )  # fmt: skip
        builder.operator("aten::add", begin + ms(10), begin + ms(20), launches=False)
    return replace(builder.build(), facts=Facts(machine=Machine(instruction_sets=sets)))


@pytest.mark.parametrize(
    ("dtype", "sets", "severity"),
    [
        ("c10::BFloat16", None, "low"),
        ("c10::BFloat16", ("avx2", "avx512f"), "medium"),
        ("c10::BFloat16", ("avx512_bf16",), None),
        ("c10::Half", None, "low"),
        ("c10::Half", ("avx512_bf16",), "by its saving"),
        ("c10::Half", ("avx512_bf16", "avx512_fp16"), None),
        ("float", ("avx2",), None),
    ],
)
def test_products_on_a_processor_without_instructions(
    dtype: str, sets: tuple[str, ...] | None, severity: str | None
) -> None:
    found = find(EmulatedSixteenBits, products(dtype, sets)) or ()
    severities = [finding.severity or "by its saving" for finding in found]
    assert severities == ([severity] if severity else [])
    assert all("10.0 ms of each step (50.0 %)" in finding.summary for finding in found)


@pytest.mark.parametrize(
    ("rows", "measured"),
    [(256, 0.87), (4, 0.31)],  # bench_layout.py and bench_batch_decode.py, in bfloat16
)
def test_float16_saves_what_bfloat16_was_measured_to_save(rows: int, measured: float) -> None:
    # Of the steps of two programs of one model, 95 and 60 % are products of these sizes, the rest
    # attention and what stays.
    builder = TraceBuilder()
    product_ns = round(ms(10) * (0.95 if rows == 256 else 0.60))
    for step in range(2):
        begin = ms(10 * step)
        builder.step(step, begin, begin + ms(10))
        builder.operator(
            "aten::mm", begin, begin + product_ns, launches=False, dtypes=("c10::Half",) * 2,
            shapes=((rows, 384), (384, 16384)),
        )  # fmt: skip
        builder.operator("aten::add", begin + product_ns, begin + ms(10), launches=False)
    machine = Machine(instruction_sets=("avx512_bf16",))
    (finding,) = (
        find(EmulatedSixteenBits, replace(builder.build(), facts=Facts(machine=machine))) or ()
    )
    saving = finding.saving
    assert saving is not None
    assert saving.low_ns <= measured * 2 * ms(10) <= saving.high_ns
    assert abs(saving.expected_ns - measured * 2 * ms(10)) < 0.1 * 2 * ms(10)


@pytest.mark.corpus
def test_bfloat16_that_is_eleven_times_slower(corpus: Path) -> None:
    report = analyze(corpus / "local-torch2.13-cpu/mlp_bf16_autocast")
    # Raw events: 15 aten::mm of 83.72 ms in each step of 109.56 ms, all of BFloat16.
    assert report.findings[0].rule_id == "emulated-sixteen-bits"
    # The other products are aten::addmm.
    assert "(93.9 %) goes into products of 16-bit numbers" in report.findings[0].summary
    assert report.findings[0].severity == "medium"
