from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import RewrittenArrays
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

CACHE = "bf16[16,8,2048,128]{3,2,1,0:T(8,128)(2,1)}"
NEW = "bf16[16,8,1,128]{3,2,1,0:T(8,128)(2,1)}"
MASK = "pred[16,8,2048,128]{3,2,1,0}"
FUSION = f"%fusion = {CACHE} fusion({CACHE} %cache, {NEW} %new, s32[] %at), kind=kLoop"
WHERE = program(f"""
    %cache = {CACHE} parameter(0) // aliased
    %new = {NEW} parameter(1)
    %at = s32[] parameter(2)
    %iota = s32[2048]{{0}} iota() // in fusion
    %place = s32[2048]{{0}} broadcast(s32[] %at) // in fusion
    %is = pred[2048]{{0}} compare(s32[2048]{{0}} %iota, s32[2048]{{0}} %place), direction=EQ
    %mask = {MASK} broadcast(pred[2048]{{0}} %is) // in fusion
    %wide = {CACHE} broadcast({NEW} %new) // in fusion
    %chosen = {CACHE} select({MASK} %mask, {CACHE} %wide, {CACHE} %cache) // in fusion, result
""")
IN_PLACE = program(f"""
    %cache = {CACHE} parameter(0) // aliased
    %new = {NEW} parameter(1)
    %update = {CACHE} dynamic-update-slice({CACHE} %cache, {NEW} %new) // in fusion, result
""")
TABLE, ROWS = "f32[65536,256]{1,0:T(8,128)}", "f32[1024,256]{1,0:T(8,128)}"
DENSE = f"""
    %table = {TABLE} parameter(0) // aliased
    %ids = s32[1024]{{0}} parameter(1)
    %rows = {ROWS} parameter(2)
    %zero = f32[] constant(0)
    %zeros = {TABLE} broadcast(f32[] %zero)
    %sum = {TABLE} scatter({TABLE} %zeros, s32[1024]{{0}} %ids, {ROWS} %rows) // in fusion
    %step = {TABLE} multiply({TABLE} %sum, {TABLE} %zeros) // in fusion
    %next = {TABLE} subtract({TABLE} %table, {TABLE} %step) // in fusion, result
"""


def test_saves_what_writing_the_whole_array_takes() -> None:
    checked = check_rule(
        RewrittenArrays,
        slow=drawn(SLOW, FUSION, WHERE),
        fixed=drawn(FIXED, FUSION, IN_PLACE),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # One pass over 67.1 MB takes 81.9 µs at the peak of 819 GB/s, in each of two steps.
    assert finding.saving.expected_ns == pytest.approx(2 * 81_920 / 0.92, rel=0.15)
    assert "a choice over all positions" in finding.summary


def test_a_gradient_for_all_rows_of_a_table() -> None:
    fusion = FUSION.replace(CACHE, TABLE)
    (finding,) = find(RewrittenArrays, drawn(SLOW, fusion, program(DENSE))) or ()
    assert "adding a gradient for all rows" in finding.summary
    # A gradient that has all rows is no look-up's.
    text = DENSE.replace("scatter", "add")
    assert find(RewrittenArrays, drawn(SLOW, fusion, program(text))) == ()


def test_a_cache_that_is_put_into_another_order() -> None:
    gather = f"%gather = {CACHE} gather({CACHE} %cache, s32[16]{{0}} %beams)"
    text = f"""
        %cache = {CACHE} parameter(0) // aliased
        %beams = s32[16]{{0}} parameter(1)
        {gather}
        %copy = {CACHE} copy({CACHE} %gather) // result
    """
    (finding,) = find(RewrittenArrays, drawn(SLOW, gather, program(text))) or ()
    assert finding.saving is not None
    assert "moving all rows into another order" in finding.summary
    # The gather and the copy read and write 67.1 MB each: 328 µs at the peak of 819 GB/s.
    assert finding.saving.high_ns == pytest.approx(2 * 4 * 81_920 / 0.92, rel=0.15)


def test_a_cache_that_is_shifted_by_joining_padded_parts() -> None:
    old = "bf16[16,8,2047,128]{3,2,1,0}"
    text = f"""
        %cache = {CACHE} parameter(0) // aliased
        %new = {NEW} parameter(1)
        %zero = bf16[] constant(0)
        %old = {old} slice({CACHE} %cache)
        %left = {CACHE} pad({old} %old, bf16[] %zero) // in fusion
        %right = {CACHE} pad({NEW} %new, bf16[] %zero) // in fusion
        %joined = {CACHE} maximum({CACHE} %left, {CACHE} %right) // in fusion, result
    """
    (finding,) = find(RewrittenArrays, drawn(SLOW, FUSION, program(text))) or ()
    assert "joining old and new elements" in finding.summary
    assert finding.saving is not None
    # All that the fusion does is joining them: of 400 µs in each step, a tenth remains.
    assert finding.saving.expected_ns == pytest.approx(0.9 * 800_000, rel=0.001)
    # If it also computes the new elements, one pass over 67.1 MB goes.
    computed = text.replace(f"pad({NEW} %new", f"pad({NEW} %made").replace(
        "%right", f"%made = {NEW} tanh({NEW} %new) // in fusion\n        %right", 1
    )
    (finding,) = find(RewrittenArrays, drawn(SLOW, FUSION, program(computed))) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(2 * 81_920 / 0.92, rel=0.15)
    # The larger of two arrays that are not padded is something else.
    other = text.replace("pad({NEW}", "copy({NEW}").replace("pad(", "tanh(")
    assert find(RewrittenArrays, drawn(SLOW, FUSION, program(other))) == ()
