from __future__ import annotations

from tb_perfadvisor.rules.compute.bias_before_batch_norm import BiasBeforeBatchNorm
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily, Trace

# Prefixes of kernel names in HolisticTraceAnalysis' nccl_parser_config (A100, PyTorch 2).
CONVOLUTION = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>"
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float"
NODE = "autograd::engine::evaluate_function: ConvolutionBackward0"
IMAGES, WEIGHT = [32, 64, 56, 56], [128, 64, 3, 3]


def trace(*, bias: bool, normalization: str = "aten::batch_norm", channels: int = 128) -> Trace:
    builder = TraceBuilder()
    length = ms(10 if bias else 7)
    for step in range(2):
        start = length * step
        builder.step(step, start, start + length)
        convolution = f"convolution {step}"
        builder.operator(
            "aten::convolution",
            start,
            start + us(40),
            shapes=[IMAGES, WEIGHT, [128] if bias else []],
            key=convolution,
            launches=False,
        )
        # Batch norm counts batches with an operator on a scalar.
        builder.operator("aten::add_", start + us(45), start + us(48), shapes=[[], [], []])
        output = [32, channels, 56, 56]
        builder.operator(normalization, start + us(50), start + us(60), shapes=[output, [128]])
        node = start + us(70)
        builder.operator(NODE, node, node + us(50), forward=convolution, launches=False)
        work = [
            ("aten::cudnn_convolution", start, CONVOLUTION, KernelFamily.CONVOLUTION, 3),
            ("aten::add_", start + us(20), ADD, KernelFamily.ELEMENTWISE, 2),
            ("aten::convolution_backward", node, CONVOLUTION, KernelFamily.CONVOLUTION, 4),
            ("aten::sum", node + us(20), SUM, KernelFamily.REDUCTION, 1),
        ]
        ends = start
        for name, begin, kernel, family, duration in work if bias else work[::2]:
            builder.operator(name, begin, begin + us(10), key=f"{name} {step}")
            ends += ms(duration)
            builder.kernel(
                kernel, ends - ms(duration), ends, launched_by=f"{name} {step}", family=family
            )
        builder.synchronize(node + us(60), start + length)
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        BiasBeforeBatchNorm, slow=trace(bias=True), fixed=trace(bias=False), saves="3ms"
    )
    assert checked.expected_ns == 3_000_000
    (finding,) = checked.findings
    assert "1 convolution per step" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    # Adding takes 2 ms and summing 1 ms in each of two steps.
    ((operator, _, shapes, _, count, total_ns),) = table.rows
    assert (operator, count, total_ns) == ("aten::convolution", 4, 6_000_000)
    assert shapes == "[[32,64,56,56],[128,64,3,3],[128]]"


def test_other_normalizations_pass() -> None:
    assert find(BiasBeforeBatchNorm, trace(bias=True, normalization="aten::layer_norm")) == ()


def test_only_the_output_of_the_convolution_counts() -> None:
    assert find(BiasBeforeBatchNorm, trace(bias=True, channels=64)) == ()


def test_fires_only_above_the_limit() -> None:
    def count_with(value: float) -> int:  # 3 of 10 ms
        settings = {"minimum_share": value}
        return len(find(BiasBeforeBatchNorm, trace(bias=True), settings=settings) or ())

    assert (count_with(0.29), count_with(0.31)) == (1, 0)
