from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.forms import UnfusedOperators
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily, Trace

# Prefixes of kernel names in TraceLens' recordings: Qwen1.5 (H100), a compiled model (MI300X).
EAGER = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16"
COMPILED = "triton_poi_fused__unsafe_view_mul_silu_2"
SHAPE = [4096, 4096]
Piece = tuple[str, list[list[int]], str, float]
PRODUCT = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4>"
# The chain moves 2 + 2 + 3 = 7 tensors, 1 ms each. Fused, it reads two and writes one.
CHAIN: tuple[Piece, ...] = (
    ("aten::mul", [SHAPE, []], EAGER, 2.0),
    ("aten::silu", [SHAPE], EAGER, 2.0),
    ("aten::mul", [SHAPE, SHAPE], EAGER, 3.0),
)
FUSED: tuple[Piece, ...] = (("triton_poi_fused__unsafe_view_mul_silu_2", [SHAPE], COMPILED, 3.0),)


def trace(pieces: tuple[Piece, ...], length_ms: float, around: str = "") -> Trace:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        start = ms(length_ms * step)
        ends = start
        builder.step(step, start, start + ms(length_ms))
        if around:
            builder.annotation(around, start, start + us(20 * len(pieces)))
        for place, (name, shapes, kernel, duration) in enumerate(pieces):
            at, key = start + us(20 * place), f"{step}:{place}"
            types = ["float" if shape else "Scalar" for shape in shapes]
            builder.operator(name, at, at + us(20), shapes=shapes, dtypes=types, key=key)
            family = KernelFamily.MATMUL if kernel == PRODUCT else KernelFamily.ELEMENTWISE
            builder.kernel(kernel, ends, ends + ms(duration), launched_by=key, family=family)
            ends += ms(duration)
        builder.synchronize(start + us(20 * len(pieces)), start + ms(length_ms))
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        UnfusedOperators, slow=trace(CHAIN, 7), fixed=trace(FUSED, 3), saves="4ms", scales=False
    )
    # 4 ms if the last operator multiplies by another tensor, 5 ms if by the first one's input.
    assert checked.expected_ns == pytest.approx(4_500_000, abs=5)
    (finding,) = checked.findings
    table = finding.evidence[0]
    assert isinstance(table, Table)
    ((operators, _, count, moved, fused, total_ns, _),) = table.rows
    assert (operators, count, total_ns) == ("mul → silu → mul", 2, 14_000_000)
    # 4096 x 4096 numbers of 4 bytes: 7 tensors now, 3 or 2 fused; in two steps.
    assert (moved, fused) == (2 * 7 * 4096 * 4096 * 4, 2 * 2.5 * 4096 * 4096 * 4)


def test_tensors_of_different_sizes_form_no_chain() -> None:
    sizes = ([4096, 4096], [4096, 3000], [4096, 1700])
    pieces = tuple(
        (name, [size], kernel, duration)
        for (name, _, kernel, duration), size in zip(CHAIN, sizes, strict=True)
    )
    assert find(UnfusedOperators, trace(pieces, 7)) == ()


def test_a_product_that_reads_the_result_ends_a_kernel() -> None:
    weight = [4096, 1000]
    reads: Piece = ("aten::mm", [SHAPE, weight], PRODUCT, 1.0)
    beside: Piece = ("aten::mm", [[4096, 500], [500, 4096]], PRODUCT, 1.0)
    (finding,) = find(UnfusedOperators, trace((CHAIN[0], beside, CHAIN[1]), 5)) or ()
    assert finding.instance == "mul → silu"
    assert find(UnfusedOperators, trace((CHAIN[0], reads, CHAIN[1]), 5)) == ()


def test_optimizer_kernels_do_not_count() -> None:
    assert find(UnfusedOperators, trace(CHAIN, 7, "Optimizer.step#AdamW.step")) == ()
    assert len(find(UnfusedOperators, trace(CHAIN, 7, "forward")) or ()) == 1


def test_copies_of_copies_are_other_tensors() -> None:
    copy: Piece = ("aten::copy_", [SHAPE, SHAPE], EAGER, 2.0)
    assert find(UnfusedOperators, trace((copy, copy, copy), 6)) == ()
    assert find(UnfusedOperators, trace((CHAIN[0], copy), 4))


def test_saves_nothing_if_the_device_waits_for_the_host() -> None:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        builder.step(step, ms(10 * step), ms(10 * step + 10))
        for place in range(10):
            at = ms(10 * step + place)
            builder.operator("aten::mul", at, at + ms(1), shapes=[SHAPE, []], dtypes=["float", ""])
            builder.kernel(EAGER, at, at + us(500), family=KernelFamily.ELEMENTWISE)
    (finding,) = find(UnfusedOperators, builder.build()) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns <= 500_000  # the last kernel's end, at most
    assert finding.saving.high_ns >= 8_000_000


