from __future__ import annotations

from tb_perfadvisor.rules.compute.examined_results import PaddedSequences
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        PaddedSequences,
        slow=program(observed("padding", 0.8, 0.5)),
        fixed=program(step_ms=6),
        saves="4ms",
    )
    (finding,) = checked.findings
    assert "50.0 % is padding" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(PaddedSequences, program(observed("padding", 0.098, 0.5))) == ()
    assert find(PaddedSequences, program(observed("padding", 0.102, 0.5)))
