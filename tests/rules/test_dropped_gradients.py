from __future__ import annotations

from tb_perfadvisor.rules.compute.examined_results import DroppedGradients
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_the_time_of_the_nodes() -> None:
    checked = check_rule(
        DroppedGradients,
        slow=program(observed("dropped gradients", 0.3)),
        fixed=program(step_ms=7),
        saves="3ms",  # 30 % of 10 ms
    )
    (finding,) = checked.findings
    assert "no update uses, mostly of what train.py:12 forward computes" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(DroppedGradients, program(observed("dropped gradients", 0.049))) == ()
    assert find(DroppedGradients, program(observed("dropped gradients", 0.051)))


def test_a_recording_without_a_backward_pass_has_none() -> None:
    found = observed("dropped gradients", 0.3)
    assert find(DroppedGradients, program(found, trains=False)) == ()
