from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.slow_operation import SlowOperation
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

X, Y = "f32[1024,128]{1,0:T(8,128)}", "f32[1024]{0:T(1024)}"
FUSION = f"%fusion = {Y} fusion({X} %x), kind=kLoop"
PROGRAM = f"""
    %x = {X} parameter(0)
    %square = {X} multiply({X} %x, {X} %x) // in fusion
    %sum = {Y} reduce({X} %square) // in fusion, result
"""
NOTHING = program(f"""
    %x = {X} parameter(0)
    %kept = {X} copy({X} %x) // result
""")


def test_high_is_all_beyond_what_the_work_needs() -> None:
    checked = check_rule(
        SlowOperation,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, NOTHING),
        saves=300_000,
        exactly=False,
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 528 kB take less than a microsecond of 400 µs, and so does the arithmetic of 131,072 elements.
    assert finding.saving.high_ns == pytest.approx(800_000, rel=0.01)
    assert finding.saving.expected_ns == pytest.approx(400_000, rel=0.01)
    assert finding.saving.low_ns == pytest.approx(200_000, rel=0.01)
    assert "fusion reaches 0.2 % of its achievable rate" in finding.summary
    assert "model.py:37" in finding.summary


@pytest.mark.parametrize(
    "large",
    [
        "[524288,128]",  # 268 MB take 328 µs at 819 GB/s
        "[131072,512]",
    ],
)
def test_an_operation_that_needs_its_time_is_healthy(large: str) -> None:
    text, fusion = (part.replace("[1024,128]", large) for part in (PROGRAM, FUSION))
    assert find(SlowOperation, drawn(SLOW, fusion, program(text))) == ()


@pytest.mark.parametrize("opcode", ["sort", "gather", "custom-call"])
def test_what_other_rules_look_at_is_left_out(opcode: str) -> None:
    text = PROGRAM.replace("multiply(", f"{opcode}(")
    assert find(SlowOperation, drawn(SLOW, FUSION, program(text))) == ()


@pytest.mark.parametrize(("rows", "is_found"), [(4, False), (2048, True)])
def test_loading_the_matrix_unit_takes_as_long_for_few_rows(rows: int, is_found: bool) -> None:
    x, w, y = f"bf16[2048,{rows},128]", "bf16[2048,128,2048]", f"bf16[2048,{rows},2048]"
    layout, on_chip = "{2,1,0:T(8,128)(2,1)S(1)}", "{2,1,0:T(8,128)(2,1)S(1)}"
    dot = f"%dot = {y}{layout} dot({x}{layout} %x, {w}{on_chip} %w), lhs_contracting_dims={{2}}"
    text = f"""
        %x = {x}{layout} parameter(0)
        %w = {w}{on_chip} parameter(1)
        {dot} // result
    """
    # Four rows take 2 x 2,048 x 4 x 128 x 2,048 FLOP, 29 µs of 400 at 75 % of the peak. Squares of
    # 128 by 128 weights take 32 times as long to load. For 2,048 rows, 400 ms is what
    # 2 x 2,048^3 x 128 FLOP take 27 times.
    slow = SLOW if rows == 4 else SLOW.replace("100us", "100ms")
    assert bool(find(SlowOperation, drawn(slow, dot, program(text)))) == is_found


@pytest.mark.parametrize(
    ("channels", "taps", "is_found"), [(3, 7, False), (64, 7, True), (3, 1, True)]
)
def test_the_rate_of_convolutions_of_few_channels_is_not_known(
    channels: int, taps: int, is_found: bool
) -> None:
    x, w, y = f"bf16[1,64,64,{channels}]", f"bf16[{taps},{taps},{channels},64]", "bf16[1,64,64,64]"
    window = f"window={{size={taps}x{taps}}}, dim_labels=b01f_01io->b01f"
    text = f"%conv = {y} convolution({x} %x, {w} %w), {window}"
    slow = drawn(
        SLOW,
        text,
        program(f"""
            %x = {x} parameter(0)
            %w = {w} parameter(1)
            {text} // result
        """),
    )
    assert bool(find(SlowOperation, slow)) is is_found


@pytest.mark.parametrize("opcode", ["reshape", "transpose", "copy"])
def test_moves_are_for_other_rules(opcode: str) -> None:
    move = f"%move = {X} {opcode}({X} %x)"
    text = f"""
        %x = {X} parameter(0)
        {move} // result
    """
    assert find(SlowOperation, drawn(SLOW, move, program(text))) == ()
