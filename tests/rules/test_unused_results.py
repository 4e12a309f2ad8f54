from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.unused_results import UnusedResults
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, W, ALL = "bf16[4096,1024]{1,0}", "bf16[1024,16384]{1,0}", "bf16[4096,16384]{1,0}"
SOME = "bf16[512,16384]{1,0}"
FUSION = f"%fusion = {ALL} fusion({X} %x, {W} %w), kind=kOutput"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    %ids = s32[512]{{0}} parameter(2)
    %logits = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
    %mapped = {ALL} tanh({ALL} %logits) // in fusion
    %chosen = {SOME} gather({ALL} %mapped, s32[512]{{0}} %ids) // result
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
    assert "a gather in model.py:37" in finding.summary


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


def test_a_gradient_with_few_rows_is_mostly_zeros() -> None:
    text = f"""
        %x = {X} parameter(0)
        %ids = s32[512]{{0}} parameter(1)
        %rows = {SOME} parameter(2)
        %zero = bf16[] constant(0)
        %zeros = {ALL} broadcast(bf16[] %zero)
        %filled = {ALL} scatter({ALL} %zeros, s32[512]{{0}} %ids, {SOME} %rows)
        %gradient = {W} dot({X} %x, {ALL} %filled) // in fusion, result
    """
    (finding,) = find(UnusedResults, drawn(SLOW, FUSION, program(text))) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(750_000, abs=2)


SCORES, KEYS = "f32[8,4096,4096]{2,1,0}", "bf16[8,4096,128]{2,1,0}"
PLACES = "s32[4096,4096]{1,0}"
MASKED = f"""
    %query = {KEYS} parameter(0)
    %key = {KEYS} parameter(1)
    %rows = {PLACES} iota(), iota_dimension=0
    %columns = {PLACES} iota(), iota_dimension=1
    %distance = {PLACES} subtract({PLACES} %rows, {PLACES} %columns)
    %zero = s32[] constant(0)
    %zeros = {PLACES} broadcast(s32[] %zero), dimensions={{}}
    %after = pred[4096,4096]{{1,0}} compare({PLACES} %distance, {PLACES} %zeros), direction=GE
    %limit = s32[] constant(256)
    %limits = {PLACES} broadcast(s32[] %limit), dimensions={{}}
    %near = pred[4096,4096]{{1,0}} compare({PLACES} %distance, {PLACES} %limits), direction=LT
    %both = pred[4096,4096]{{1,0}} and(pred[4096,4096] %after, pred[4096,4096] %near)
    %mask = pred[8,4096,4096]{{2,1,0}} broadcast(pred[4096,4096]{{1,0}} %both), dimensions={{1,2}}
    %scores = {SCORES} dot({KEYS} %query, {KEYS} %key) // in fusion
    %least = f32[] constant(-inf)
    %hidden = {SCORES} broadcast(f32[] %least), dimensions={{}} // in fusion
    %chosen = {SCORES} select(pred[8,4096,4096] %mask, {SCORES} %scores, {SCORES} %hidden) // result
"""


def test_a_window_by_masking_computes_scores_for_nothing() -> None:
    fusion = f"%fusion = {SCORES} fusion({KEYS} %query, {KEYS} %key), kind=kOutput"
    (finding,) = find(UnusedResults, drawn(SLOW, fusion, program(MASKED))) or ()
    # 4096 · 256 positions less the corner of 256 · 255 / 2 of 4096 · 4096: 6.06 %.
    assert "6.1 % is used: a select" in finding.summary
    # A mask that is given is unknown.
    given = MASKED.replace("iota(), iota_dimension=1", "parameter(2)")
    assert find(UnusedResults, drawn(SLOW, fusion, program(given))) == ()


def test_slices_that_a_loop_takes_one_by_one_are_all_used() -> None:
    # Each of eight trips takes another 512 of the 4096 rows.
    text = PROGRAM.replace("gather(", "dynamic-slice(").replace("// result", "// result, runs=8")
    assert find(UnusedResults, drawn(SLOW, FUSION, program(text))) == ()


def test_layers_before_what_is_taken_need_no_more_rows() -> None:
    hidden, weights = "bf16[4096,2048]{1,0}", "bf16[1024,2048]{1,0}"
    text = f"""
        %x = {X} parameter(0)
        %up = {weights} parameter(1)
        %w = bf16[2048,16384]{{1,0}} parameter(2)
        %ids = s32[512]{{0}} parameter(3)
        %first = {hidden} dot({X} %x, {weights} %up), lhs_contracting_dims={{1}} // in fusion
        %mapped = {hidden} tanh({hidden} %first) // in fusion
        %logits = {ALL} dot({hidden} %mapped, bf16[2048,16384] %w), lhs_contracting_dims={{1}}
        %chosen = {SOME} gather({ALL} %logits, s32[512]{{0}} %ids) // result
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
        %scales = {some} gather({norms} %roots, s32[512]{{0}} %ids) // result
        %chosen = {SOME}""",
    )
    assert find(UnusedResults, drawn(SLOW, FUSION, program(normed)))
    # A part of each row of the logits needs all rows of the layer before.
    part = "bf16[4096,2048]{1,0}"
    columns = text.replace(f"%chosen = {SOME} gather(", f"%chosen = {part} slice(")
    assert find(UnusedResults, drawn(SLOW, FUSION, program(columns))) == ()


