from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.twin_products import TwinProducts
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, ALL = "bf16[4096,512]{1,0}", "f32[4096,4096]{1,0}"
FUSION = f"%fusion = {ALL} fusion({X} %y, {X} %x), kind=kOutput"
CONTRACTED = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
PROGRAM = f"""
    %x = {X} parameter(0)
    %y = {X} parameter(1)
    %forth = {ALL} dot({X} %x, {X} %y), {CONTRACTED} // result
    %moved = {X} copy({X} %x)
    %back = {ALL} dot({X} %y, {X} %moved), {CONTRACTED} // in fusion, result
"""
ONCE = program(f"""
    %x = {X} parameter(0)
    %y = {X} parameter(1)
    %forth = {ALL} dot({X} %x, {X} %y), {CONTRACTED} // result
    %back = {ALL} transpose({ALL} %forth) // in fusion, result
""")


def test_saves_the_second_product() -> None:
    checked = check_rule(
        TwinProducts,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, ONCE),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 2 x 4096 x 4096 x 512 FLOP at three quarters of 197 TFLOP/s take 116 µs of the 400.
    assert finding.saving.expected_ns == pytest.approx(2 * 116_280, rel=0.001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)
    # 64 MiB of results and 8 MiB of factors take 108 µs.
    assert finding.saving.high_ns == pytest.approx(2 * (400_000 - 108_450), rel=0.001)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Other arrays.
        (f"copy({X} %x)", f"tanh({X} %x)"),
        # The same order: XLA computes it twice to save memory.
        (f"dot({X} %y, {X} %moved)", f"dot({X} %moved, {X} %y)"),
        # Square factors allow several products.
        ("4096,512", "4096,4096"),
    ],
)
def test_other_products_stay(before: str, after: str) -> None:
    assert before in PROGRAM
    assert find(TwinProducts, drawn(SLOW, FUSION, program(PROGRAM.replace(before, after)))) == ()
