from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.products_in_loop import ProductsInLoop
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

ALL, ONE, W = "bf16[256,32,1024]{2,1,0}", "bf16[32,1024]{1,0}", "bf16[1024,4096]{1,0}"
GATES = "bf16[32,4096]{1,0}"
FUSION = f"%fusion = {GATES} fusion({ALL} %x, {W} %w, s32[] %trip), kind=kOutput"
PROGRAM = f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %trip = s32[] parameter(2)
    %part = {ONE} dynamic-slice({ALL} %x, s32[] %trip) // in fusion, runs=256
    %gates = {GATES} dot({ONE} %part, {W} %w), lhs_contracting_dims={{1}} // in fusion, runs=256
    %state = {GATES} tanh({GATES} %gates) // result, runs=256
"""
BEFORE = program(f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %gates = bf16[256,32,4096] dot({ALL} %x, {W} %w) // in fusion, result
""")


def test_saves_what_reading_the_weights_takes() -> None:
    checked = check_rule(
        ProductsInLoop,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, BEFORE),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert "256 times bf16[32,4096]" in finding.instance
    # 2 x 32 x 1024 x 4096 FLOP at three quarters of 197 TFLOP/s take 1.817 µs of the 400, and in
    # practice 1.25 times that. The bytes take less: (2 x 256 + 64 + 32) KiB at 819 GB/s.
    assert finding.saving.expected_ns == pytest.approx(800_000 - 2 * 2_271, rel=0.0001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)


def test_a_product_of_the_state_has_to_stay() -> None:
    text = PROGRAM.replace(f"dot({ONE} %part", f"dot({ONE} %state").replace(
        "%gates =", f"%state = {ONE} reduce({ONE} %part) // runs=256\n    %gates ="
    )
    assert find(ProductsInLoop, drawn(SLOW, FUSION, program(text))) == ()
