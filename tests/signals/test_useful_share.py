"""FLOP that devices repeat, or whose results nobody uses, are no work of the model."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.needed_work import useful_share
from tb_perfadvisor.testing.builder import run_of
from tests.support.program_values import SLOW, drawn, program

X, W, Y = "bf16[4096,1024]{1,0}", "bf16[1024,2048]{1,0}", "bf16[4096,2048]{1,0}"
DOT = f"%dot = {Y} dot({X} %x, {W} %w), lhs_contracting_dims={{1}}"


def share(text: str, devices: int = 1) -> float | None:
    trace = drawn(SLOW, DOT, program(text, devices))
    return useful_share(Signals(run_of(trace)))


def test_of_what_four_devices_repeat_a_quarter_is_useful() -> None:
    text = f"""
        %x = {X} parameter(0)
        %w = {W} parameter(1)
        {DOT} // result
    """
    assert share(text) == 1.0
    assert share(text, devices=4) == 0.25
    assert share(text.replace("parameter(0)", "parameter(0) // parts=4"), devices=4) == 1.0


def test_of_a_result_that_is_sliced_the_slice_is_useful() -> None:
    text = f"""
        %x = {X} parameter(0)
        %w = {W} parameter(1)
        {DOT}
        %part = bf16[512,2048]{{1,0}} slice({Y} %dot) // result
    """
    assert share(text) == pytest.approx(0.125)
