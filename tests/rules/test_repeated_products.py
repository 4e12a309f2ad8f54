from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import RepeatedProducts
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, W, Y = "bf16[4096,1024]{1,0}", "bf16[1024,2048]{1,0}", "bf16[4096,2048]{1,0}"
DOT = f"%dot = {Y} dot({X} %x, {W} %w), lhs_contracting_dims={{1}}"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    {DOT} // result
"""
SPLIT = program(PROGRAM.replace("parameter(0)", "parameter(0) // parts=4"), devices=4)


def test_saves_what_the_other_devices_do_too() -> None:
    checked = check_rule(
        RepeatedProducts,
        slow=drawn(SLOW, DOT, program(PROGRAM, devices=4)),
        fixed=drawn(FIXED, DOT, SPLIT),
        saves=300_000,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Each of four devices would do a quarter of 2 x 400 µs.
    assert finding.saving.high_ns == pytest.approx(600_000, abs=2)
    assert finding.saving.expected_ns == pytest.approx(0.9 * 600_000, abs=2)
    assert "all 4 devices compute alike" in finding.summary


def test_one_device_repeats_nothing() -> None:
    assert find(RepeatedProducts, drawn(SLOW, DOT, program(PROGRAM))) == ()


def test_what_was_gathered_from_all_devices_is_the_same_on_each() -> None:
    gathered = f"""
        %x = {X} parameter(0)
        %part = bf16[256,2048]{{1,0}} parameter(1) // parts=4
        %w = {W} all-gather(bf16[256,2048]{{1,0}} %part)
        {DOT} // result
    """
    trace = drawn(SLOW, DOT, program(gathered, devices=4))
    assert len(find(RepeatedProducts, trace) or ()) == 1
    # Gathered from half of the devices, it differs between the halves.
    halves = gathered.replace("bf16[256,2048]", "bf16[512,2048]")
    assert find(RepeatedProducts, drawn(SLOW, DOT, program(halves, devices=4))) == ()
