from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.faster_operations import WidenedWeights
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

F32 = "f32[4096,4096]{1,0}"
NARROW, WIDE = "s8[4096,4096]{1,0:T(32,128)(4,1)}", "bf16[4096,4096]{1,0:T(8,128)(2,1)}"
X = "bf16[16,4096]{1,0:T(8,128)(2,1)}"
FUSION = f"%fusion = {WIDE} fusion({NARROW} %w, f32[4096]{{0}} %scale), kind=kLoop"
PROGRAM = f"""
    %x = {X} parameter(0)
    %w = {NARROW} parameter(1)
    %scale = f32[4096]{{0}} parameter(2)
    %wide = {F32} convert({NARROW} %w) // in fusion
    %scales = {F32} broadcast(f32[4096]{{0}} %scale) // in fusion
    %scaled = {WIDE} multiply({F32} %wide, {F32} %scales) // in fusion
    %y = {X} dot({X} %x, {WIDE} %scaled) // result
"""
IN_PRODUCT = f"%fusion = {X} fusion({X} %x, {NARROW} %w), kind=kOutput"


def test_saves_what_widening_takes() -> None:
    checked = check_rule(
        WidenedWeights,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(
            FIXED,
            IN_PRODUCT,
            program(PROGRAM.replace("// result", "// in fusion, result")),
            product=f"%dot = {X} dot({X} %x, {WIDE} %w), lhs_contracting_dims={{1}}",
        ),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # The memory needs 16.8 MB of 8-bit numbers in each step: 20.5 µs at the peak of 819 GB/s, and
    # as the text of the operation has them, 33.6 MB of results beside them.
    assert 0.8 * 800_000 < finding.saving.expected_ns < finding.saving.high_ns <= 800_000


def test_arguments_of_16_bits_are_not_widened() -> None:
    text = PROGRAM.replace("s8[", "bf16[")
    assert find(WidenedWeights, drawn(SLOW, FUSION, program(text))) == ()


def test_images_of_8_bits_that_weights_multiply_are_none() -> None:
    product = f"dot({WIDE} %scaled, {X} %x)"
    text = PROGRAM.replace(f"dot({X} %x, {WIDE} %scaled)", product)
    assert find(WidenedWeights, drawn(SLOW, FUSION, program(text))) == ()


@pytest.mark.parametrize("reader", ["add", "tanh"])
def test_what_no_product_reads_is_another_matter(reader: str) -> None:
    text = PROGRAM.replace("dot(", f"{reader}(")
    assert find(WidenedWeights, drawn(SLOW, FUSION, program(text))) == ()
