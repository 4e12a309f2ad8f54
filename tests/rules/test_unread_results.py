from __future__ import annotations

from tb_perfadvisor.rules.compute.examined_results import UnreadResults
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        UnreadResults,
        slow=program(observed("unused", 0.5, 0.2)),
        fixed=program(step_ms=6),
        saves="4ms",
    )
    (finding,) = checked.findings
    assert "only 20.0 % is needed" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(UnreadResults, program(observed("unused", 0.0612, 0.2))) == ()
    assert find(UnreadResults, program(observed("unused", 0.0637, 0.2)))


def test_what_nothing_reads_is_left_out() -> None:
    (finding,) = find(UnreadResults, program(observed("unused", 0.3, 0.0)))
    assert "of whose results none is." in finding.summary
    assert ["Leave out what nothing reads" in remedy.text for remedy in finding.remedies] == [True]
