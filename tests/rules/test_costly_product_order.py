from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import CostlyProductOrder
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

LOW, HIGH, X = "bf16[4096,64]{1,0}", "bf16[64,2048]{1,0}", "bf16[1024,4096]{1,0}"
WHOLE, Y, SMALL = "bf16[4096,2048]{1,0}", "bf16[1024,2048]{1,0}", "bf16[1024,64]{1,0}"
DOT = f"%dot.2 = {Y} dot({X} %x, {WHOLE} %whole), lhs_contracting_dims={{1}}"
PROGRAM = f"""
    %low = {LOW} parameter(0)
    %high = {HIGH} parameter(1)
    %x = {X} parameter(2)
    %product = {WHOLE} dot({LOW} %low, {HIGH} %high)
    %whole = {WHOLE} copy({WHOLE} %product)
    {DOT} // result
"""
OTHER = program(f"""
    %low = {LOW} parameter(0)
    %high = {HIGH} parameter(1)
    %x = {X} parameter(2)
    %product = {SMALL} dot({X} %x, {LOW} %low)
    %dot.2 = {Y} dot({SMALL} %product, {HIGH} %high) // result
""")


def test_saves_the_share_of_flop() -> None:
    checked = check_rule(
        CostlyProductOrder,
        slow=drawn(SLOW, DOT, program(PROGRAM)),
        fixed=drawn(FIXED, DOT, OTHER),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Now 4096·64·2048 + 1024·4096·2048 = 9.13e9 terms; then 1024·4096·64 + 1024·64·2048 = 0.40e9.
    share = (1024 * 4096 * 64 + 1024 * 64 * 2048) / (4096 * 64 * 2048 + 1024 * 4096 * 2048)
    assert finding.saving.high_ns == pytest.approx(800_000 * (1 - share), rel=0.001)
    assert "4.4 % of the FLOP" in finding.summary


def test_a_product_that_something_else_reads_stays() -> None:
    text = PROGRAM + f"%sum = {WHOLE} add({WHOLE} %whole, {WHOLE} %whole) // result"
    assert find(CostlyProductOrder, drawn(SLOW, DOT, program(text))) == ()


def test_a_map_between_the_products_forbids_another_order() -> None:
    text = PROGRAM.replace("copy(", "tanh(")
    assert find(CostlyProductOrder, drawn(SLOW, DOT, program(text))) == ()
