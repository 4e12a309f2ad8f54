from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.pairwise_differences import PairwiseDifferences
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

PAIRS, ALL = "f32[4096,128]{1,0}", "f32[4096,128,64]{2,1,0}"
FUSION = f"%fusion.1 = {PAIRS} fusion(f32[4096,64]{{1,0}} %x, f32[128,64]{{1,0}} %c)"
PROGRAM = f"""
    %x = f32[4096,64]{{1,0}} parameter(0)
    %c = f32[128,64]{{1,0}} parameter(1)
    %zero = f32[] constant(0)
    %rows = {ALL} broadcast(f32[4096,64]{{1,0}} %x), dimensions={{0,2}} // in fusion.1
    %others = {ALL} broadcast(f32[128,64]{{1,0}} %c), dimensions={{1,2}} // in fusion.1
    %sub = {ALL} subtract({ALL} %rows, {ALL} %others) // in fusion.1
    %square = {ALL} multiply({ALL} %sub, {ALL} %sub) // in fusion.1
    %sum = {PAIRS} reduce({ALL} %square, f32[] %zero), dimensions={{2}} // in fusion.1 result
"""


def test_saves_what_a_product_saves() -> None:
    checked = check_rule(
        PairwiseDifferences,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, program(PROGRAM.replace("subtract(", "add("))),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 400 of 1,000 µs in both steps: a fifth is expected to remain, at best 5 %, at worst 60 %.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (320_000, 640_000, 760_000)
    # 4,096 x 128 pairs.
    assert finding.instance == "524,288 pairs (model.py:37)"


@pytest.mark.parametrize(
    "text",
    [
        # Rows minus their means: one side is repeated only.
        PROGRAM.replace("dimensions={1,2}", "dimensions={2}"),
        # A product of two differences.
        PROGRAM.replace(f"multiply({ALL} %sub, {ALL} %sub)", f"multiply({ALL} %sub, {ALL} %rows)"),
        # Three coordinates: a product has too little to do.
        PROGRAM.replace("64]", "3]"),
    ],
)
def test_other_sums_are_fine(text: str) -> None:
    assert find(PairwiseDifferences, drawn(SLOW, FUSION, program(text))) == ()
