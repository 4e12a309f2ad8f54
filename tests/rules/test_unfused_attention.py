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


ON_CPU = (
    ("aten::bmm", [[16, 128, 64], [16, 64, 128]], 3.0),
    ("aten::mul", [[2, 8, 128, 128], []], 2.0),
    ("aten::_softmax", [[2, 8, 128, 128], [], []], 8.0),
    ("aten::bmm", [[16, 128, 128], [16, 128, 64]], 3.0),
)
FORM = "aten::_scaled_dot_product_attention_math"


def on_cpu(
    pieces: tuple[tuple[str, list[list[int]], float], ...] = ON_CPU,
    *,
    around: str = "",
    trains: bool = False,
    dtype: str = "float",
) -> Trace:
    """Three steps of attention on the CPU, and as long again of something else."""
    builder = TraceBuilder()
    forward = sum(duration for _, _, duration in pieces)
    length = forward * (6 if trains else 2)
    for step in range(3):
        at = start = length * step
        builder.step(step, ms(start), ms(start + length))
        if around:
            builder.operator(around, ms(at), ms(at + forward), launches=False)
        for place, (name, shapes, duration) in enumerate(pieces):
            key = f"f{step}{place}"
            builder.operator(
                name, ms(at), ms(at + duration), shapes=shapes, dtypes=[dtype] * len(shapes),
                key=key, launches=False,
            )  # fmt: skip
            if name == "aten::_safe_softmax":
                inner = ms(at + duration / 2)
                builder.operator(
                    "aten::_softmax", ms(at), inner, shapes=shapes, dtypes=[dtype], launches=False
                )
            at += duration
        for place in reversed(range(len(pieces) * trains)):
            name, shapes, duration = pieces[place]
            end = at + 2 * duration
            builder.operator(
                "autograd::engine::evaluate_function: Backward", ms(at), ms(end),
                key=f"n{step}{place}", forward=f"f{step}{place}", launches=False,
            )  # fmt: skip
            inner_name = name if name == "aten::bmm" else "aten::_softmax_backward_data"
            builder.operator(inner_name, ms(at), ms(end), launches=False)
            at = end
        builder.operator("aten::sort", ms(at), ms(start + length), launches=False)
    return builder.build()


def saved_ms(trace: Trace) -> tuple[float, float, float]:
    """Low, expected and high per step, as the rule says it."""
    (finding,) = find(UnfusedAttention, trace) or ()
    assert finding.saving is not None
    low, expected, high = (
        value / ms(3) for value in (finding.saving.low_ns, finding.saving.expected_ns,
                                    finding.saving.high_ns)
    )  # fmt: skip
    return pytest.approx(low), pytest.approx(expected), pytest.approx(high)


def test_on_the_cpu_the_products_stay() -> None:
    # Forward, 16 ms: 6 of them are products, which take 1.25 times as long for 128 queries.
    assert saved_ms(on_cpu()) == (16 - 7.5 * 1.4, 16 - 7.5, 16 - 7.5 * 0.65)
    # Backward, 32 ms: 12 are products, 1.4 times.
    then_ms = 7.5 + 12 * 1.4
    low, expected, high = 48 - then_ms * 1.4, 48 - then_ms, 48 - then_ms * 0.65
    assert saved_ms(on_cpu(trains=True)) == (low, expected, high)
    # Of 16 bits, 1.25 times for any length.
    assert saved_ms(on_cpu(dtype=BF16)) == (16 - 7.5 * 1.4, 16 - 7.5, 16 - 7.5 * 0.65)


@pytest.mark.parametrize(("queries", "factor"), [(32, 1.45), (192, 1.125), (512, 0.6), (4096, 0.6)])
def test_longer_sequences_gain_more(queries: int, factor: float) -> None:
    scores = [2, 8, queries, queries]
    pieces = (
        ("aten::bmm", [[16, queries, 64], [16, 64, queries]], 3.0),
        ("aten::_softmax", [scores, [], []], 8.0),
        ("aten::bmm", [[16, queries, queries], [16, queries, 64]], 3.0),
    )
    _, expected, _ = saved_ms(on_cpu(pieces))
    assert expected == 14 - factor * 6


def test_dropout_keeps_attention_unfused_on_the_cpu() -> None:
    dropped = (*ON_CPU[:3], ("aten::native_dropout", [[2, 8, 128, 128]], 1.0), ON_CPU[3])
    assert find(UnfusedAttention, on_cpu(dropped)) == ()


def test_the_form_of_pytorch_names_what_keeps_it_from_fusing() -> None:
    safe = (*ON_CPU[:2], ("aten::_safe_softmax", [[2, 8, 128, 128], [], []], 8.0), ON_CPU[3])
    (finding,) = find(UnfusedAttention, on_cpu(safe, around=FORM)) or ()
    assert "falls back" in finding.summary
    assert [remedy.change for remedy in finding.remedies] == ["fused-form"]
    (finding,) = find(UnfusedAttention, on_cpu()) or ()
    assert "falls back" not in finding.summary
    assert {remedy.change for remedy in finding.remedies} == {"fused-attention"}


def test_fused_training_in_16_bits_is_no_faster_on_the_cpu() -> None:
    assert find(UnfusedAttention, on_cpu(dtype=BF16))
    assert find(UnfusedAttention, on_cpu(dtype=BF16, trains=True)) == ()
    assert find(UnfusedAttention, on_cpu(trains=True))
    # From 2,048 on: 48 ms, and products of 6 and 12 ms that take 1.25 and 2 times as long.
    for queries, saved in ((2047, None), (2048, 48 - 6 * 1.25 - 12 * 2)):
        scores = [2, 8, queries, queries]
        pieces = (
            ("aten::bmm", [[16, queries, 64], [16, 64, queries]], 3.0),
            ("aten::_softmax", [scores, [], []], 10.0),
            ("aten::bmm", [[16, queries, queries], [16, queries, 64]], 3.0),
        )
        trace = on_cpu(pieces, dtype=BF16, trains=True)
        assert (saved_ms(trace)[1] if find(UnfusedAttention, trace) else None) == saved
