from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.scores_in_memory import ScoresInMemory
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

HEADS, SCORES = "bf16[8,2048,128]{2,1,0}", "f32[8,2048,2048]{2,1,0}"
ROWS = "f32[8,2048]{1,0}"
OF = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}"
SOFTMAX = f"%softmax = {SCORES} fusion({SCORES} %scores), kind=kLoop"
PROGRAM = f"""
    %q = {HEADS} parameter(0)
    %k = {HEADS} parameter(1)
    %v = {HEADS} parameter(2)
    %zero = f32[] constant(0)
    %scores = {SCORES} dot({HEADS} %q, {HEADS} %k), {OF}, rhs_contracting_dims={{2}}
    %weights = {SCORES} exponential({SCORES} %scores) // in softmax
    %sum = {ROWS} reduce({SCORES} %weights, f32[] %zero), dimensions={{2}} // in softmax
    %sums = {SCORES} broadcast({ROWS} %sum), dimensions={{0,1}} // in softmax
    %parts = {SCORES} divide({SCORES} %weights, {SCORES} %sums) // in softmax
    %out = {HEADS} dot({SCORES} %parts, {HEADS} %v), {OF}, rhs_contracting_dims={{1}} // result
"""
IN_ONE_KERNEL = program(f"""
    %q = {HEADS} parameter(0)
    %softmax = {HEADS} custom-call({HEADS} %q) // result
""")


def test_finds_scores_that_are_written_and_read() -> None:
    checked = check_rule(
        ScoresInMemory,
        slow=drawn(SLOW, SOFTMAX, program(PROGRAM)),
        fixed=drawn(FIXED, SOFTMAX, IN_ONE_KERNEL),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.is_unknown
    # Two products of 2 x 8 x 2048 x 2048 x 128 FLOP take 87.2 µs of the 400 at 197 TFLOP/s.
    assert finding.saving.high_ns == pytest.approx(2 * (400_000 - 87_200), rel=0.001)
    assert "128 MiB each time" in finding.summary
    assert "At most 313 µs of each step" in finding.summary


def test_scores_that_stay_on_the_chip_cost_no_bandwidth() -> None:
    here = SOFTMAX.replace("{2,1,0}", "{2,1,0:T(8,128)S(1)}")
    assert find(ScoresInMemory, drawn(SLOW, here, program(PROGRAM))) == ()


def test_operations_that_take_longer_than_moving_the_scores_have_another_reason() -> None:
    # 2 x 128 MiB take 386 µs, less than half of 4 ms.
    slow = SLOW.replace("100us", "1ms")
    assert find(ScoresInMemory, drawn(slow, SOFTMAX, program(PROGRAM))) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # No softmax: a chain of products.
        (f"exponential({SCORES} %scores)", f"tanh({SCORES} %scores)"),
        # Few positions.
        ("2048,128", "256,128"),
        # Nothing multiplies the scores.
        (f"dot({SCORES} %parts", f"dot({HEADS} %q"),
    ],
)
def test_other_products_stay(before: str, after: str) -> None:
    assert before in PROGRAM
    text = PROGRAM.replace(before, after)
    if after == "256,128":
        text = text.replace("2048,2048", "256,256")
    assert find(ScoresInMemory, drawn(SLOW, SOFTMAX, program(text))) == ()


def test_a_vocabulary_is_no_attention() -> None:
    x, w, logits = "bf16[8192,1024]{1,0}", "bf16[1024,32768]{1,0}", "f32[8192,32768]{1,0}"
    softmax = f"%softmax = {logits} fusion({logits} %scores), kind=kLoop"
    text = f"""
        %x = {x} parameter(0)
        %w = {w} parameter(1)
        %zero = f32[] constant(0)
        %scores = {logits} dot({x} %x, {w} %w), lhs_contracting_dims={{1}}
        %parts = {logits} exponential({logits} %scores) // in softmax
        %sum = f32[8192]{{0}} reduce({logits} %parts, f32[] %zero), dimensions={{1}} // in softmax
        %gradient = {x} dot({logits} %parts, {w} %w), lhs_contracting_dims={{1}} // result
    """
    symbols = {"s": xla_op("softmax", softmax, module=MODULE)}
    trace = draw(SLOW.replace("100us", "1ms"), legend=symbols, device="TPU v5 lite")
    assert find(ScoresInMemory, replace(trace, programs=(program(text),))) == ()
