from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import EarlyReduction
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, UP, WIDE = "bf16[4096,512]{1,0}", "bf16[512,8192]{1,0}", "bf16[4096,8192]{1,0}"
DOWN, Y = "bf16[8192,512]{1,0}", "bf16[4096,512]{1,0}"
REDUCE = f"%all-reduce = {WIDE} all-reduce({WIDE} %partial), replica_groups={{}}"
PROGRAM = f"""
    %x = {X} parameter(0) // parts=4
    %up = {UP} parameter(1) // parts=4
    %down = {DOWN} parameter(2) // parts=4
    %partial = {WIDE} dot({X} %x, {UP} %up)
    {REDUCE}
    %hidden = {WIDE} tanh({WIDE} %all-reduce)
    %y = {Y} dot({WIDE} %hidden, {DOWN} %down) // result
"""
SQUARE, SMALL = "bf16[2048,2048]{1,0}", "bf16[4096,2048]{1,0}"
LATE = program(
    f"""
    %x = {SMALL} parameter(0)
    %up = {SQUARE} parameter(1) // parts=4
    %down = {SQUARE} parameter(2) // parts=4
    %hidden = {SMALL} dot({SMALL} %x, {SQUARE} %up)
    %partial = {SMALL} dot({SMALL} %hidden, {SQUARE} %down)
    %all-reduce = {SMALL} all-reduce({SMALL} %partial)
    %next = {SMALL} dot({SMALL} %all-reduce, {SQUARE} %up) // result
    """,
    devices=4,
)
COLUMNS = {"category": "all-reduce"}


def test_saves_what_the_smaller_array_does_not_need() -> None:
    checked = check_rule(
        EarlyReduction,
        slow=drawn(SLOW, REDUCE, program(PROGRAM, 4), **COLUMNS),
        fixed=drawn(FIXED, REDUCE, LATE, **COLUMNS),
        saves=300_000,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 4096 x 512 on each of four devices are a quarter of 4096 x 8192.
    assert finding.saving.expected_ns == pytest.approx(0.75 * 800_000, abs=2)
    assert "25.0 % of the bytes" in finding.summary


def test_an_array_that_something_else_reads_is_needed() -> None:
    text = PROGRAM + f"%kept = f32[4096]{{0}} reduce({WIDE} %hidden) // result"
    assert find(EarlyReduction, drawn(SLOW, REDUCE, program(text, 4), **COLUMNS)) == ()


def test_a_part_of_what_is_summed_up_is_enough_if_the_next_product_is_summed_up_too() -> None:
    part = "bf16[4096,2048]{1,0}"
    text = f"""
        %x = {X} parameter(0) // parts=4
        %up = {UP} parameter(1) // parts=4
        %down = bf16[2048,8192]{{1,0}} parameter(2) // parts=4
        %partial = {WIDE} dot({X} %x, {UP} %up)
        {REDUCE}
        %own = {part} dynamic-slice({WIDE} %all-reduce)
        %hidden = {part} tanh({part} %own)
        %y = {WIDE} dot({part} %hidden, bf16[2048,8192] %down)
        %sum = {WIDE} all-reduce({WIDE} %y) // result
    """
    (finding,) = find(EarlyReduction, drawn(SLOW, REDUCE, program(text, 4), **COLUMNS)) or ()
    # Nothing is exchanged before the second one.
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(800_000, abs=2)
    alone = text.replace(f"all-reduce({WIDE} %y)", f"copy({WIDE} %y)")
    assert find(EarlyReduction, drawn(SLOW, REDUCE, program(alone, 4), **COLUMNS)) == ()
