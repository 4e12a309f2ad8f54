from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.recomputed_constants import RecomputedConstants
from tb_perfadvisor.testing import check_rule, draw, find, host
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

MATRIX, X = "f32[512,512]{1,0}", "f32[512,64]{1,0}"
FACTORS = f'%lu.2 = {MATRIX} custom-call({MATRIX} %matrix), custom_call_target="lapack_sgetrf_ffi"'
PROGRAM = f"""
    %matrix = {MATRIX} constant(...)
    %x = {X} parameter(0)
    {FACTORS}
    %solve = {X} triangular-solve({MATRIX} %lu.2, {X} %x) // result
"""


def test_the_factors_of_a_constant_are_needed_once() -> None:
    checked = check_rule(
        RecomputedConstants,
        slow=drawn(SLOW, FACTORS, program(PROGRAM)),
        fixed=drawn(FIXED, FACTORS, program(PROGRAM.replace("constant(...)", "parameter(1)"))),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 400 of 1,000 µs in both steps, of which a twentieth and a quarter remain.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (600_000, 760_000, 800_000)


@pytest.mark.parametrize(
    "text",
    [
        # An argument may differ from step to step.
        PROGRAM.replace("constant(...)", "parameter(1)"),
        # What is added to the constant is an argument.
        PROGRAM.replace(
            FACTORS,
            f"%shifted = {MATRIX} add({MATRIX} %matrix, {X} %x)\\n"
            + FACTORS.replace("%matrix", "%shifted"),
        ),
        # A copy costs no more than reading it.
        PROGRAM.replace(FACTORS, f"%lu.2 = {MATRIX} copy({MATRIX} %matrix)"),
        # A function on the host may return anything.
        PROGRAM.replace("lapack_sgetrf_ffi", "xla_ffi_python_cpu_callback"),
    ],
)
def test_what_may_change_is_computed_in_each_step(text: str) -> None:
    assert find(RecomputedConstants, drawn(SLOW, FACTORS, program(text.replace("\\n", "\n")))) == ()


def test_counting_the_trips_of_a_loop_goes_only_with_the_loop() -> None:
    text = f"""
        %start = {MATRIX} constant(...)
        %trip = {MATRIX} add({MATRIX} %start, {MATRIX} %start) // in lu.2 runs=16 result
    """
    assert find(RecomputedConstants, drawn(SLOW, FACTORS, program(text))) == ()


def test_a_loop_of_such_operations_goes_with_them() -> None:
    add = f"%add.1 = {MATRIX} add({MATRIX} %start, {MATRIX} %start)"
    loop = f"%while.1 = {MATRIX} while({MATRIX} %start)"
    path = "jit(step)/jit(solve)/while"
    values = program(f"""
        %start = {MATRIX} constant(...)
        {add} // runs=16 result
    """)
    drawing = """
        cell 100us
        step |..........|..........|
        main |xxxxxxwwww|xxxxxxwwww|
        main |......eeee|......eeee|
        main |......bb..|......bb..|
    """
    texts = {
        "x": ("tanh.1", f"%tanh.1 = {X} tanh({X} %x)", "jit(step)/tanh"),
        "w": ("while.1", loop, path),
        "b": ("add.1", add, f"{path}/body/add"),
    }
    symbols = {"e": host("ThunkExecutor::Execute")} | {
        letter: Symbol(
            EventKind.OPERATOR, name, hlo={"text": text, "module": MODULE, "path": called}
        )
        for letter, (name, text, called) in texts.items()
    }
    trace = replace(draw(drawing, legend=symbols, framework="jax"), programs=(values,))
    (finding,) = find(RecomputedConstants, trace) or ()
    assert finding.saving is not None
    # The whole loop, 400 µs in both steps.
    assert finding.saving.high_ns == 800_000
