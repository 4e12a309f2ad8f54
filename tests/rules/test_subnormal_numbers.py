from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.subnormal_numbers import SubnormalNumbers
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_the_share_says_what_is_left() -> None:
    checked = check_rule(
        SubnormalNumbers,
        slow=program(observed("subnormal", 0.6, 0.1)),
        fixed=program(step_ms=10 - 6 * 6 / 7),
        saves=int(6e6 * 6 / 7),
        tolerance=0.001,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving, steps = finding.saving, 3
    # 6 of 10 ms take 1 + 20, 60 or 240 times a tenth as long as without such numbers.
    for found, times in ((saving.low_ns, 2), (saving.expected_ns, 6), (saving.high_ns, 24)):
        assert found / steps == pytest.approx(6e6 * times / (1 + times), rel=0.001)
    assert "(10.0 % of them)" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    # 60 times 1 %: three eighths of the time.
    assert find(SubnormalNumbers, program(observed("subnormal", 0.13, 0.01))) == ()
    assert find(SubnormalNumbers, program(observed("subnormal", 0.14, 0.01)))
