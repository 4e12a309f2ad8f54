from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.needless_probabilities import NeedlessProbabilities
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, W, ALL = "bf16[4096,1024]{1,0}", "bf16[1024,1024]{1,0}", "f32[4096,1024]{1,0}"
ROWS, PLACES = "f32[4096]{0}", "s32[4096,1024]{1,0}"
FUSION = f"%fusion = s32[4096]{{0}} fusion({X} %x, {W} %w), kind=kOutput"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    %logits = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
    %least = f32[] constant(-inf)
    %zero = f32[] constant(0)
    %most = {ROWS} reduce({ALL} %logits, f32[] %least), dimensions={{1}} // in fusion
    %mosts = {ALL} broadcast({ROWS} %most), dimensions={{0}} // in fusion
    %shifted = {ALL} subtract({ALL} %logits, {ALL} %mosts) // in fusion
    %weights = {ALL} exponential({ALL} %shifted) // in fusion
    %sum = {ROWS} reduce({ALL} %weights, f32[] %zero), dimensions={{1}} // in fusion
    %sums = {ALL} broadcast({ROWS} %sum), dimensions={{0}} // in fusion
    %parts = {ALL} divide({ALL} %weights, {ALL} %sums) // in fusion
    %places = {PLACES} iota(), iota_dimension=1 // in fusion
    %none = s32[] constant(0)
    %best = {ROWS} reduce({ALL} %parts, {PLACES} %places, f32[] %least, s32[] %none),\
 dimensions={{1}} // in fusion, result, reads=1
"""
OF_LOGITS = program(f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    %logits = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
    %least = f32[] constant(-inf)
    %places = {PLACES} iota(), iota_dimension=1 // in fusion
    %none = s32[] constant(0)
    %best = {ROWS} reduce({ALL} %logits, {PLACES} %places, f32[] %least, s32[] %none),\
 dimensions={{1}} // in fusion, result, reads=1
""")


def test_saves_all_but_the_product_and_the_ranking() -> None:
    checked = check_rule(
        NeedlessProbabilities,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, OF_LOGITS),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 2 x 4096 x 1024 x 1024 FLOP at 197 TFLOP/s take 43.6 µs of the 400.
    assert finding.saving.high_ns == pytest.approx(2 * (400_000 - 43_600), rel=0.001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)
    assert "f32[4096,1024] in model.py:37" in finding.instance


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The probability of the best is used as well.
        ("result, reads=1", "result"),
        # Something else reads the probabilities.
        ("%none =", f"%kept = {ALL} copy({ALL} %parts) // result\n    %none ="),
        # A scale of each column changes the order.
        (f"broadcast({ROWS} %sum), dimensions={{0}}", f"broadcast({ROWS} %sum), dimensions={{1}}"),
        # The places count something else.
        ("iota_dimension=1", "iota_dimension=0"),
        # What is divided by may be negative.
        (f"%sum = {ROWS} reduce({ALL} %weights", f"%sum = {ROWS} reduce({ALL} %logits"),
    ],
)
def test_values_that_count_and_other_orders_stay(before: str, after: str) -> None:
    assert before in PROGRAM
    assert (
        find(NeedlessProbabilities, drawn(SLOW, FUSION, program(PROGRAM.replace(before, after))))
        == ()
    )


def test_a_sum_that_is_repeated_by_a_window_is_equal_along_it() -> None:
    window = f"%sums = {ALL} reduce-window({ALL} %weights, f32[] %zero), window={{size=1x2047}}"
    text = "\n".join(
        window + " // in fusion" if "%sums =" in line else line
        for line in PROGRAM.splitlines()
        if "%sum =" not in line
    )
    assert find(NeedlessProbabilities, drawn(SLOW, FUSION, program(text)))
    narrow = text.replace("1x2047", "1x3")
    assert find(NeedlessProbabilities, drawn(SLOW, FUSION, program(narrow))) == ()
