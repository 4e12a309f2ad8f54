from __future__ import annotations

import math

import pytest

from tb_perfadvisor.advice import advise
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.precision.matrix_products import Fp8Opportunity
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.workload.fit import fitting
from tb_perfadvisor.signals.workload.workload import Fact, Part, Workload
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of, us
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import KernelFamily, Precision, Trace
from tests.support.server_trace import Served, server_trace

H100 = "NVIDIA H100 80GB HBM3"
# As recorded: tracelens/h100/Qwen; github.com/NVIDIA/TransformerEngine/issues/1391.
IN_16_BITS = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
IN_FP8 = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1"
M, N, K = 16384, 16384, 8192
BYTES_PER_NS = 3.352e3 * 0.85


def at_best_ns(peak: float, item_bytes: int) -> float:
    """The large product: 256 x 256 tiles of 64 x 64 keep 132 multiprocessors busy for 496.5 waves.

    Its results have 16 bits, and half of them are written while it computes.
    """
    compute_ns = 2 * M * N * K / (peak * 0.90) * 497 / (256**2 / 132)
    reads_ns = item_bytes * (M * K + K * N) / BYTES_PER_NS
    half_ns = M * N / BYTES_PER_NS
    return 4_000 + math.hypot(compute_ns, reads_ns + half_ns) + half_ns


# 5.05 ms of the 8 ms that it takes in bf16.
AT_BEST_NS = at_best_ns(989.4e3, 2)


def product(dtype: str = "c10::BFloat16", name: str = IN_16_BITS) -> dict[str, Symbol]:
    width = Precision.BITS_8 if name == IN_FP8 else Precision.BITS_16
    shapes = f"[[{M},{K}],[{K},{N}]]"
    return {
        "v": operator("aten::mm", shapes=shapes, dtypes=f"{dtype};{dtype}"),
        "t": kernel(name, family=KernelFamily.MATMUL, precision=width, tensor_cores=1),
        "q": kernel(IN_FP8, family=KernelFamily.MATMUL, precision=Precision.BITS_8, tensor_cores=1),
    }


