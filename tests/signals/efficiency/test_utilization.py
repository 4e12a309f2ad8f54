"""MFU and HFU of programs whose FLOP are worked out by hand."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.efficiency.utilization import Utilization, utilization
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import KernelFamily
from tests.support.program_values import SLOW, drawn, program
from tests.support.transformer import GEMM, H100, Drawing, Shape

# NVIDIA, H100 data sheet, SXM5: dense bf16, and half of that in tf32.
BF16, TF32 = 989.4e12, 494.7e12
STEP_NS = ms(2)
# Matrices of a layer: queries and output 2 x 512 x 512, keys and values 2 x 512 x 128, feed-forward
# 3 x 512 x 1408; two layers; and the head, 512 x 32,000.
LAYER = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1408
N = 2 * LAYER + 512 * 32_000
D = 2 * 1024
# Scores and values: 2 x 2 FLOP for each pair of positions and each of 512 dimensions of all heads.
ATTENTION = 4 * 2 * 1024 * 1024 * 512


def use(drawing: Drawing | TraceBuilder, options: Options | None = None) -> Utilization:
    builder = drawing.builder if isinstance(drawing, Drawing) else drawing
    return utilization(Signals(run_of(builder.build()), options=options))


def training() -> Drawing:
    drawing = Drawing(Shape())
    drawing.builder.step(0, 0, STEP_NS)
    drawing.step()
    assert drawing.at_ns <= STEP_NS
    return drawing


def test_a_transformer_takes_six_flop_per_parameter_and_token_and_its_attention() -> None:
    found = use(training())
    # Backward computes each product twice, and attention, too.
    model = 6 * N * D + 3 * 2 * ATTENTION
    # Causal kernels skip half; backward has five products instead of two forward.
    executed = 6 * N * D + 2 * (0.5 + 0.5 * 2.5) * ATTENTION
    assert (found.model_flop, found.executed_flop) == (model, executed)
    assert found.mfu == pytest.approx(model / (BF16 * 2e-3))
    assert found.hfu == pytest.approx(executed / (BF16 * 2e-3))
    assert (found.peak_flop_per_s, found.devices, found.reason) == (pytest.approx(BF16), 1, "")


def test_recomputation_counts_as_executed_only() -> None:
    drawing = training()
    checkpoint = drawing.at_ns
    drawing.at_ns += us(1)
    drawing.attention()
    end = drawing.at_ns + us(1)
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    drawing.builder.operator(node, checkpoint, end, launches=False)
    plain, found = use(training()), use(drawing)
    assert found.model_flop == plain.model_flop
    assert found.executed_flop == (plain.executed_flop or 0) + 0.5 * ATTENTION


def test_several_steps_and_work_outside_of_them() -> None:
    drawing = training()
    for number in (1, 2):
        drawing.at_ns = number * STEP_NS
        drawing.builder.step(number, drawing.at_ns, drawing.at_ns + STEP_NS)
        drawing.step()
    plain, found = use(training()), use(drawing)
    assert (found.model_flop, found.mfu) == (plain.model_flop, pytest.approx(plain.mfu))
    drawing.at_ns = 3 * STEP_NS
    drawing.linear(512, 512)
    assert use(drawing).model_flop == plain.model_flop


def test_the_peak_is_weighted_by_the_flop_of_each_format() -> None:
    drawing = Drawing(Shape())
    drawing.builder.step(0, 0, STEP_NS)
    drawing.linear(512, 32_000)
    drawing.dtype = "float"
    drawing.linear(512, 32_000)
    found = use(drawing)
    # The same FLOP take twice as long in tf32.
    flop = 2 * 512 * 32_000 * D
    assert found.mfu == pytest.approx((flop / BF16 + flop / TF32) / 2e-3)
    assert found.peak_flop_per_s == pytest.approx(2 / (1 / BF16 + 1 / TF32))


def test_operators_that_launch_nothing_do_not_count() -> None:
    drawing = training()
    shapes = [[4096, 4096], [4096, 4096]]
    drawing.builder.operator(
        "aten::mm", us(1), us(2), thread="shapes", shapes=shapes, dtypes=["float"] * 2,
        launches=False,
    )  # fmt: skip
    assert use(drawing).model_flop == use(training()).model_flop


def test_an_operator_inside_another_one_counts_once() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(1))
    builder.operator(
        "aten::linear", 0, us(20), launches=False,
        shapes=[[4, 128, 64], [256, 64]], dtypes=["c10::Half"] * 2,
    )  # fmt: skip
    builder.operator("aten::mm", 0, us(10), shapes=[[512, 64], [64, 256]], dtypes=["c10::Half"] * 2)
    builder.kernel(GEMM, us(10), us(20), family=KernelFamily.MATMUL)
    assert use(builder).model_flop == 2 * 512 * 64 * 256


def test_unknown_if_kernels_with_products_have_no_shapes() -> None:
    drawing = training()
    kernels = drawing.at_ns // us(20)  # one in each pair of cells, and none of them is longer
    share = (kernels - 1) / (kernels - 1 + 3)  # the embedding is no product
    drawing.builder.operator("vllm::unified_attention", drawing.at_ns, drawing.at_ns + us(5))
    at = drawing.at_ns + us(5)
    drawing.builder.kernel("kernel_unified_attention_2d", at, at + us(30),
                           family=KernelFamily.ATTENTION)  # fmt: skip
    found = use(drawing)
    assert (found.mfu, found.hfu, found.model_flop) == (None, None, None)
    assert f"only {share:.1%}".replace("%", " %") in found.reason
    assert found.remedy == "Kernels that the server brings along for its products have no formula."


def test_unknown_without_shapes() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(1)).operator("aten::mm", 0, us(10))
    found = use(builder.kernel(GEMM, us(10), us(20), family=KernelFamily.MATMUL))
    assert found == Utilization(
        reason="The shapes of the operators were not recorded.",
        reason_in_short="no shapes recorded",
        remedy="Record with record_shapes=True.",
    )


def test_unknown_without_the_device_or_its_peak() -> None:
    drawing = Drawing(Shape())
    drawing.builder = TraceBuilder().device("A device nobody knows").step(0, 0, STEP_NS)
    drawing.linear(512, 512)
    found = use(drawing)
    assert (found.mfu, found.model_flop) == (None, 2 * 512 * 512 * D)
    assert found.remedy == "Name the device with --device."
    chosen = use(drawing, Options(device="NVIDIA H100 80GB HBM3"))
    assert chosen.mfu == pytest.approx(2 * 512 * 512 * D / (BF16 * 2e-3))


def test_unknown_on_the_cpu_but_for_its_flop() -> None:
    builder = TraceBuilder().step(0, 0, ms(1))
    shapes = [[64, 128], [128, 32]]
    builder.operator("aten::mm", 0, us(10), shapes=shapes, dtypes=["float"] * 2, launches=False)
    found = use(builder)
    assert (found.mfu, found.model_flop) == (None, 2 * 64 * 128 * 32)
    assert found.reason == "The peak rate of the CPU is unknown."


@pytest.mark.parametrize(("late_us", "step_us"), [(0, 300), (150, 360)])
def test_a_step_ends_with_the_work_that_it_launched(late_us: int, step_us: int) -> None:
    builder = TraceBuilder().device(H100).step(0, 0, us(300))
    shapes = [[2048, 512], [512, 512]]
    for number in range(10):
        start = us(20 * number)
        builder.operator(
            "aten::mm", start, start + us(10), shapes=shapes, dtypes=["c10::BFloat16"] * 2,
            key=str(number),
        )  # fmt: skip
        # Late kernels start 160 to 340 us after the step begins. The last one ends at 360.
        at = start + us(10 + late_us)
        builder.kernel(GEMM, at, at + us(20), family=KernelFamily.MATMUL, launched_by=str(number))
    found = use(builder)
    assert found.model_flop == 10 * 2 * 2048 * 512 * 512
    assert found.mfu == pytest.approx(found.model_flop / (BF16 * step_us * 1e-6))


# --- XLA ------------------------------------------------------------------------------------------

V6E_BF16 = 918e12  # Google Cloud, TPU v6e: peak compute per chip
DOT = (
    "%dot.1 = bf16[2048,512]{1,0} dot(bf16[2048,512]{1,0} %a, bf16[512,512]{1,0} %b), "
    "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
)


def xla(*, path: str = "jit(step)/dot_general", extra_flop: float = 0.0) -> TraceBuilder:
    builder = TraceBuilder("jax").device("TPU v6 lite", kind="tpu").step(0, 0, us(100))
    flop = 2.0 * 2048 * 512 * 512 + extra_flop
    return builder.xla_op(
        "dot.1", 0, us(50), text=DOT, family=KernelFamily.MATMUL, flop=flop,
        traffic_bytes=5e6, path=path, precision=2,
    )  # fmt: skip


def test_an_xla_program_by_the_flop_of_its_profile() -> None:
    # A fusion also adds and scales: 1 % of its FLOP here. HFU counts that; the model does not.
    flop = 2.0 * 2048 * 512 * 512
    found = use(xla(extra_flop=0.01 * flop))
    assert found.model_flop == pytest.approx(flop)
    assert found.executed_flop == pytest.approx(1.01 * flop)
    assert found.mfu == pytest.approx(flop / (V6E_BF16 * 100e-6))


def test_what_xla_recomputes_is_not_the_models() -> None:
    found = use(xla(path="jit(step)/rematted_computation/dot_general"))
    assert (found.model_flop, found.mfu) == (0, 0)
    assert found.executed_flop == 2.0 * 2048 * 512 * 512


ATTENTION_CALL = (
    "%attention.1 = bf16[8,1024,128]{2,1,0} custom-call(bf16[8,1024,128]{2,1,0} %q), "
    'custom_call_target="tpu_custom_call"'
)


def test_a_small_kernel_of_the_programs_own_hardly_matters() -> None:
    flop = 2.0 * 2048 * 512 * 512
    builder = xla().xla_op(
        "attention.1", us(50), us(51), text=ATTENTION_CALL, family=KernelFamily.ATTENTION,
        flop=0.01 * flop, traffic_bytes=1e6, precision=2,
    )  # fmt: skip
    assert use(builder).model_flop == pytest.approx(1.01 * flop)


def test_attention_of_the_programs_own_has_unknown_model_flop() -> None:
    builder = xla().xla_op(
        "attention.1", us(50), us(90), text=ATTENTION_CALL, family=KernelFamily.ATTENTION, flop=1e9,
        traffic_bytes=1e6, precision=2,
    )  # fmt: skip
    found = use(builder)
    assert (found.mfu, found.model_flop) == (None, None)
    assert found.hfu == pytest.approx((2.0 * 2048 * 512 * 512 + 1e9) / (V6E_BF16 * 100e-6))
    assert "fused attention" in found.reason


def test_products_launched_before_the_steps_are_not_called_missing() -> None:
    builder = TraceBuilder(has_shapes=True).device(H100)
    halves = ["c10::BFloat16"] * 2
    shapes = [[64, 64], [64, 64]]
    builder.operator("aten::mm", 0, us(10), shapes=shapes, dtypes=halves, launches=False)
    builder.launch(us(2), us(8), key="product")
    builder.step(0, ms(1), ms(3))
    builder.kernel(GEMM, us(10), ms(3), family=KernelFamily.MATMUL, launched_by="product")
    found = use(builder)
    assert (found.mfu, found.reason_in_short) == (None, "work outside the steps")
    assert found.reason == "The products that run in the steps were launched before them."


def test_products_without_any_shape() -> None:
    builder = TraceBuilder(has_shapes=True).device(H100)
    builder.operator("aten::add", 0, us(10), shapes=[[8], [8]], dtypes=["float", "float"])
    builder.step(0, 0, ms(3))
    builder.launch(us(20), us(30), name="cudaGraphLaunch", key="graph")
    builder.kernel(GEMM, us(30), ms(3), family=KernelFamily.MATMUL, launched_by="graph")
    found = use(builder)
    assert (found.mfu, found.reason_in_short) == (None, "no shapes of products")
    assert found.reason == (
        "The profile does not give the shapes of matrix products and attention."
    )
    assert found.remedy == (
        "Kernels of GPU graphs have no shapes. Record some steps without graphs, with"
        " record_shapes=True."
    )


def test_products_of_transformer_engine_2_have_no_shapes() -> None:
    builder = TraceBuilder(has_shapes=True).device(H100)
    builder.step(0, 0, ms(3))
    halves = ["c10::BFloat16"] * 2
    builder.operator(
        "_LayerNormLinear", 0, us(10), shapes=[[64, 64], [64]], dtypes=halves, key="linear"
    )
    builder.kernel(GEMM, us(10), ms(3), family=KernelFamily.MATMUL, launched_by="linear")
    found = use(builder)
    assert (found.mfu, found.reason_in_short) == (None, "no shapes of products")
    assert found.remedy == (
        "_LayerNormLinear launches its products without an operator, as in Transformer Engine 2,"
        " so no profile has their shapes."
    )


def test_all_products_that_xla_fuses_are_the_models() -> None:
    x, w = "bf16[2048,512]{1,0:T(8,128)(2,1)}", "bf16[512,512]{1,0:T(8,128)(2,1)}"
    dot = f"dot({x} %left, {w} %weights), lhs_contracting_dims={{1}}"
    both = program(f"""
        %x = {x} parameter(0)
        %w = {w} parameter(1)
        %up = {x} {dot.replace("%left", "%x").replace("%weights", "%w")} // in fused
        %down = {x} {dot.replace("%left", "%up").replace("%weights", "%w")} // in fused result
    """)
    flop = 2 * 2.0 * 2048 * 512 * 512
    trace = drawn(
        SLOW, f"%fused = {x} fusion({x} %x, {w} %w), kind=kOutput", both, flop=1.01 * flop,
        traffic_bytes=5e6, product=f"%up = {x} {dot}", family=KernelFamily.MATMUL, precision=2,
    )  # fmt: skip
    found = utilization(Signals(run_of(trace)))
    # Per step, in which it runs once. With the first product alone, it was half of it.
    assert found.model_flop == pytest.approx(flop, rel=1e-3)
    assert found.executed_flop == pytest.approx(1.01 * flop, rel=1e-3)
