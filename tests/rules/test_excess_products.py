"""Products in an order that needs more than another one, or of which little is read."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

LOW, HIGH, ROW = "bf16[4096,64]{1,0}", "bf16[64,2048]{1,0}", "bf16[1024,4096]{1,0}"
WHOLE, RESULT, SMALL = "bf16[4096,2048]{1,0}", "bf16[1024,2048]{1,0}", "bf16[1024,64]{1,0}"
SECOND = f"%dot.2 = {RESULT} dot({ROW} %x, {WHOLE} %whole), lhs_contracting_dims={{1}}"
IN_ORDER = f"""
    %low = {LOW} parameter(0)
    %high = {HIGH} parameter(1)
    %x = {ROW} parameter(2)
    %product = {WHOLE} dot({LOW} %low, {HIGH} %high), lhs_contracting_dims={{1}}
    %whole = {WHOLE} copy({WHOLE} %product)
    {SECOND} // result
"""
OTHER = program(f"""
    %low = {LOW} parameter(0)
    %high = {HIGH} parameter(1)
    %x = {ROW} parameter(2)
    %product = {SMALL} dot({ROW} %x, {LOW} %low), lhs_contracting_dims={{1}}
    %dot.2 = {RESULT} dot({SMALL} %product, {HIGH} %high), lhs_contracting_dims={{1}} // result
""")


def test_another_order_needs_fewer_flop() -> None:
    checked = check_rule(
        ExcessWork,
        slow=drawn(SLOW, SECOND, program(IN_ORDER)),
        fixed=drawn(FIXED, SECOND, OTHER),
        scales=False,
    )
    (finding,) = checked.findings
    # Now 4096·64·2048 + 1024·4096·2048 = 9.13e9 terms; then 1024·4096·64 + 1024·64·2048 = 0.40e9.
    assert "4.4 % is needed" in finding.summary
    assert "parentheses" in finding.remedies[0].text


QUERIES, ALL_PAIRS_OF_8 = "bf16[8,{0},512]{{2,1,0}}", "bf16[8,{0},{0}]{{2,1,0}}"
ATTENDED = "%attended = {queries} fusion({queries} %q, {queries} %k, {queries} %v), kind=kOutput"


@pytest.mark.parametrize(
    ("length", "labels", "needed"),
    [
        # Terms now: 2 · 8 · 4096² · 512; in the other order 2 · 8 · 4096 · 512².
        (4096, ("0bf_0oi->0bf", "0bf_0io->0bf"), "12.5 %"),
        (2048, ("0fb_0oi->0bf", "0bf_0io->0bf"), "25.0 %"),
        (256, ("0bf_0oi->0bf", "0bf_0io->0bf"), ""),
    ],
)
def test_the_order_of_products_in_a_batch(
    length: int, labels: tuple[str, str], needed: str
) -> None:
    # Linear attention as XLA compiles it for TPUs, by rows and by columns of the queries.
    queries, pairs = QUERIES.format(length), ALL_PAIRS_OF_8.format(length)
    first = queries if labels[0].startswith("0b") else f"bf16[8,512,{length}]{{2,1,0}}"
    window = "window={size=8 stride=7 lhs_dilate=8}, dim_labels="
    text = f"""
        %q = {first} parameter(0)
        %k = {queries} parameter(1)
        %v = {queries} parameter(2)
        %s = {pairs} convolution({first} %q, {queries} %k), {window}{labels[0]}
        %o = {queries} convolution({pairs} %s, {queries} %v), {window}{labels[1]} // in attended
        %attended = {queries} copy({queries} %o) // result
    """
    found = find(ExcessWork, drawn(SLOW, ATTENDED.format(queries=queries), program(text))) or ()
    assert [f"{needed} is needed" in finding.summary for finding in found] == [True] * bool(needed)


def test_a_product_that_something_else_reads_stays() -> None:
    text = IN_ORDER + f"%sum = {WHOLE} add({WHOLE} %whole, {WHOLE} %whole) // result"
    assert find(ExcessWork, drawn(SLOW, SECOND, program(text))) == ()


def test_a_map_between_the_products_forbids_another_order() -> None:
    text = IN_ORDER.replace("copy(", "tanh(")
    assert find(ExcessWork, drawn(SLOW, SECOND, program(text))) == ()


COVARIANCE, POINTS = "f32[4096,4096]{1,0}", "bf16[4096,1024]{1,0}"
DIAGONAL = f"""
    %k = {POINTS} parameter(0)
    %x = s32[4096]{{0}} parameter(1)
    %all = {COVARIANCE} dot({POINTS} %k, {POINTS} %k), lhs_contracting_dims={{1}}
    %places = s32[4096,2]{{1,0}} iota(), iota_dimension=0
    %diagonal = f32[4096]{{0}} gather({COVARIANCE} %all, s32[4096,2] %places) // result
"""
ALL_PAIRS = f"%all = {COVARIANCE} dot({POINTS} %k, {POINTS} %k), lhs_contracting_dims={{1}}"


def test_of_a_product_whose_diagonal_is_read_little_is_needed() -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, ALL_PAIRS, program(DIAGONAL))) or ()
    # 4096 of 4096 x 4096 elements.
    assert "< 0.1 % is needed" in finding.summary
    # Which elements are read then depends on data, and to gather first may take longer.
    by_data = DIAGONAL.replace("iota(), iota_dimension=0", "broadcast(s32[4096] %x)")
    assert find(ExcessWork, drawn(SLOW, ALL_PAIRS, program(by_data))) == ()
