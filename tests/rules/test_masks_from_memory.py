from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.masks_from_memory import MasksFromMemory
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

SCORES = "f32[4,8,1024,1024]{3,2,1,0:T(8,128)}"
HEAD = "bf16[4,8,1024,64]{3,2,1,0:T(8,128)(2,1)}"
FUSION = f"%fusion = {SCORES} fusion({HEAD} %q, {HEAD} %k, {SCORES} %mask), kind=kOutput"
PROGRAM = f"""
    %q = {HEAD} parameter(0)
    %k = {HEAD} parameter(1)
    %mask = {SCORES} parameter(2)
    %scores = {SCORES} convolution({HEAD} %q, {HEAD} %k) // in fusion
    %sum = {SCORES} add({SCORES} %scores, {SCORES} %mask) // in fusion
    %exp = {SCORES} exponential({SCORES} %sum) // in fusion
    %mixed = {HEAD} convolution({SCORES} %exp, {HEAD} %k) // result
"""
COMPUTED = program(f"""
    %q = {HEAD} parameter(0)
    %k = {HEAD} parameter(1)
    %scores = {SCORES} convolution({HEAD} %q, {HEAD} %k) // in fusion
    %exp = {SCORES} exponential({SCORES} %scores) // in fusion
    %mixed = {HEAD} convolution({SCORES} %exp, {HEAD} %k) // result
""")


def test_saves_the_bytes_of_the_mask() -> None:
    checked = check_rule(
        MasksFromMemory,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, COMPUTED),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 134 MB take 164 µs at the peak of 819 GB/s, in each of two steps; an element of a byte has
    # a quarter of its four.
    assert finding.saving.high_ns == pytest.approx(2 * 163_880 / 0.92, rel=0.15)
    assert finding.saving.expected_ns == pytest.approx(0.75 * finding.saving.high_ns, rel=0.001)
    assert "f32[4,8,1024,1024]" in finding.summary


def test_a_residual_is_no_mask() -> None:
    # Without exponentials that become a factor, the argument is added to something else.
    text = PROGRAM.replace("exponential", "tanh")
    assert find(MasksFromMemory, drawn(SLOW, FUSION, program(text))) == ()


def test_what_is_added_to_no_product_is_no_mask() -> None:
    text = PROGRAM.replace(
        f"{SCORES} convolution({HEAD} %q, {HEAD} %k)", f"{SCORES} rng({HEAD} %q)"
    )
    assert find(MasksFromMemory, drawn(SLOW, FUSION, program(text))) == ()


def test_a_bias_that_samples_share_may_be_computed_once_and_written() -> None:
    shared = "f32[8,1024,1024]{2,1,0:T(8,128)}"
    text = PROGRAM.replace(f"%mask = {SCORES} parameter", f"%mask = {shared} parameter")
    text = text.replace(
        f"add({SCORES} %scores, {SCORES} %mask)", f"add({SCORES} %scores, {SCORES} %spread)"
    ).replace(
        "    %sum", f"    %spread = {SCORES} broadcast({shared} %mask) // in fusion\n    %sum"
    )
    trace = drawn(SLOW.replace("100us", "10us"), FUSION, program(text))
    (finding,) = find(MasksFromMemory, trace) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0 < finding.saving.expected_ns
