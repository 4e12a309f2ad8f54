from __future__ import annotations

from tb_perfadvisor.rules.compute.regrown_sequence import RegrownSequence
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        RegrownSequence,
        slow=program(observed("growing", 0.8)),
        fixed=program(step_ms=4),
        saves="6ms",
    )
    (finding,) = checked.findings
    assert "gets longer with each call" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(RegrownSequence, program(observed("growing", 0.0653))) == ()
    assert find(RegrownSequence, program(observed("growing", 0.068)))
