from __future__ import annotations

from tb_perfadvisor.rules.compute.differences_of_pairs import DifferencesOfPairs
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    # 85 % of four fifths of half of 10 ms.
    checked = check_rule(
        DifferencesOfPairs,
        slow=program(observed("pairwise differences", 0.5, 0.2)),
        fixed=program(step_ms=6.6),
        saves="3400us",
    )
    (finding,) = checked.findings
    assert "takes an estimated 20.0 %" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(DifferencesOfPairs, program(observed("pairwise differences", 0.073, 0.2))) == ()
    assert find(DifferencesOfPairs, program(observed("pairwise differences", 0.074, 0.2)))
