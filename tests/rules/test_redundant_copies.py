from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.compute.forms import RedundantCopies, UnfusedOperators
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.testing.symbols import kernel, operator, xla_op
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Trace
from tests.support.program_values import MODULE, program

# segment-anything-fast's asdf_False: what `contiguous` launches in fp32 (A100, PyTorch 2.1).
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, "
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1}>"
)
MULTIPLY = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, "
    "float, at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >"
)
LEGEND = {
    "f": operator("aten::scaled_dot_product_attention", launches=False),
    "n": operator("aten::contiguous", launches=False, shapes="[[16,16,559,64],[]]"),
    "l": operator("aten::clone", launches=False),
    "y": operator("aten::copy_"),
    "t": operator("aten::_to_copy", launches=False),
    "b": operator("aten::copy_"),
    "x": kernel(COPY, family=KernelFamily.COPY),
}
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |ff........|ff........|
    main   |nn........|nn........|
    main   |ll........|ll........|
    main   |yyoSSSSSSS|yyoSSSSSSS|
    gpu 7  |xxxxHHHHHH|xxxxHHHHHH|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |oSSSSS|oSSSSS|
    gpu 7  |HHHHHH|HHHHHH|
"""


def test_saves_at_most_what_the_fix_saves() -> None:
    checked = check_rule(RedundantCopies, slow=SLOW, fixed=FIXED, saves="4ms", legend=LEGEND)
    # Half of the 4 ms of copies.
    assert checked.expected_ns == 2_000_000
    (finding,) = checked.findings
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (0, 8_000_000)
    assert "mostly aten::contiguous in aten::scaled_dot_product_attention" in finding.summary


def test_the_table_names_the_call_site() -> None:
    (finding,) = find(RedundantCopies, SLOW, legend=LEGEND) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (
        (
            "aten::contiguous",
            "aten::scaled_dot_product_attention",
            "[[16,16,559,64],[]]",
            "",
            2,
            8_000_000,
        ),
    )


def test_casts_do_not_count() -> None:
    trace = SLOW.replace("|ll", "|tt").replace("|nn", "|..")
    assert find(RedundantCopies, trace, legend=LEGEND) == ()


def test_writes_into_existing_buffers_do_not_count() -> None:
    trace = SLOW.replace("|ll", "|..").replace("|nn", "|..")
    assert find(RedundantCopies, trace, legend=LEGEND) == ()


def test_layout_copies_of_convolutions_do_not_count() -> None:
    legend = {**LEGEND, "f": operator("aten::convolution", launches=False)}
    assert find(RedundantCopies, SLOW, legend=legend, device="NVIDIA A100-SXM4-40GB") == ()


def copied(direction: CopyDirection, framework: str) -> Trace:
    builder = TraceBuilder(framework)  # type: ignore[arg-type]
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.operator("aten::clone", at, at + ms(1))
        builder.copy(direction, at, at + ms(4))
    return builder.build()


def test_copies_to_and_from_the_host_do_not_count() -> None:
    within = copied(CopyDirection.DEVICE_TO_DEVICE, "pytorch")
    assert len(find(RedundantCopies, within) or ()) == 1
    for direction in (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST):
        assert find(RedundantCopies, copied(direction, "pytorch")) == ()


def test_xla_copies_count_without_an_operator() -> None:
    (finding,) = find(RedundantCopies, copied(CopyDirection.DEVICE_TO_DEVICE, "jax")) or ()
    assert "Memcpy DtoD" in finding.summary
    assert any("donate_argnums" in remedy.snippet for remedy in finding.remedies)


ARRAY, PART = (f"bf16[16,{size},1024]{{2,1,0:T(8,128)(2,1)}}" for size in (4096, 1))


def with_copy_of(source: str) -> Trace:
    """A program of which 40 % is a copy within the device."""
    text = f"%copy.8 = {ARRAY} copy({ARRAY} {source})"
    copy = xla_op("copy.8", text, kind=EventKind.COPY, module=MODULE)
    fusion = f"%fusion.3 = {ARRAY} fusion({ARRAY} %p0), kind=kLoop"
    computed = xla_op("fusion.3", fusion, module=MODULE)
    direction = {"direction": CopyDirection.DEVICE_TO_DEVICE}
    drawing = """
        cell 1ms
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXXXXXssss|XXXXXXssss|
    """
    symbols = {"s": replace(copy, copy=direction), "X": computed}
    return draw(drawing, legend=symbols, device="TPU v5e")


@pytest.mark.parametrize(
    ("source", "expected_ms"),
    [
        # The cache is an argument that the program updates: to donate it saves all of the copy.
        ("%caches_0_.1", 4),
        # Something that the program computed, or an array inside of a tuple.
        ("%fusion.3", 2),
        ("%get-tuple-element.53", 2),
    ],
)
def test_copies_of_arguments_go_if_they_are_donated(source: str, expected_ms: int) -> None:
    (finding,) = find(RedundantCopies, with_copy_of(source)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * ms(expected_ms)


@pytest.mark.parametrize(("note", "count"), [("", 0), ("// aliased", 1)])
def test_a_copy_for_an_update_belongs_to_the_missing_donation(note: str, count: int) -> None:
    updated = program(f"""
        %cache = {ARRAY} parameter(0) {note}
        %new = {PART} parameter(1)
        %copy.8 = {ARRAY} copy({ARRAY} %cache)
        %update = {ARRAY} dynamic-update-slice({ARRAY} %copy.8, {PART} %new) // result
    """)
    trace = replace(with_copy_of("%cache"), programs=(updated,))
    assert len(find(RedundantCopies, trace) or ()) == count


def test_fires_only_above_the_limit() -> None:
    def count_with(value: float) -> int:
        settings = {"minimum_share": value}
        return len(find(RedundantCopies, SLOW, settings=settings, legend=LEGEND) or ())

    assert (count_with(0.39), count_with(0.41)) == (1, 0)


@pytest.mark.parametrize(("reader", "claims"), [("aten::mul", False), ("aten::mm", True)])
def test_a_copy_that_fusion_removes_belongs_to_fusion(reader: str, claims: bool) -> None:
    # Elementwise work can read what the copy reads. A matrix product needs the copy.
    shape = [4096, 4096]
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        at = ms(10 * step)
        builder.step(step, at, at + ms(10))
        builder.operator("aten::clone", at, at + us(40), shapes=[shape, []], dtypes=["float", ""])
        builder.operator(
            "aten::copy_",
            at,
            at + us(20),
            shapes=[shape, shape],
            dtypes=["float"] * 2,
            key=f"c{step}",
        )
        builder.kernel(COPY, at, at + ms(2), launched_by=f"c{step}", family=KernelFamily.COPY)
        builder.operator(
            reader,
            at + us(40),
            at + us(60),
            shapes=[shape] * 2,
            dtypes=["float"] * 2,
            key=f"r{step}",
        )
        is_product = reader == "aten::mm"
        family = KernelFamily.MATMUL if is_product else KernelFamily.ELEMENTWISE
        name = "ampere_sgemm_128x128_nn" if is_product else MULTIPLY
        builder.kernel(name, at + ms(2), at + ms(5), launched_by=f"r{step}", family=family)
        builder.synchronize(at + us(60), at + ms(10))
    trace = builder.build()
    assert bool(find(RedundantCopies, trace)) == claims
    assert bool(find(UnfusedOperators, trace)) != claims
