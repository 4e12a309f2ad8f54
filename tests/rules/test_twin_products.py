from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.twin_products import TwinProducts
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

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


def test_factors_that_each_fusion_computes_anew() -> None:
    """XLA repeats what is cheap to compute in each fusion that reads it."""
    text = f"""
        %a = {X} parameter(0)
        %scale = f32[4096] parameter(1)
        %y = {X} parameter(2)
        %wide = {X} broadcast(f32[4096] %scale), dimensions={{0}}
        %x = {X} multiply({X} %a, {X} %wide)
        %again = {X} broadcast(f32[4096] %scale), dimensions={{0}}
        %copy = {X} multiply({X} %again, {X} %a) // in fusion
        %forth = {ALL} dot({X} %x, {X} %y), {CONTRACTED} // result
        %back = {ALL} dot({X} %y, {X} %copy), {CONTRACTED} // in fusion, result
    """
    assert find(TwinProducts, drawn(SLOW, FUSION, program(text)))
    # Another dimension, another function or another order where it matters is another array.
    again = f"%again = {X} broadcast(f32[4096] %scale), dimensions="
    for before, after in (
        (again + "{0}", again + "{1}"),
        (f"%copy = {X} multiply", f"%copy = {X} maximum"),
        ("multiply", "subtract"),
    ):
        changed = text.replace(before, after)
        assert changed != text
        assert find(TwinProducts, drawn(SLOW, FUSION, program(changed))) == ()


ROWS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
COLUMNS = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"
JOINED = f"""
    %x = {X} parameter(0)
    %y = {X} parameter(1)
    %forth = {ALL} dot({X} %x, {X} %y), {CONTRACTED}
    %back = {ALL} dot({X} %y, {X} %x), {CONTRACTED} // in fusion
    %one = {ALL} exponential({ALL} %forth)
    %other = {ALL} exponential({ALL} %back) // in later
    %of_one = {X} dot({ALL} %one, {X} %y), {ROWS} // result
    %of_other = {X} dot({ALL} %other, {X} %y), {COLUMNS} // in later, result
"""


@pytest.mark.parametrize(
    ("before", "after", "is_joined"),
    [
        ("", "", True),
        # The second one's function is returned: it has to be stored.
        ("// in later\n", "// in later, result\n", False),
        # Another factor: the two products are not of the same.
        (f"{ALL} %other, {X} %y", f"{ALL} %other, {X} %x", False),
    ],
)
def test_what_follows_is_joined(before: str, after: str, is_joined: bool) -> None:
    """Gradients of both are added before they are multiplied."""
    names = {"s": FUSION, "t": f"%later = {X} fusion({ALL} %fusion, {X} %y), kind=kOutput"}
    trace = draw(
        SLOW.replace("ssss", "sstt"),
        legend={
            letter: xla_op(text.partition(" = ")[0].lstrip("%"), text, module=MODULE)
            for letter, text in names.items()
        },
        device="TPU v5 lite",
    )
    changed = program(JOINED.replace(before, after))
    (finding,) = find(TwinProducts, replace(trace, programs=(changed,)))
    assert finding.saving is not None
    # In two steps, all of both operations goes; or of the first, what its bytes do not need.
    expected_ns = 2 * 400_000 if is_joined else 2 * (200_000 - 108_450)
    assert finding.saving.expected_ns == pytest.approx(expected_ns, rel=0.01)
