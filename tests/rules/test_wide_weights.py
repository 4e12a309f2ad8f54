from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import WideWeights
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import drawn, program

SLOW = """
    cell 10us
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXssssssss|XXssssssss|
"""
W, NARROW = "bf16[4096,8192]{1,0:T(8,128)(2,1)}", "s8[4096,8192]{1,0:T(32,128)(4,1)}"
X, Y = "bf16[16,4096]{1,0:T(8,128)(2,1)}", "bf16[16,8192]{1,0:T(8,128)(2,1)}"
DOT = f"%dot = {Y} dot({X} %x, {W} %w), lhs_contracting_dims={{1}}"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    {DOT} // result
"""


def test_saves_half_of_the_bytes() -> None:
    checked = check_rule(
        WideWeights,
        slow=drawn(SLOW, DOT, program(PROGRAM)),
        fixed=drawn(SLOW, DOT.replace(W, NARROW), program(PROGRAM.replace(W, NARROW))),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.is_lossy
    # 67.1 MB in each step; without half of them, the memory saves 41 µs at the peak of 819 GB/s.
    assert finding.saving.high_ns == pytest.approx(2 * 40_970 / 0.92, rel=0.2)
    assert "64.0 MiB" in finding.summary


def test_many_rows_keep_the_matrix_unit_busy() -> None:
    text = PROGRAM.replace("[16,", "[512,")
    assert find(WideWeights, drawn(SLOW, DOT, program(text))) == ()


def test_weights_that_the_step_changes_are_trained() -> None:
    text = PROGRAM.replace("parameter(1)", "parameter(1) // aliased")
    assert find(WideWeights, drawn(SLOW, DOT, program(text))) == ()


def test_keys_and_values_are_no_weights() -> None:
    attention = f"""
        %x = {X} parameter(0)
        %w = {W} parameter(1)
        {DOT}
        %exp = {Y} exponential({Y} %dot)
        %mixed = {X} dot({Y} %exp, {W} %w), lhs_contracting_dims={{1}} // result
    """
    assert find(WideWeights, drawn(SLOW, DOT, program(attention))) == ()
    other = attention.replace("exponential", "tanh")
    assert find(WideWeights, drawn(SLOW, DOT, program(other)))


def test_values_that_are_multiplied_and_summed_up_make_keys_of_the_weights() -> None:
    text = f"""
        %x = {X} parameter(0)
        %w = {W} parameter(1)
        {DOT}
        %exp = {Y} exponential({Y} %dot)
        %spread = {W} broadcast({Y} %exp), dimensions={{}}
        %values = {W} multiply({W} %spread, {W} %w)
        %mixed = {X} reduce({W} %values) // result
    """
    assert find(WideWeights, drawn(SLOW, DOT, program(text))) == ()
    assert find(WideWeights, drawn(SLOW, DOT, program(text.replace("reduce(", "negate("))))


def test_tokens_that_a_router_multiplies_are_no_weights() -> None:
    # 4,096 tokens are the first of two arguments; the 16 columns are weights.
    tokens, router = "bf16[4096,8192]{1,0:T(8,128)(2,1)}", "bf16[8192,16]{1,0:T(8,128)(2,1)}"
    result = "bf16[4096,16]{1,0:T(8,128)(2,1)}"
    dot = f"%dot = {result} dot({tokens} %x, {router} %w), lhs_contracting_dims={{1}}"
    text = f"""
        %x = {tokens} parameter(0)
        %w = {router} parameter(1)
        {dot} // result
    """
    assert find(WideWeights, drawn(SLOW, dot, program(text))) == ()
    # As the second factor, the same array is the weights of 16 rows.
    swapped = dot.replace(f"{tokens} %x, {router} %w", f"{router} %w, {tokens} %x")
    assert find(WideWeights, drawn(SLOW, swapped, program(text.replace(dot, swapped))))
