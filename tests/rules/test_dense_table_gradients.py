from __future__ import annotations

from tb_perfadvisor.rules.compute.dense_table_gradients import DenseTableGradients
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        DenseTableGradients,
        slow=program(observed("few rows", 0.5, 0.1)),
        fixed=program(step_ms=5.95),
        saves="4050us",
    )
    (finding,) = checked.findings
    assert "reads at most 10.0 %" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(DenseTableGradients, program(observed("few rows", 0.0605, 0.1))) == ()
    assert find(DenseTableGradients, program(observed("few rows", 0.063, 0.1)))
