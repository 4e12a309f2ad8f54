"""The paths and the operations are those of JAX 0.10.2."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.faster_operations import BothBranches
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import MODULE, program

ARRAY, BATCH = "f32[128,10]{1,0}", "s32[128]{0}"
MAPPED, WHERE = "jit(step)/vmap()/select_n", "jit(step)/jit(_where)/select_n"
SLOW = """
    cell 10us
    step  |............|............|
    main  |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0 |XXbbbbbbbbbb|XXbbbbbbbbbb|
"""
FIXED = """
    cell 10us
    step  |...|...|
    main  |LSS|LSS|
    tpu 0 |XXn|XXn|
"""
CHOICE = f"""
    %chosen = {ARRAY} select(pred[128,10]{{1,0}} %all, {ARRAY} %plan, {ARRAY} %old) // result
"""
BY_DATA = f"""
    %old = {ARRAY} parameter(0)
    %level = f32[128]{{0}} parameter(1)
    %limit = f32[128]{{0}} constant(0)
    %if = pred[128]{{0}} compare(f32[128]{{0}} %level, f32[128]{{0}} %limit), direction=GT
    %all = pred[128,10]{{1,0}} broadcast(pred[128]{{0}} %if), dimensions={{0}}
    %half = {ARRAY} tanh({ARRAY} %old) // in fusion.1
    %plan = {ARRAY} multiply({ARRAY} %half, {ARRAY} %old) // in fusion.1
    {CHOICE}
"""
BY_DAY = BY_DATA.replace("f32[128]", "s32[128]").replace(
    f"%level = {BATCH} parameter(1)",
    f"%day = {BATCH} parameter(1)\n%one = {BATCH} constant(1)\n"
    f"%level = {BATCH} add({BATCH} %level, {BATCH} %one)",
)
BY_STEP = f"""
    %old = {ARRAY} parameter(0)
    %step = s32[] parameter(1)
    %ten = s32[] constant(10)
    %if = s32[] remainder(s32[] %step, s32[] %ten)
    %is = pred[] compare(s32[] %if, s32[] %ten), direction=EQ
    %all = pred[128,10]{{1,0}} broadcast(pred[] %is), dimensions={{}}
    %plan = {ARRAY} tanh({ARRAY} %old) // in fusion.1
    {CHOICE}
"""


def trace(text: str = BY_DAY, path: str = MAPPED, drawing: str = SLOW) -> Trace:
    values = program(text)
    selects = values.rows_of(("select",))
    fusion = f"%fusion.1 = {ARRAY} fusion({ARRAY} %old)"
    symbols = {
        "b": xla_op("fusion.1", fusion, module=MODULE),
        "n": xla_op("conditional.2", fusion.replace("fusion.1", "conditional.2"), module=MODULE),
    }
    drawn = draw(drawing, legend=symbols, device="TPU v5 lite")
    return replace(drawn, programs=(replace(values, paths=dict.fromkeys(selects, path)),))


def test_a_branch_for_some_steps_runs_in_some_steps() -> None:
    checked = check_rule(
        BothBranches, slow=trace(), fixed=trace(drawing=FIXED), scales=False, exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Of 100 us in each of two steps, 15, 50 and 2 % remain; the fixed side draws every tenth step.
    assert finding.saving.expected_ns == 2 * 85_000
    assert finding.saving.low_ns == 2 * 50_000
    assert finding.saving.high_ns == 2 * 98_000
    assert finding.instance == "a select of 2 results (model.py:37)"


def test_how_often_data_choose_is_unknown() -> None:
    (finding,) = find(BothBranches, trace(BY_DATA)) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert finding.saving.expected_ns == 2 * 50_000


def test_one_condition_for_all_needs_no_vmap() -> None:
    assert find(BothBranches, trace(BY_STEP, WHERE))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        # A mask over elements that the program wrote as one.
        (BY_DATA, WHERE),
        # Each element of the result has its own condition.
        (BY_DATA.replace("dimensions={0}", "dimensions={1}"), MAPPED),
        # What is proposed is also what decides.
        (BY_DATA.replace("%level, f32[128]{0} %limit", "%level, f32[128]{0} %plan"), MAPPED),
        # The new result is returned as well.
        (BY_DAY.replace("%old) // in fusion.1\n    \n", "%old) // result in fusion.1\n"), MAPPED),
        # Sequences that end at steps of their own.
        (
            BY_DAY.replace("%limit = s32[128]{0} constant(0)", "%limit = s32[128]{0} parameter(2)"),
            WHERE,
        ),
        # A value that a loop keeps once its condition is false is no branch.
        (BY_DATA, "jit(step)/vmap()/while"),
    ],
)
def test_what_must_be_computed_is_fine(text: str, path: str) -> None:
    assert find(BothBranches, trace(text, path)) == ()
