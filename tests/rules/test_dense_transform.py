from __future__ import annotations

from tb_perfadvisor.rules.compute.dense_transform import DenseTransform
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        DenseTransform,
        slow=program(observed("dense transform", 0.5, 0.2)),
        fixed=program(step_ms=6.4),
        saves="3600us",
    )
    (finding,) = checked.findings
    assert "takes an estimated 20.0 %" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(DenseTransform, program(observed("dense transform", 0.0686, 0.2))) == ()
    assert find(DenseTransform, program(observed("dense transform", 0.0702, 0.2)))
