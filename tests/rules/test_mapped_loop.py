from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.mapped_loop import MappedLoop
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.program_values import MODULE, program

SLOW = """
    cell 100us
    step |..........|..........|
    main |.pppppppp.|.pppppppp.|
"""
FIXED = """
    cell 100us
    step |....|....|
    main |.nn.|.nn.|
"""
ROW, WEIGHTS, ALL = "f32[1,512]{1,0}", "f32[512,512]{1,0}", "f32[400,512]{1,0}"
LOOP = f"""
    %weights = {WEIGHTS} parameter(0)
    %batch = f32[400,512]{{1,0}} parameter(1)
    %number = s32[] add(s32[] %number, s32[] %number) // runs=400
    %x = {ROW} dynamic-slice(f32[400,512]{{1,0}} %batch, s32[] %number) // runs=400
    %dot.2 = {ROW} dot({ROW} %x, {WEIGHTS} %weights), lhs_contracting_dims={{1}} // runs=400
    %out = {ALL} dynamic-update-slice({ALL} %out, {ROW} %dot.2) // runs=400
"""


def trace(text: str = LOOP, drawing: str = SLOW) -> Trace:
    dot = {"text": f"%dot.2 = {ROW} dot({ROW} %x, {WEIGHTS} %weights)", "module": MODULE}
    fused = {"text": "%dot.3 = f32[400,512]{1,0} dot()", "module": MODULE}
    symbols = {
        "p": Symbol(EventKind.OPERATOR, "dot.2", hlo=dot),
        "n": Symbol(EventKind.OPERATOR, "dot.3", hlo=fused),
    }
    return replace(draw(drawing, legend=symbols, framework="jax"), programs=(program(text),))


def test_rows_share_the_weights() -> None:
    checked = check_rule(
        MappedLoop, slow=trace(), fixed=trace(drawing=FIXED), scales=False, exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # A quarter of 800 us remains in each of two steps.
    assert finding.saving.expected_ns == 2 * 600_000
    assert finding.instance == "400 trips (model.py:37)"


@pytest.mark.parametrize(
    "text",
    [
        # What a trip computes goes into the next one, as in a recurrent layer.
        LOOP.replace(f"dot({ROW} %x", f"dot({ROW} %dot.2"),
        # Each trip has weights of its own, as layers do.
        LOOP.replace(f"%weights = {WEIGHTS} parameter(0)", "").replace(
            f"    %dot.2 = {ROW}",
            f"    %weights = {WEIGHTS} dynamic-slice({ROW} %x) // runs=400\n    %dot.2 = {ROW}",
        ),
        # Each trip has many rows.
        LOOP.replace("[1,512]", "[64,512]"),
        LOOP.replace("runs=400", "runs=12"),
    ],
)
def test_other_loops_are_fine(text: str) -> None:
    assert find(MappedLoop, trace(text)) == ()
