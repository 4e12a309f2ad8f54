from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import UnusedResults
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, W, ALL = "bf16[4096,1024]{1,0}", "bf16[1024,16384]{1,0}", "bf16[4096,16384]{1,0}"
SOME = "bf16[512,16384]{1,0}"
FUSION = f"%fusion = {ALL} fusion({X} %x, {W} %w), kind=kOutput"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    %logits = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
    %mapped = {ALL} tanh({ALL} %logits) // in fusion
    %chosen = {SOME} slice({ALL} %mapped) // result
"""
SELECTED = program(f"""
    %x = bf16[512,1024]{{1,0}} parameter(0)
    %w = {W} parameter(1)
    %logits = {SOME} dot(bf16[512,1024]{{1,0}} %x, {W} %w) // in fusion, result
""")


def test_saves_what_nobody_uses() -> None:
    checked = check_rule(
        UnusedResults,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, SELECTED),
        saves=300_000,
        tolerance=0.1,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Of 4096 rows, 512 are used: an eighth. At best, half of it remains of 2 x 400 µs.
    assert finding.saving.high_ns == pytest.approx(750_000, abs=2)
    assert finding.saving.expected_ns == pytest.approx(800_000 * (1 - 1.5 / 8), abs=2)
    assert "a slice in model.py:37" in finding.summary


@pytest.mark.parametrize(
    "also",
    [
        f"%sum = f32[4096]{{0}} reduce({ALL} %mapped) // result",
        f"%other = {X} dot({ALL} %logits, {W} %w) // result",
        f"%copy = {ALL} copy({ALL} %logits) // result",
    ],
)
def test_what_something_else_uses_is_needed(also: str) -> None:
    assert find(UnusedResults, drawn(SLOW, FUSION, program(PROGRAM + also))) == ()


def test_what_a_gather_takes_may_cost_more_to_gather_before() -> None:
    text = PROGRAM.replace(
        f"slice({ALL} %mapped)", f"gather({ALL} %mapped, s32[512]{{0}} %ids)"
    ).replace("%x =", "%ids = s32[512]{0} parameter(2)\n    %x =", 1)
    assert find(UnusedResults, drawn(SLOW, FUSION, program(text))) == ()


@pytest.mark.parametrize(("rows", "is_found"), [(512, True), (4096, False)])
def test_the_gradient_of_a_slice_is_mostly_zeros(rows: int, is_found: bool) -> None:
    part = f"bf16[{rows},16384]{{1,0}}"
    text = f"""
        %x = {X} parameter(0)
        %rows = {part} parameter(1)
        %zero = bf16[] constant(0)
        %filled = {ALL} pad({part} %rows, bf16[] %zero)
        %gradient = {W} dot({X} %x, {ALL} %filled) // in fusion, result
    """
    found = find(UnusedResults, drawn(SLOW, FUSION, program(text))) or ()
    assert len(found) == is_found
    for finding in found:
        assert finding.saving is not None
        # An eighth is filled in, of which half remains at best.
        assert finding.saving.high_ns == pytest.approx(750_000, abs=2)


def test_slices_that_a_loop_takes_one_by_one_are_all_used() -> None:
    # Each of eight trips takes another 512 of the 4096 rows.
    text = PROGRAM.replace(" slice(", " dynamic-slice(").replace("// result", "// result, runs=8")
    assert find(UnusedResults, drawn(SLOW, FUSION, program(text))) == ()


def test_layers_before_what_is_taken_need_no_more_rows() -> None:
    hidden, weights = "bf16[4096,2048]{1,0}", "bf16[1024,2048]{1,0}"
    text = f"""
        %x = {X} parameter(0)
        %up = {weights} parameter(1)
        %w = bf16[2048,16384]{{1,0}} parameter(2)
        %first = {hidden} dot({X} %x, {weights} %up), lhs_contracting_dims={{1}} // in fusion
        %mapped = {hidden} tanh({hidden} %first) // in fusion
        %logits = {ALL} dot({hidden} %mapped, bf16[2048,16384] %w), lhs_contracting_dims={{1}}
        %chosen = {SOME} slice({ALL} %logits) // result
    """
    (finding,) = find(UnusedResults, drawn(SLOW, FUSION, program(text))) or ()
    # The operation that is drawn is the first product.
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(750_000, abs=2)
    # A row is also needed where its norm is, which is a number for each row.
    norms, some = "f32[4096]{0}", "f32[512]{0}"
    normed = text.replace(
        f"        %chosen = {SOME}",
        f"""        %squares = {norms} reduce({ALL} %logits), dimensions={{1}}
        %roots = {norms} rsqrt({norms} %squares)
        %scales = {some} slice({norms} %roots) // result
        %chosen = {SOME}""",
    )
    assert find(UnusedResults, drawn(SLOW, FUSION, program(normed)))
    # A part of each row of the logits needs all rows of the layer before.
    part = "bf16[4096,2048]{1,0}"
    columns = text.replace(f"%chosen = {SOME}", f"%chosen = {part}")
    assert find(UnusedResults, drawn(SLOW, FUSION, program(columns))) == ()