SLOW = """
    cell 1ms
    step   |........|........|
    main   |vSSSSSSS|vSSSSSSS|
    gpu 7  |tttttttt|tttttttt|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |vSSSSS|vSSSSS|
    gpu 7  |qqqqqq|qqqqqq|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        Fp8Opportunity, slow=SLOW, fixed=FIXED, saves="2ms", exactly=False, scales=False,
        legend=product(), device=H100,
    )  # fmt: skip
    (finding,) = checked.findings
    assert finding.saving is not None
    # About half of the time, and the casts: each operand takes part in two products, 3 bytes a
    # number, at 0.85 of 3.352 TB/s.
    casts_ns = 3 * (M * K + K * N) / 2 / BYTES_PER_NS
    high_ns = 2 * (8e6 * (1 - at_best_ns(1978.9e3, 1) / AT_BEST_NS) - casts_ns)
    assert finding.saving.high_ns == pytest.approx(high_ns, rel=1e-3)
    assert finding.saving.expected_ns == pytest.approx(high_ns / 2, rel=1e-3)
    assert (finding.saving.low_ns, finding.saving.basis) == (0, "heuristic")
    assert "take 8.00 ms of each step." in finding.summary
    assert "2.0 times as fast in fp8 (1,979 TFLOP/s)" in finding.summary


def test_a_program_in_16_bits_is_healthy() -> None:
    # It may save a fifth of the step, but nothing is wrong.
    analysis = analyze_run(run_of(draw(SLOW, legend=product(), device=H100)), Config())
    (entry,) = [entry for entry in analysis.findings if entry.rule.id == "fp8-opportunity"]
    assert entry.finding.saving is not None
    assert entry.finding.saving.expected_ns > 0.15 * analysis.signals.attribution.window_ns
    assert entry.severity == "low"
    assert analysis.headline.endswith(", at the cost of accuracy")


@pytest.mark.parametrize(
    ("device", "fires"),
    [
        (H100, True),
        ("AMD Instinct MI300X", True),
        ("NVIDIA L40S", True),
        ("NVIDIA A100-SXM4-80GB", False),  # has no fp8
        ("AMD Instinct MI210", False),
    ],
)
def test_only_where_the_device_has_fp8(device: str, fires: bool) -> None:
    # Slower devices are nearer to their rooflines.
    found = find(Fp8Opportunity, SLOW, legend=product(), device=device)
    assert found is not None
    assert bool(found) == fires


@pytest.mark.parametrize("dtype", ["float", "c10::Float8_e4m3fn"])
def test_only_in_16_bits(dtype: str) -> None:
    assert find(Fp8Opportunity, SLOW, legend=product(dtype), device=H100) == ()


def test_a_program_that_multiplies_in_fp8_has_chosen() -> None:
    # 1 of 8 ms is fp8: above a tenth.
    trace = """
        cell 1ms
        step   |........|........|
        main   |v'SSSSSS|v'SSSSSS|
        gpu 7  |tttttttq|tttttttq|
    """
    assert find(Fp8Opportunity, trace, legend=product(), device=H100) == ()
    settings = {"maximum_fp8_share": 0.13}
    assert find(Fp8Opportunity, trace, legend=product(), device=H100, settings=settings)


@pytest.mark.parametrize(
    ("settings", "fires"),
    [
        # The product reaches 5.05 of 8 ms: 0.63.
        ({"minimum_achieved_share": AT_BEST_NS / 8e6 + 0.01}, False),
        ({"minimum_achieved_share": AT_BEST_NS / 8e6 - 0.01}, True),
        # fp8 is twice as fast.
        ({"minimum_ratio": 2.1}, False),
        ({"minimum_ratio": 1.9}, True),
        ({"minimum_duration_ns": 8.1e6}, False),
        ({"minimum_duration_ns": 7.9e6}, True),
    ],
)
def test_just_below_and_just_above_the_limits(settings: dict[str, float], fires: bool) -> None:
    found = find(Fp8Opportunity, SLOW, legend=product(), device=H100, settings=settings)
    assert bool(found) == fires


def test_the_share_of_the_step_counts() -> None:
    # 8 of 16 ms.
    trace = SLOW.replace("........|", "................|").replace(
        "|vSSSSSSS|vSSSSSSS|", "|vSSSSSSSooSSSSSS|vSSSSSSSooSSSSSS|"
    )
    trace = trace.replace("|tttttttt|tttttttt|", "|ttttttttKKKKKKKK|ttttttttKKKKKKKK|")
    below, above = {"minimum_share": 0.49}, {"minimum_share": 0.51}
    assert find(Fp8Opportunity, trace, legend=product(), device=H100, settings=below)
    assert find(Fp8Opportunity, trace, legend=product(), device=H100, settings=above) == ()


def forward_only(name: str, rows: int, *, batch: tuple[int, ...] = ()) -> Trace:
    """40 products in 40 operators without a backward pass; a few rows are memory bound."""
    builder = TraceBuilder().device(H100).step(0, 0, ms(40))
    shapes = [[*batch, rows, 8192], [*batch, 8192, 8192]]
    for number in range(40):
        start = ms(number)
        name_of_operator = "aten::bmm" if batch else "aten::mm"
        builder.operator(
            name_of_operator if rows else "aten::add", start, start + us(10), shapes=shapes,
            dtypes=["c10::BFloat16", "c10::BFloat16"],
        )  # fmt: skip
        builder.kernel(
            name, start + us(10), start + us(70), family=KernelFamily.MATMUL,
            precision=Precision.BITS_16, tensor_cores=1,
        )  # fmt: skip
    return builder.build()


def found(trace: Trace) -> tuple[Finding, ...]:
    rule = Fp8Opportunity({"minimum_share": 0.05})
    return tuple(rule.check(Signals(run_of(trace))))


def test_in_inference_weights_take_half_the_bytes() -> None:
    # 4 microseconds to start, and 47 to read 8192 x 8192 weights in 16 bits at 0.85 of 3.352 TB/s:
    # 51 of 60. In 8 bits, 28 remain.
    (finding,) = found(forward_only(IN_16_BITS, rows=8))
    assert finding.saving is not None
    # Less 3 bytes for each of 8 x 8192 activations: 0.07 microseconds.
    assert finding.saving.high_ns == pytest.approx(40 * (60e3 * (1 - 27.64 / 51.22) - 69), rel=2e-3)


def test_in_gpu_graphs_the_shapes_are_unknown() -> None:
    (finding,) = found(forward_only(IN_16_BITS, rows=0))
    assert finding.saving is not None
    assert finding.saving.high_ns == 40 * 30_000


def test_products_whose_weights_are_quantized_are_left_alone() -> None:
    name = "void marlin::Marlin<1125899906909960l, 1125899907892224l, 128, 1, 8, 4>(int4 const*"
    assert found(forward_only(name, rows=8)) == ()
    assert found(forward_only("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1", rows=8)) == ()


def test_batched_products_are_left_alone() -> None:
    assert found(forward_only(IN_16_BITS, rows=8, batch=(2,))) == ()


def advice(*parts: Part) -> str:
    (remedy,) = fitting(advise("fp8"), Workload("pytorch", tuple(Fact(part, "") for part in parts)))
    return remedy.snippet or remedy.text


def test_training_and_inference_differ_in_what_to_do() -> None:
    assert "convert_to_float8_training" in advice(Part.TRAINING)
    assert "--fp8-format" in advice(Part.TRAINING, Part.MEGATRON)
    assert "quantize_(model" in advice(Part.FORWARD_ONLY)
    assert "--quantization fp8" in advice(Part.FORWARD_ONLY, Part.SERVER, Part.VLLM)
    assert "pipe.transformer" in advice(Part.FORWARD_ONLY, Part.DIFFUSERS)
    # Unknown programs get both, in words.
    assert advice().startswith("If the accuracy allows it")


def test_decode_steps_read_weights_of_half_the_size() -> None:
    trace = server_trace([Served(decodes=8)] * 4)
    (found,) = find(Fp8Opportunity, trace) or ()
    assert found.summary.endswith(
        "Steps that only generate tokens read all weights to compute little with them, and in fp8"
        " weights are half as large. Fp8 costs accuracy, which a profile does not show."
    )