def test_a_long_causal_mask_hides_half_of_the_scores() -> None:
    causal = MASKED.replace("%limit = s32[] constant(256)", "%limit = s32[] constant(4096)")
    fusion = f"%fusion = {SCORES} fusion({KEYS} %query, {KEYS} %key), kind=kOutput"
    (finding,) = find(UnusedResults, drawn(SLOW, fusion, program(causal))) or ()
    assert "50.2 % of f32[8,4096,4096]" in finding.instance  # of a sample of positions
    short = causal.replace("4096", "1024")
    assert find(UnusedResults, drawn(SLOW, fusion.replace("4096", "1024"), program(short))) == ()


def test_gates_that_are_zero_for_most_experts() -> None:
    gates, choices = "f32[4096,8]{1,0}", "f32[4096,2,8]{2,1,0}"
    text = f"""
        %x = {X} parameter(0)
        %w = {W} parameter(1)
        %which = s32[4096,2]{{1,0}} parameter(2)
        %places = s32[4096,2,8]{{2,1,0}} iota(), iota_dimension=2
        %chosen = s32[4096,2,8]{{2,1,0}} broadcast(s32[4096,2] %which), dimensions={{0,1}}
        %is = pred[4096,2,8] compare(s32[4096,2,8] %places, s32[4096,2,8] %chosen), direction=EQ
        %hot = {choices} convert(pred[4096,2,8] %is)
        %gates = {gates} reduce({choices} %hot)
        %gate = f32[4096,1]{{1,0}} slice({gates} %gates)
        %wide = {ALL} broadcast(f32[4096,1]{{1,0}} %gate), dimensions={{0,1}}
        %result = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
        %weighted = {ALL} multiply({ALL} %result, {ALL} %wide) // in fusion, result
    """
    (finding,) = find(UnusedResults, drawn(SLOW, FUSION, program(text))) or ()
    # Two of eight experts have a gate: a quarter of the rows.
    assert "25.0 %" in finding.instance
    dense = text.replace("direction=EQ", "direction=GE")
    assert find(UnusedResults, drawn(SLOW, FUSION, program(dense))) == ()


def test_pairs_of_rows_and_columns_cannot_be_computed_alone() -> None:
    x, pairs = "bf16[8192,27,64]{2,1,0}", "bf16[8192,27,27]{2,1,0}"
    text = f"""
        %x = {x} parameter(0)
        %places = s32[351,2]{{1,0}} parameter(1)
        %products = {pairs} dot({x} %x, {x} %x), lhs_contracting_dims={{2}} // in fusion
        %half = bf16[351,8192]{{1,0}} gather({pairs} %products, s32[351,2]{{1,0}} %places) // result
    """
    fusion = f"%fusion = {pairs} fusion({x} %x), kind=kOutput"
    assert find(UnusedResults, drawn(SLOW, fusion, program(text))) == ()
    rows = text.replace("bf16[351,8192]", "bf16[8192,3,27]")
    assert find(UnusedResults, drawn(SLOW, fusion, program(rows)))


@pytest.mark.parametrize(("rows", "is_found"), [(1024, True), (2048, False)])
def test_half_of_an_array_in_many_places_is_not_worth_taking_out(rows: int, is_found: bool) -> None:
    part, weights = f"bf16[{rows},1024]{{1,0}}", "bf16[4096,1024]{1,0}"
    text = f"""
        %x = {X} parameter(0)
        %ids = s32[{rows}]{{0}} parameter(1)
        %rows = {part} parameter(2)
        %zero = bf16[] constant(0)
        %zeros = {weights} broadcast(bf16[] %zero), dimensions={{}}
        %filled = {weights} scatter({weights} %zeros, s32[{rows}]{{0}} %ids, {part} %rows)
        %out = bf16[1024,1024]{{1,0}} dot({X} %x, {weights} %filled) // in fusion, result
    """
    fusion = f"%fusion = bf16[1024,1024]{{1,0}} fusion({X} %x, {weights} %filled), kind=kOutput"
    # A quarter is the limit.
    text = text.replace("[1024,1024]{1,0} parameter(2)", "[1023,1024]{1,0} parameter(2)")
    assert bool(find(UnusedResults, drawn(SLOW, fusion, program(text)))) == is_found
