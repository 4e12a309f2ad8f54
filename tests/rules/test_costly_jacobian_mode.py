"""The paths and the operations are those of JAX 0.10.2."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.costly_jacobian_mode import CostlyJacobianMode
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import MODULE, program

BACKWARD = "jit(fit)/vmap(transpose(jvp()))/reduce_sum"
FORWARD = "jit(fit)/vmap(jvp())/mul"
SLOW = """
    cell 10us
    step  |............|............|
    main  |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0 |XXjjjjjjjjjj|XXjjjjjjjjjj|
"""
FIXED = """
    cell 10us
    step  |....|....|
    main  |LSSS|LSSS|
    tpu 0 |XXnn|XXnn|
"""


def jacobian(outputs: int, inputs: int, *, backward: bool = True, batch: str = "") -> str:
    """A program as `jax.jacrev` or `jax.jacfwd` makes it, of a function of a vector."""
    passes, other = (outputs, inputs) if backward else (inputs, outputs)
    square = f"[{passes},{passes}]{{1,0}}"
    return f"""
        %x = f32[{inputs}]{{0}} parameter(0)
        %rows = s32{square} iota(), iota_dimension=0
        %columns = s32{square} iota(), iota_dimension=1
        %eye = pred{square} compare(s32{square} %rows, s32{square} %columns), direction=EQ
        %basis = f32{square} convert(pred{square} %eye)
        %scaled = f32{square} multiply(f32{square} %basis, f32[{inputs}]{{0}} %x) // in fusion.1
        %jacobian = f32[{batch}{passes},{other}]{{1,0}} dot(f32{square} %scaled) // in fusion.1
        %used = f32[{inputs}]{{0}} dot(f32[{passes},{other}]{{1,0}} %jacobian) // result
    """


def trace(text: str, path: str = BACKWARD, drawing: str = SLOW) -> Trace:
    values = program(text)
    paths = {row: path for row in range(len(values)) if values.kernel_of(row) == "fusion.1"}
    fusion = "%fusion.1 = f32[60,15]{1,0} fusion(f32[15]{0} %x)"
    symbols = {
        "j": xla_op("fusion.1", fusion, module=MODULE, path=path),
        "n": xla_op("fusion.2", fusion.replace("fusion.1", "fusion.2"), module=MODULE),
    }
    drawn = draw(drawing, legend=symbols, device="TPU v5 lite")
    return replace(drawn, programs=(replace(values, paths=paths),))


def test_a_tall_jacobian_takes_a_pass_for_each_input() -> None:
    # 100 us of 40 passes; forward, 10 passes take 0.6 of what each takes now, and 15 % remain: the
    # fixed side draws 20 %.
    text = jacobian(40, 10)
    checked = check_rule(
        CostlyJacobianMode,
        slow=trace(text),
        fixed=trace(text, drawing=FIXED),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * 85_000
    assert finding.saving.low_ns == 2 * 62_500
    assert finding.instance == "40 outputs of 10 inputs (model.py:37)"


def test_the_gradient_of_many_parameters_is_taken_backward() -> None:
    text = jacobian(1, 100, backward=False)
    (finding,) = find(CostlyJacobianMode, trace(text, FORWARD)) or ()
    assert finding.instance == "1 outputs of 100 inputs (model.py:37)"
    assert "forward" in finding.summary


@pytest.mark.parametrize("outputs", [10, 20, 40])
@pytest.mark.parametrize("inputs", [3, 8, 15, 60])
def test_only_tall_jacobians_are_reported(outputs: int, inputs: int) -> None:
    found = find(CostlyJacobianMode, trace(jacobian(outputs, inputs)))
    assert bool(found) == (outputs >= 2 * inputs)


def test_a_batch_counts_once() -> None:
    # Of 16 elements each: 40 outputs of 30 inputs are not tall.
    path = BACKWARD.replace("vmap(", "vmap(vmap(")
    assert find(CostlyJacobianMode, trace(jacobian(40, 30, batch="16,"), path)) == ()
    assert find(CostlyJacobianMode, trace(jacobian(40, 10, batch="16,"), path))


def test_the_gradient_of_each_sample_is_taken_backward() -> None:
    text = jacobian(1, 27, backward=False).replace("[27,1]{1,0}", "[12,27]{1,0}")
    (finding,) = find(CostlyJacobianMode, trace(text, "jit(fit)/vmap(vmap(jvp()))/add")) or ()
    assert finding.instance == "1 outputs of 27 inputs (model.py:37)"
    # Without a batch, each pass returns a number for each of twelve outputs.
    assert find(CostlyJacobianMode, trace(text, FORWARD)) == ()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        # Gradients of single samples have no identity matrix.
        (re.sub("EQ", "GE", jacobian(40, 10)), BACKWARD),
        # The identity is a regularization.
        (jacobian(40, 10), "jit(fit)/add"),
    ],
)
def test_other_derivatives_are_fine(text: str, path: str) -> None:
    assert find(CostlyJacobianMode, trace(text, path)) == ()
