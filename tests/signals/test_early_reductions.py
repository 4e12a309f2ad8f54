"""Sums over the devices of larger arrays than another split would need."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.devices import early_reductions
from tb_perfadvisor.testing.builder import run_of
from tests.support.program_values import SLOW, drawn, program

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


def shares(text: str) -> list[float]:
    """What would be exchanged instead, relative to now, of each reduction."""
    trace = drawn(SLOW, REDUCE, program(text, 4), category="all-reduce")
    return [found.share for found in early_reductions(Signals(run_of(trace)))]


def test_the_result_of_the_next_product_is_smaller() -> None:
    # 4096 x 512 on each of four devices are a quarter of 4096 x 8192.
    assert shares(PROGRAM) == [pytest.approx(0.25)]


def test_an_array_that_something_else_reads_is_needed() -> None:
    text = PROGRAM + f"%kept = f32[4096]{{0}} reduce({WIDE} %hidden) // result"
    assert shares(text) == []


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
    # Nothing is exchanged before the second one.
    assert shares(text) == [0.0]
    alone = text.replace(f"all-reduce({WIDE} %y)", f"copy({WIDE} %y)")
    assert shares(alone) == []
