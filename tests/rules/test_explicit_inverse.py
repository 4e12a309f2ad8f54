"""The paths are those of JAX 0.10.2."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.explicit_inverse import ExplicitInverse
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tests.support.xla_operation import FIXED, SLOW

K = "f32[400,400]{0,1}"
SOLVE = (
    f'%triangular_solve.20 = {K} custom-call({K} %a, {K} %b), custom_call_target="lapack_strsm_ffi"'
)
PATH = "jit(train_step)/jvp(jit(inv))/jit(solve)/vmap()/jit(_lu_solve)/triangular_solve"
GRADIENT = "jit(train_step)/transpose(jvp(jit(inv)))/jit(solve)/vmap(jvp())/dot_general"
OF_DETERMINANT = PATH.replace("inv", "slogdet")


def legend(path: str) -> dict[str, Symbol]:
    return {"s": xla_op("triangular_solve.20", SOLVE, path=path, source_line="model.py:37")}


@pytest.mark.parametrize("path", [PATH, GRADIENT])
def test_saves_what_the_fix_saves(path: str) -> None:
    checked = check_rule(
        ExplicitInverse, slow=SLOW, fixed=FIXED, legend=legend(path), exactly=False, scales=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Of 8 ms in both steps, 15 % are expected to remain, at worst 60 %.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (3_200_000, 6_800_000, 8_000_000)
    assert finding.instance == "an inverse of f32[400,400] (model.py:37)"


def test_systems_that_are_solved_are_fine() -> None:
    assert find(ExplicitInverse, SLOW, legend=legend(OF_DETERMINANT)) == ()


def test_factors_of_a_matrix_are_cheaper_only_beside_an_inverse() -> None:
    factors = PATH.replace("jit(_lu_solve)/triangular_solve", "lu")
    assert find(ExplicitInverse, SLOW, legend=legend(factors)) == ()


def test_fires_only_above_the_limit() -> None:
    # 85 % of 4 of 10 ms.
    for limit, is_found in ((0.33, True), (0.35, False)):
        settings = {"minimum_share": limit}
        assert bool(find(ExplicitInverse, SLOW, legend=legend(PATH), settings=settings)) == is_found
