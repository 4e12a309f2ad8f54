"""The paths are those of JAX 0.10.2."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.whole_hessian import WholeHessian
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import MODULE, program

H, V = "f32[180,180]{1,0}", "f32[180]{0}"
FUSION = f"%fusion.1 = {H} fusion(f32[1080,30]{{1,0}} %x)"
DOT = f"%dot.3 = {V} dot({H} %copy, {V} %v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
PATH = "jit(newton_step)/vmap(jvp(vmap(transpose(jvp()))))/add_any"
PROGRAM = f"""
    %x = f32[1080,30]{{1,0}} parameter(0)
    %v = {V} parameter(1)
    %hessian = {H} add({H} %x, {H} %x) // in fusion.1
    %copy = {H} copy({H} %hessian)
    {DOT} // result
"""
SLOW = """
    cell 10us
    step  |................|................|
    main  |LSSSSSSSSSSSSSSS|LSSSSSSSSSSSSSSS|
    tpu 0 |XXXXhhhhhhhhhhvv|XXXXhhhhhhhhhhvv|
"""
FIXED = """
    cell 10us
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    tpu 0 |XXXXvv|XXXXvv|
"""


def trace(text: str = PROGRAM, path: str = PATH, drawing: str = SLOW) -> Trace:
    values = program(text)
    row = values.rows_of(("add",))[0]
    symbols = {
        "h": xla_op("fusion.1", FUSION, module=MODULE),
        "v": xla_op("dot.3", DOT, module=MODULE),
    }
    drawn = draw(drawing, legend=symbols, device="TPU v5 lite")
    return replace(drawn, programs=(replace(values, paths={row: path}),))


def test_a_product_takes_as_long_as_three_columns() -> None:
    checked = check_rule(
        WholeHessian, slow=trace(), fixed=trace(drawing=FIXED), scales=False, exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # One product in each step takes 3, 1 or 9 of 180 columns of 100 µs, in both steps.
    saving = finding.saving
    assert saving.expected_ns == pytest.approx(200_000 * (1 - 3 / 180), abs=2)
    assert saving.high_ns == pytest.approx(200_000 * (1 - 1 / 180), abs=2)
    assert saving.low_ns == pytest.approx(200_000 * (1 - 9 / 180), abs=2)
    assert finding.instance == "180 columns for 1 products (model.py:37)"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        # A Jacobian or a batch of gradients.
        (PROGRAM, "jit(newton_step)/vmap(transpose(jvp()))/add_any"),
        # The solver factors it.
        (f"{PROGRAM}\n%lu = {H} custom-call({H} %hessian) // result", PATH),
        # It is multiplied by a matrix.
        (PROGRAM.replace(f"{V} dot", f"{H} dot"), PATH),
    ],
)
def test_hessians_that_are_needed_are_fine(text: str, path: str) -> None:
    assert find(WholeHessian, trace(text, path)) == ()
