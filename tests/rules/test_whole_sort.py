from __future__ import annotations

from tb_perfadvisor.rules.compute.whole_sort import WholeSort
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        WholeSort,
        slow=program(observed("sorted for few", 0.4, 0.05)),
        fixed=program(step_ms=7),
        saves="3ms",
    )
    (finding,) = checked.findings
    assert "only 5.0 % is read" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(WholeSort, program(observed("sorted for few", 0.0659, 0.05))) == ()
    assert find(WholeSort, program(observed("sorted for few", 0.0675, 0.05)))
