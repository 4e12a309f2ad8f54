from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.faster_operations import ProductsInLoop
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

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
    # 2 x 32 x 1024 x 4096 FLOP at three quarters of 197 TFLOP/s take 1.817 µs of the 400. The bytes
    # take less: (2 x 256 + 64 + 32) KiB at 819 GB/s.
    assert finding.saving.expected_ns == pytest.approx(800_000 - 2 * 1_817, rel=0.0001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)


def test_a_product_of_the_state_has_to_stay() -> None:
    text = PROGRAM.replace(f"dot({ONE} %part", f"dot({ONE} %state").replace(
        "%gates =", f"%state = {ONE} reduce({ONE} %part) // runs=256\n    %gates ="
    )
    assert find(ProductsInLoop, drawn(SLOW, FUSION, program(text))) == ()


def test_weights_of_other_products_may_stay_on_the_chip_then() -> None:
    slow = """
        cell 100us
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXssssoooX|XXssssoooX|
    """
    other = f"%other = {GATES} dot({ONE} %state, {W} %u), lhs_contracting_dims={{1}}"
    text = (
        PROGRAM
        + f"""
    %u = {W} parameter(3)
    %last = {ONE} tanh({GATES} %state) // runs=256
    {other.replace("%state", "%last")} // runs=256
    """
    )
    symbols = {
        "s": xla_op("fusion", FUSION, module=MODULE),
        "o": xla_op("other", other, module=MODULE),
    }
    trace = draw(slow, legend=symbols, device="TPU v5 lite")
    (finding,) = find(ProductsInLoop, replace(trace, programs=(program(text),))) or ()
    assert finding.saving is not None
    # Nothing is expected of the other product. At best, it does not read 8 MiB at 85 % of 819 GB/s,
    # which take 12.0 µs.
    assert finding.saving.expected_ns == pytest.approx(800_000 - 2 * 1_817, rel=0.0001)
    assert finding.saving.high_ns == pytest.approx(800_000 - 1_817 + 2 * 12_050, rel=0.001)
