from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.slow_product_on_cpu import SlowProductOnCpu
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.program_values import MODULE, program

SLOW = """
    cell 1ms
    step |..........|..........|
    main |.ppppcccc.|.ppppcccc.|
"""
FIXED = """
    cell 1ms
    step |...|...|
    main |.n.|.n.|
"""
X, FILTERS = "f32[8,512,8]{2,1,0}", "f32[7,1,8]{2,1,0}"
GROUPED = (
    f"%product.2 = {X} convolution({X} %x, {FILTERS} %w), window={{size=7 pad=3_3}},"
    " dim_labels=b0f_0io->b0f, feature_group_count=8"
)
OF_ALL_CHANNELS = (
    f"%product.2 = {X} convolution({X} %x, f32[7,8,8]{{2,1,0}} %w), window={{size=7 pad=3_3}},"
    " dim_labels=b0f_0io->b0f"
)
A, B = "s32[64,512]{1,0}", "s32[1000,512]{1,0}"
OF_INTEGERS = (
    f"%product.2 = s32[64,1000]{{1,0}} dot({A} %a, {B} %b), lhs_contracting_dims={{1}},"
    " rhs_contracting_dims={1}"
)
OF_FLOATS = OF_INTEGERS.replace("s32", "f32")
CONVERTED = f"%b = {B} convert(u8[1000,512]{{1,0}} %bits)"
VALUES = f"""
    %x = {X} parameter(0)
    %w = {FILTERS} parameter(1)
    %a = {A} parameter(2)
    %bits = u8[1000,512]{{1,0}} parameter(3)
    {CONVERTED}
"""


def trace(product: str, drawing: str = SLOW) -> Trace:
    def symbol(text: str) -> Symbol:
        hlo: dict[str, Any] = {"text": text, "module": MODULE}
        return Symbol(EventKind.OPERATOR, text.partition(" = ")[0].lstrip("%"), hlo=hlo)

    symbols = {
        "p": symbol(product),
        "c": symbol(CONVERTED),
        "n": symbol(f"%fusion.3 = {X} fusion({X} %x)"),
    }
    drawn = draw(drawing, legend=symbols, framework="jax")
    return replace(drawn, programs=(program(f"{VALUES}    {product}\n"),))


def test_a_filter_for_each_channel() -> None:
    checked = check_rule(
        SlowProductOnCpu,
        slow=trace(GROUPED, SLOW.replace("cccc", "....")),
        fixed=trace(GROUPED, FIXED),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 2 x 7 x 8 x 512 x 8 FLOP, without the edges, at 4 per ns and 20 us for the call: four times
    # that remains of 4 ms.
    needed_ns = 2 * 7 * 8 * 512 * 8 / 4 + 20_000
    assert finding.saving.expected_ns == pytest.approx(2 * (4e6 - 4 * needed_ns), rel=0.01)
    assert finding.saving.low_ns == 2 * 1_600_000
    assert "shifted copies" in finding.remedies[0].text


def test_integers_cost_what_makes_them_too() -> None:
    (finding,) = find(SlowProductOnCpu, trace(OF_INTEGERS)) or ()
    assert finding.saving is not None
    needed_ns = 2 * 64 * 1000 * 512 / 40 + 20_000
    assert finding.saving.expected_ns == pytest.approx(2 * (4e6 - needed_ns + 2e6), rel=0.01)
    assert finding.saving.high_ns == pytest.approx(2 * (4e6 - needed_ns + 4e6), rel=0.01)
    assert "32-bit floats" in finding.remedies[0].text


def test_products_with_fast_code_are_fine() -> None:
    assert find(SlowProductOnCpu, trace(OF_FLOATS)) == ()


def test_any_product_far_from_its_rate() -> None:
    (finding,) = find(SlowProductOnCpu, trace(OF_ALL_CHANNELS)) or ()
    assert "another form" in finding.remedies[0].text
