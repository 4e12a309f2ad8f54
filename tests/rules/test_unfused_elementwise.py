from __future__ import annotations

from tb_perfadvisor.rules.compute.unfused_elementwise import UnfusedElementwise
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily, Trace

# Prefixes of kernel names in TraceLens' recordings: Qwen1.5 (H100), a compiled model (MI300X).
EAGER = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16"
COMPILED = "triton_poi_fused__unsafe_view_mul_silu_2"
SHAPE = [4096, 4096]
Piece = tuple[str, list[list[int]], str, float]
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
            builder.kernel(
                kernel, ends, ends + ms(duration), launched_by=key, family=KernelFamily.ELEMENTWISE
            )
            ends += ms(duration)
        builder.synchronize(start + us(20 * len(pieces)), start + ms(length_ms))
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        UnfusedElementwise, slow=trace(CHAIN, 7), fixed=trace(FUSED, 3), saves="4ms"
    )
    assert abs(checked.expected_ns - 4_000_000) <= 3
    (finding,) = checked.findings
    table = finding.evidence[0]
    assert isinstance(table, Table)
    ((operators, _, count, total_ns, _),) = table.rows
    assert (operators, count, total_ns) == ("mul → silu → mul", 2, 14_000_000)


def test_tensors_of_different_sizes_form_no_chain() -> None:
    sizes = ([4096, 4096], [4096, 2048], [4096, 1024])
    pieces = tuple(
        (name, [size], kernel, duration)
        for (name, _, kernel, duration), size in zip(CHAIN, sizes, strict=True)
    )
    assert find(UnfusedElementwise, trace(pieces, 7)) == ()


def test_optimizer_kernels_do_not_count() -> None:
    assert find(UnfusedElementwise, trace(CHAIN, 7, "Optimizer.step#AdamW.step")) == ()
    assert len(find(UnfusedElementwise, trace(CHAIN, 7, "forward")) or ()) == 1


def test_fills_break_the_chain() -> None:
    pieces = (CHAIN[0], ("aten::fill_", [SHAPE, []], EAGER, 1.0), CHAIN[2])
    assert find(UnfusedElementwise, trace(pieces, 6)) == ()


def test_saves_nothing_if_the_device_waits_for_the_host() -> None:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        builder.step(step, ms(10 * step), ms(10 * step + 10))
        for place in range(10):
            at = ms(10 * step + place)
            builder.operator("aten::mul", at, at + ms(1), shapes=[SHAPE, []], dtypes=["float", ""])
            builder.kernel(EAGER, at, at + us(500), family=KernelFamily.ELEMENTWISE)
    (finding,) = find(UnfusedElementwise, builder.build()) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns <= 500_000  # the last kernel's end, at most
    assert finding.saving.high_ns >= 8_000_000


def test_fires_only_above_the_limit() -> None:
    def count_with(value: float) -> int:  # 7 of 14 ms
        settings = {"minimum_share": value}
        return len(find(UnfusedElementwise, trace(CHAIN, 14), settings=settings) or ())

    assert (count_with(0.49), count_with(0.51)) == (1, 0)
