"""Products whose results a mask drops that only positions decide."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.signals.program.positions import kept_share
from tb_perfadvisor.testing import find
from tests.support.program_values import SLOW, drawn, program

LENGTH, BLOCK = 2048, 512
PLACES, MASK = "s32[2048,2048]{1,0}", "pred[2048,2048]{1,0}"
ROW_AND_COLUMN = f"""
    %count = s32[2048]{{0}} iota(), iota_dimension=0
    %row = {PLACES} broadcast(s32[2048] %count), dimensions={{0}}
    %column = {PLACES} broadcast(s32[2048] %count), dimensions={{1}}
"""


def number(name: str, value: int) -> str:
    """A constant in all places."""
    return f"""
        %{name}.1 = s32[] constant({value})
        %{name} = {PLACES} broadcast(s32[] %{name}.1), dimensions={{}}
    """


def pairs(left: str, right: str, opcode: str, result: str = PLACES) -> str:
    return f"{result} {opcode}({result} %{left}, {result} %{right})"


CAUSAL = f"%mask = {pairs('row', 'column', 'compare', MASK)}, direction=GE"
BANDED = f"""
    {number("nine", 9)} {number("one", 1)}
    %rows = {pairs("row", "nine", "shift-right-logical")}
    %columns = {pairs("column", "nine", "shift-right-logical")}
    %back = {pairs("rows", "columns", "subtract")}
    %same = {MASK} compare({PLACES} %rows, {PLACES} %columns), direction=EQ
    %before = {MASK} compare({PLACES} %back, {PLACES} %one), direction=EQ
    %mask = {pairs("same", "before", "or", MASK)}
"""
DILATED = f"""
    {number("three", 3)} {number("zero", 0)}
    %back = {pairs("row", "column", "subtract")}
    %rest = {pairs("back", "three", "remainder")}
    %mask = {MASK} compare({PLACES} %rest, {PLACES} %zero), direction=EQ
"""
TURNED = f"""
    %after = {pairs("row", "column", "compare", MASK)}, direction=GT
    %turned = {MASK} transpose({MASK} %after), dimensions={{1,0}}
    %mask = {MASK} not({MASK} %turned)
"""
OF_DATA = f"""
    %length = s32[] parameter(7)
    %lengths = {PLACES} broadcast(s32[] %length), dimensions={{}}
    %mask = {MASK} compare({PLACES} %column, {PLACES} %lengths), direction=LT
"""
PLACE = np.arange(LENGTH)
BACK = PLACE[:, None] - PLACE


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        (CAUSAL, BACK >= 0),
        (BANDED, np.isin(PLACE[:, None] // BLOCK - PLACE // BLOCK, (0, 1))),
        (DILATED, BACK % 3 == 0),
        (TURNED, BACK >= 0),
        # What the data decide may be anything.
        (OF_DATA, np.ones_like(BACK, dtype=bool)),
    ],
)
def test_the_blocks_that_a_mask_keeps(text: str, mask: np.ndarray) -> None:
    made = program(ROW_AND_COLUMN + text)
    blocks = mask.reshape(LENGTH // BLOCK, BLOCK, -1, BLOCK).any(axis=(1, 3))
    assert kept_share(made, len(made) - 1) == blocks.mean()
    dropped = (~mask).reshape(LENGTH // BLOCK, BLOCK, -1, BLOCK).any(axis=(1, 3))
    if dropped.any():
        assert kept_share(made, len(made) - 1, where=False) == dropped.mean()


HEADS, QUERIES = "f32[16,2048,2048]{2,1,0}", "f32[16,2048,128]{2,1,0}"
CONTRACTS = (
    "lhs_contracting_dims={2}, rhs_contracting_dims={2}, lhs_batch_dims={0}, rhs_batch_dims={0}"
)
LAST = "lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_batch_dims={0}, rhs_batch_dims={0}"
SCORES = f"%y = {QUERIES} fusion({QUERIES} %q, {QUERIES} %k, {QUERIES} %v), kind=kOutput"
MASKED = f"""
    %m = pred[16,2048,2048]{{2,1,0}} broadcast({MASK} %mask), dimensions={{1,2}} // in y
    %low.1 = f32[] constant(-1e9)
    %low = {HEADS} broadcast(f32[] %low.1), dimensions={{}} // in y
