from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.weights_read_twice import WeightsReadTwice
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, W, Y = "bf16[64,4096]{1,0}", "bf16[4096,16384]{1,0}", "bf16[64,16384]{1,0}"
DOT = f"%dot.2 = {Y} dot({X} %b, {W} %w), lhs_contracting_dims={{1}}"
PROGRAM = f"""
    %a = {X} parameter(0)
    %b = {X} parameter(1)
    %w = {W} parameter(2)
    %dot.1 = {Y} dot({X} %a, {W} %w), lhs_contracting_dims={{1}} // result
    {DOT} // result
"""
ONCE = program(f"""
    %b = {X} parameter(0)
    %w = {W} parameter(1)
    {DOT} // result
""")


def test_saves_one_reading_of_the_weights() -> None:
    checked = check_rule(
        WeightsReadTwice,
        slow=drawn(SLOW, DOT, program(PROGRAM)),
        fixed=drawn(FIXED, DOT, ONCE),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 134 MB take 164 µs at the peak of 819 GB/s, in each of two steps.
    assert finding.saving.high_ns == pytest.approx(2 * 163_880 / 0.92, rel=0.15)
    assert finding.saving.expected_ns == pytest.approx(finding.saving.high_ns / 2, rel=0.001)


def test_layers_that_follow_one_another_cannot_be_joined() -> None:
    text = PROGRAM.replace(f"{X} %b, {W}", f"{X} %next, {W}").replace(
        "    %dot.2", f"    %next = {X} slice({Y} %dot.1)\n    %dot.2"
    )
    assert find(WeightsReadTwice, drawn(SLOW, DOT, program(text))) == ()


def test_weights_that_stay_on_the_chip_are_read_once() -> None:
    text = PROGRAM.replace(
        f"%w = {W} parameter(2)",
        f"""%far = {W} parameter(2)
    %w = {W} copy-start({W} %far)""",
    )
    assert find(WeightsReadTwice, drawn(SLOW, DOT, program(text))) == ()


def test_a_few_rows_beside_many_need_no_reading_of_their_own() -> None:
    # 2048 rows of prompts, and 64 of other requests.
    many, prompts = "bf16[2048,4096]{1,0}", "bf16[2048,16384]{1,0}"
    text = PROGRAM.replace(f"%a = {X}", f"%a = {many}").replace(
        f"%dot.1 = {Y} dot({X} %a", f"%dot.1 = {prompts} dot({many} %a"
    )
    (finding,) = find(WeightsReadTwice, drawn(SLOW, DOT, program(text))) or ()
    assert "2 times" in finding.summary
    assert any("prompt" in remedy.text for remedy in finding.remedies)
    # Many rows twice: reading the weights takes next to nothing of either product.
    both = text.replace(f"%b = {X}", f"%b = {many}").replace(
        f"%dot.2 = {Y} dot({X} %b", f"%dot.2 = {prompts} dot({many} %b"
    )
    assert find(WeightsReadTwice, drawn(SLOW, DOT, program(both))) == ()
