from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.forms import UnfusedAttention
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

# Prefixes of kernel names in TraceLens' recordings: what the attention of
# facebook/timesformer-base-finetuned-k400 (H100) launches, and the kernel of PyTorch's fused
# attention in Falconsai/nsfw_image_detection.
PRODUCT = (
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>"
    "(cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1::Params)"
)
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128"
H100 = "NVIDIA H100 80GB HBM3"
HEADS, LENGTH, SIZE = 96, 3137, 64
SCORES = [8, 12, LENGTH, LENGTH]
BF16 = "c10::BFloat16"
# Operator, its shapes, its kernel, and the kernel's duration in milliseconds.
PIECES = (
    ("aten::bmm", [[HEADS, LENGTH, SIZE], [HEADS, SIZE, LENGTH]], PRODUCT, 1.0),
    ("aten::mul", [SCORES, []], "vectorized_elementwise_kernel", 1.0),
    ("aten::_softmax", [SCORES, [], []], SOFTMAX, 6.0),
    ("aten::bmm", [[HEADS, LENGTH, LENGTH], [HEADS, LENGTH, SIZE]], PRODUCT, 2.0),
)
FUSED = (("aten::_flash_attention_forward", [[8, LENGTH, 12, SIZE]] * 3, FLASH, 1.0),)


def trace(pieces: tuple[tuple[str, list[list[int]], str, float], ...], length_ms: float) -> Trace:
    builder = TraceBuilder().device(H100)
    for step in range(2):
        start = ms(length_ms * step)
        builder.step(step, start, start + ms(length_ms))
        ends = start
        for place, (name, shapes, kernel, duration) in enumerate(pieces):
            at, key = start + us(20 * place), f"{step}:{place}"
            builder.operator(
                name, at, at + us(20), shapes=shapes, dtypes=[BF16] * len(shapes), key=key
            )
            builder.kernel(
                kernel,
                ends,
                ends + ms(duration),
                launched_by=key,
                precision=Precision.BITS_16,
                family=KernelFamily.SOFTMAX if kernel == SOFTMAX else KernelFamily.MATMUL,
            )
            ends += ms(duration)
        builder.synchronize(start + us(20 * len(pieces)), start + ms(length_ms))
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        UnfusedAttention,
        slow=trace(PIECES, 10),
        fixed=trace(FUSED, 1),
        saves="9ms",
        scales=False,
    )
    # Two products of 2 x 96 x 3137 x 3137 x 64 FLOP at 0.3 of 989.4 TFLOP/s, the dense bf16 peak
    # of an H100 SXM (NVIDIA's datasheet), take 0.815 ms.
    fused_ms = 2 * 2 * 96 * 3137**2 * 64 / (0.3 * 989.4e12) * 1e3
    assert fused_ms == pytest.approx(0.815, abs=0.001)
    assert checked.expected_ns == pytest.approx((10 - fused_ms) * 1e6, rel=0.002)


def test_the_table_compares_with_the_fused_time() -> None:
    (finding,) = find(UnfusedAttention, trace(PIECES, 10)) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    ((size, direction, layers, kernels, total_ns, fused_ns),) = table.rows
    assert (size, direction, layers, kernels) == ("96 × 3137 × 3137, heads of 64", "forward", 2, 8)
    assert total_ns == 20_000_000
    assert isinstance(fused_ns, int)
    assert fused_ns == pytest.approx(2 * 815_000, rel=0.002)


def test_a_softmax_outside_of_attention_does_not_count() -> None:
    # The second product takes a matrix of another size.
    unrelated = (
        *PIECES[:3],
        ("aten::bmm", [[HEADS, SIZE, SIZE], [HEADS, SIZE, SIZE]], PRODUCT, 2.0),
    )
    assert find(UnfusedAttention, trace(unrelated, 10)) == ()


def test_short_sequences_pass() -> None:
    short = tuple(
        (name, [[HEADS, 8, 8]] * len(shapes), kernel, 0.002) for name, shapes, kernel, _ in PIECES
    )
    assert find(UnfusedAttention, trace(short, 0.1)) == ()