"""
SELECTED = f"%masked = {HEADS} select(pred[16,2048,2048] %m, {HEADS} %scores, {HEADS} %low) // in y"
ADDED = f"""
    %nothing.1 = f32[] constant(0)
    %nothing = {HEADS} broadcast(f32[] %nothing.1), dimensions={{}} // in y
    %bias = {HEADS} select(pred[16,2048,2048] %m, {HEADS} %nothing, {HEADS} %low) // in y
    %masked = {HEADS} add({HEADS} %scores, {HEADS} %bias) // in y
"""


def attention(mask: str, masked: str = SELECTED) -> str:
    """Scores, a softmax without its sum, and what it weighs."""
    return f"""
        {ROW_AND_COLUMN} {mask}
        %q = {QUERIES} parameter(0)
        %k = {QUERIES} parameter(1)
        %v = {QUERIES} parameter(2)
        %scores = {HEADS} dot({QUERIES} %q, {QUERIES} %k), {CONTRACTS} // in y
        {MASKED} {masked}
        %e = {HEADS} exponential({HEADS} %masked) // in y
        %y = {QUERIES} dot({HEADS} %e, {QUERIES} %v), {LAST} // in y, result
    """


@pytest.mark.parametrize(
    ("mask", "masked", "kept"),
    [(CAUSAL, SELECTED, 10 / 16), (CAUSAL, ADDED, 10 / 16), (BANDED, SELECTED, 7 / 16)],
)
def test_saves_the_blocks_that_a_mask_drops(mask: str, masked: str, kept: float) -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, SCORES, program(attention(mask, masked)))) or ()
    assert "positions alone" in finding.summary
    assert f"{kept:.1%} is needed".replace("%", " %") in finding.summary
    assert "blocks that the mask keeps" in finding.remedies[0].text


@pytest.mark.parametrize("mask", [DILATED, OF_DATA])
def test_scattered_and_unknown_masks_need_all(mask: str) -> None:
    assert find(ExcessWork, drawn(SLOW, SCORES, program(attention(mask)))) == ()


def test_a_bias_that_is_not_far_below_drops_nothing() -> None:
    biased = attention(CAUSAL, ADDED).replace("constant(-1e9)", "constant(-2)")
    assert find(ExcessWork, drawn(SLOW, SCORES, program(biased))) == ()


X, UP, HIDDEN, DOWN = (
    f"f32[{dims}]{{1,0}}" for dims in ("4096,512", "512,1024", "4096,1024", "1024,512")
)
EXPERT = f"%own = {X} fusion({X} %x, {UP} %up, {DOWN} %down), kind=kOutput"


def expert(dimension: int) -> str:
    """Two products for all rows, of which a mask keeps a quarter of the rows or of the columns."""
    size = (4096, 512)[dimension]
    return f"""
        %x = {X} parameter(0)
        %up = {UP} parameter(1)
        %down = {DOWN} parameter(2)
        %hidden = {HIDDEN} dot({X} %x, {UP} %up), lhs_contracting_dims={{1}} // in own
        %mapped = {HIDDEN} tanh({HIDDEN} %hidden) // in own
        %all = {X} dot({HIDDEN} %mapped, {DOWN} %down), lhs_contracting_dims={{1}} // in own
        %place = s32[{size}]{{0}} iota(), iota_dimension=0 // in own
        %quarter.1 = s32[] constant({size // 4})
        %quarter = s32[{size}]{{0}} broadcast(s32[] %quarter.1), dimensions={{}} // in own
        %is = pred[{size}]{{0}} compare(s32[{size}] %place, s32[{size}] %quarter), direction=LT
        %mask = pred[4096,512]{{1,0}} broadcast(pred[{size}] %is), dimensions={{{dimension}}}
        %zero.1 = f32[] constant(0)
        %zero = {X} broadcast(f32[] %zero.1), dimensions={{}} // in own
        %own = {X} select(pred[4096,512] %mask, {X} %all, {X} %zero) // in own, result
    """


def test_rows_that_a_mask_drops_go_through_no_layer() -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, EXPERT, program(expert(0)))) or ()
    assert "25.0 % is needed" in finding.summary


def test_a_row_of_which_a_mask_drops_columns_is_needed_before() -> None:
    # One block holds the 512 columns, so that none is left out.
    assert find(ExcessWork, drawn(SLOW, EXPERT, program(expert(1)))) == ()
