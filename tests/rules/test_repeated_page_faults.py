from __future__ import annotations

from tb_perfadvisor.rules.compute.examined_results import RepeatedPageFaults
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_what_new_pages_take() -> None:
    checked = check_rule(
        RepeatedPageFaults,
        slow=program(observed("page faults", 0.3, 16_384)),
        fixed=program(step_ms=7),
        saves="3ms",  # 30 % of 10 ms
    )
    (finding,) = checked.findings
    assert "Most are for results of aten::mm in train.py:12 forward" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(RepeatedPageFaults, program(observed("page faults", 0.049))) == ()
    assert find(RepeatedPageFaults, program(observed("page faults", 0.051)))