def test_backward_work_belongs_to_its_forward_operators() -> None:
    builder = TraceBuilder().device(H100)
    builder.step(0, 0, ms(40)).step(1, ms(40), ms(80))
    for step in range(2):
        at, ends = ms(40 * step), ms(40 * step)
        for place, (name, shapes, kernel, _) in enumerate(PIECES):
            key, begin = f"f{step}{place}", at + us(20 * place)
            types = [BF16] * len(shapes)
            builder.operator(name, begin, begin + us(20), shapes=shapes, dtypes=types, key=key)
            builder.kernel(kernel, ends, ends + ms(2), launched_by=key)
            ends += ms(2)
        for place in reversed(range(len(PIECES))):
            begin = at + us(200 + 20 * (len(PIECES) - place))
            node, inner = f"n{step}{place}", f"b{step}{place}"
            builder.operator(
                "autograd::engine::evaluate_function: BmmBackward0",
                begin,
                begin + us(20),
                key=node,
                forward=f"f{step}{place}",
                launches=False,
            )
            builder.operator("aten::bmm", begin + us(1), begin + us(19), key=inner)
            builder.kernel(PRODUCT, ends, ends + ms(4), launched_by=inner)
            ends += ms(4)
        builder.synchronize(at + us(400), at + ms(40))
    (finding,) = find(UnfusedAttention, builder.build()) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    passes = {str(row[1]): (row[3], row[4]) for row in table.rows}
    assert passes == {"forward": (8, 16_000_000), "backward": (8, 32_000_000)}
    fused = {str(row[1]): row[5] for row in table.rows}
    assert fused["forward"] == pytest.approx(2 * 815_000, rel=0.002)
    # Five products instead of two.
    assert fused["backward"] == pytest.approx(2 * 815_000 * 5 / 2, rel=0.002)


def test_fires_only_above_the_limit() -> None:
    def count_with(value: float) -> int:
        settings = {"minimum_share": value}
        return len(find(UnfusedAttention, trace(PIECES, 20), settings=settings) or ())

    assert (count_with(0.49), count_with(0.51)) == (1, 0)


def test_a_softmax_without_a_product_is_no_attention() -> None:
    """A classifier's softmax; the operators of its layers are outside of the recorded part."""
    assert find(UnfusedAttention, trace(PIECES[1:3], 8)) == ()


def test_sizes_that_no_memory_holds_are_no_attention() -> None:
    """Of a damaged file: their product would not fit into 64 bits."""
    scores = [2**40, 2**40, LENGTH, LENGTH]
    damaged = (PIECES[0], PIECES[1], ("aten::_softmax", [scores, [], []], SOFTMAX, 6.0), PIECES[3])
    assert find(UnfusedAttention, trace(damaged, 11)) == ()


SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<c10::BFloat16"
Kernels = tuple[tuple[str, KernelFamily, float], ...]
LAYER: Kernels = (
    (PRODUCT, KernelFamily.MATMUL, 1.0),
    (SCALE, KernelFamily.ELEMENTWISE, 1.0),
    (SOFTMAX, KernelFamily.SOFTMAX, 2.0),
    (PRODUCT, KernelFamily.MATMUL, 1.0),
)


def without_shapes(layer: Kernels, length_ms: float) -> Trace:
    """Two steps of a layer each, of a recorder that saw the device only."""
    builder = TraceBuilder().device(H100)
    for step in range(2):
        at = ms(length_ms * step)
        builder.step(step, at, at + ms(length_ms))
        for name, family, duration in layer:
            builder.kernel(name, at, at + ms(duration), family=family)
            at += ms(duration)
    return builder.build()


def test_without_shapes_the_products_stay() -> None:
    (finding,) = find(UnfusedAttention, without_shapes(LAYER, 5)) or ()
    saving = finding.saving
    assert saving is not None
    # Scale and softmax take 3 ms in each of two steps.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (3_000_000, 6_000_000, 6_000_000)
    assert saving.basis == "modeled"


@pytest.mark.parametrize(
    "between",
    [
        # Experts are chosen by the largest of a softmax; a classifier ends with its logarithm.
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", KernelFamily.SORT),
        ("void at::native::(anonymous namespace)::cunn_LogSoftMaxForward", KernelFamily.SOFTMAX),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", KernelFamily.COLLECTIVE),
    ],
)
def test_other_softmaxes_are_no_attention(between: tuple[str, KernelFamily]) -> None:
    name, family = between
    layer = (*LAYER[:3], (name, family, 0.1), LAYER[3])
    assert not find(UnfusedAttention, without_shapes(layer, 6))
