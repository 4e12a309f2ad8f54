from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Observed
from tb_perfadvisor.rules.launch.launching import IndependentCalls
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.trace import Trace
from tests.support.examined import observed


def heads(*found: Observed, count: int = 100, us: int = 100) -> Trace:
    """Three steps with products of 5 microseconds, one after the other."""
    builder = TraceBuilder()
    step_ns = us * 1000 * count
    for number in range(3):
        start = number * step_ns
        builder.step(number, start, start + step_ns)
        for call in range(count):
            at = start + call * us * 1000
            builder.operator("aten::mm", at, at + 5_000, launches=False)
    return replace(builder.build(), facts=Facts(examined=Examined(4, 0.04, count, observed=found)))


def test_saves_nine_tenths_of_the_calls() -> None:
    # 80 of 100 calls of 100 microseconds, in which nothing but calling takes time: 0.9 x 8 ms. The
    # gap behind the last call of all is no gap between operators.
    checked = check_rule(
        IndependentCalls,
        slow=heads(observed("independent", 0.8, 16)),
        fixed=heads(count=28),
        saves="7200us",
        scales=False,  # at twice the time, operators compute longer than calling them takes
    )
    (finding,) = checked.findings
    assert "one could do the work of 16" in finding.summary


def test_products_that_read_the_same_matrix_again() -> None:
    # 70 % of 100 products of 5 microseconds, which is more than calling them takes.
    found = replace(observed("independent", 0.1, 16), reads=0.7)
    (finding,) = find(IndependentCalls, heads(found, us=5))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(3 * 350_000, rel=0.01)


def test_operators_that_compute_gain_little() -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.operator("aten::mm", ms(10 * number), ms(10 * number + 10), launches=False)
    facts = Facts(examined=Examined(4, 0.04, 30, observed=(observed("independent", 0.8, 16),)))
    assert find(IndependentCalls, replace(builder.build(), facts=facts)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    assert find(IndependentCalls, heads(observed("independent", 0.054, 16))) == ()
    assert find(IndependentCalls, heads(observed("independent", 0.057, 16)))


def test_small_operators_take_no_longer_than_calling_them() -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.operator("aten::mm", ms(10 * number), ms(10 * number + 10), launches=False)
    small = replace(observed("independent", 0.4, 16), elements=4096)
    facts = Facts(examined=Examined(4, 0.04, 30, observed=(small,)))
    (finding,) = find(IndependentCalls, replace(builder.build(), facts=facts))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(0.85 * 0.4 * ms(30), rel=1e-6)


def test_small_calls_beside_large_operators_gain_little() -> None:
    # 31 calls of 20 us and 49 ms of a convolution: 0.85 x 15 / 31 x (31 x 20 + 60) us = 0.28 ms.
    builder = TraceBuilder()
    for number in range(3):
        start = ms(50 * number)
        builder.step(number, start, start + ms(50))
        for call in range(31):
            at = start + call * 20_000
            builder.operator("aten::_weight_norm_interface", at, at + 20_000, launches=False)
        builder.operator("aten::conv1d", start + ms(1), start + ms(50), launches=False)
    small = replace(
        observed("independent", 15 / 31, 15),
        operator="aten::_weight_norm_interface",
        elements=2_000,
    )
    facts = Facts(examined=Examined(4, 0.04, 32, observed=(small,)))
    assert find(IndependentCalls, replace(builder.build(), facts=facts)) == ()