def test_fires_only_above_the_limit() -> None:
    def count_with(value: float) -> int:  # 4.5 of 14 ms
        settings = {"minimum_share": value}
        return len(find(UnfusedOperators, trace(CHAIN, 14), settings=settings) or ())

    assert (count_with(0.32), count_with(0.33)) == (1, 0)


def on_cpu(pieces: tuple[Piece, ...], size: list[int], *, dtype: str = "float") -> Trace:
    """Three steps on the CPU, of operators one after the other and as long again of a sort."""
    builder = TraceBuilder()
    half = sum(duration for *_, duration in pieces)
    for step in range(3):
        start = at = 2 * half * step
        builder.step(step, ms(start), ms(start + 2 * half))
        for name, shapes, _, duration in pieces:
            shapes = [size if shape == SHAPE else shape for shape in shapes]
            types = [dtype if shape else "Scalar" for shape in shapes]
            builder.operator(
                name, ms(at), ms(at + duration), shapes=shapes, dtypes=types, launches=False
            )
            at += duration
        builder.operator("aten::sort", ms(at), ms(at + half), launches=False)
    return builder.build()


@pytest.mark.parametrize(
    ("size", "part"),
    [
        (SHAPE, 0.95),  # 64 MiB each: 7 tensors in three operators
        ([1024, 1024], 0.6),  # 4 MiB each: under 10 MB an operator
    ],
)
def test_on_the_cpu_loops_save_bytes(size: list[int], part: float) -> None:
    (finding,) = find(UnfusedOperators, on_cpu(CHAIN, size)) or ()
    saving = finding.saving
    assert saving is not None
    # Fused, two of seven tensors are moved: 5 of 7 ms.
    assert saving.low_ns == pytest.approx(3 * ms(5) * 0.2, rel=1e-6)
    assert saving.expected_ns == pytest.approx(3 * ms(5) * part, rel=1e-6)
    assert saving.high_ns == pytest.approx(3 * ms(5) * 1.2, rel=1e-6)
    assert [remedy.change for remedy in finding.remedies][-1] == "fused-operators"


def test_on_the_cpu_nothing_is_claimed_of_what_is_unknown_or_a_library_does_in_one_pass() -> None:
    unknown = tuple((name, [], kernel, duration) for name, _, kernel, duration in CHAIN)
    assert not find(UnfusedOperators, on_cpu(unknown, SHAPE))
    assert find(UnfusedOperators, on_cpu(CHAIN[:1], SHAPE)) == ()
    # What is shorter than 20 us is dispatch.
    short = tuple((name, shapes, kernel, 0.019) for name, shapes, kernel, _ in CHAIN)
    assert find(UnfusedOperators, on_cpu(short, SHAPE)) == ()
    norm = ("aten::native_batch_norm", [[64, 64, 56, 56], *[[64]] * 4], EAGER, 3.0)
    relu = ("aten::relu", [[64, 64, 56, 56]], EAGER, 3.0)
    assert find(UnfusedOperators, on_cpu((norm, relu), SHAPE)) == ()


def test_on_the_cpu_nodes_and_views_end_no_loop() -> None:
    between: tuple[Piece, ...] = (
        ("MulBackward0", [SHAPE], EAGER, 1.0),
        ("aten::view", [SHAPE], EAGER, 1.0),
    )
    plain, apart = (
        (find(UnfusedOperators, on_cpu(pieces, SHAPE)) or ())[0].saving
        for pieces in (CHAIN, (*CHAIN[:2], *between, *CHAIN[2:]))
    )
    assert plain is not None
    assert apart is not None
    assert apart.expected_ns == plain.expected_ns
    product: Piece = ("aten::mm", [[4096, 4096], [4096, 4096]], EAGER, 9.0)
    (*_, ended) = find(UnfusedOperators, on_cpu((*CHAIN[:2], product, CHAIN[2]), SHAPE)) or ()
    assert ended.saving is not None
    assert ended.saving.expected_ns < plain.expected_ns


def test_nothing_is_compiled_where_gradients_are_differentiated_again() -> None:
    # torch.compile: "does not currently support double backward"
    node: Piece = ("TanhBackwardBackward0", [SHAPE], EAGER, 1.0)
    assert find(UnfusedOperators, on_cpu((*CHAIN, node), SHAPE)) == ()
