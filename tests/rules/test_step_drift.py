from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Lines, Load
from tb_perfadvisor.rules.steps.variation import StepDrift
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace
from tests.support.changed_rule import changed


def steps(*growth_ms: float) -> Trace:
    """Steps of 10 ms of work, before which the host runs a callback for some time."""
    builder, start = TraceBuilder(), 0.0
    for number, growth in enumerate(growth_ms):
        end = start + 10 + growth
        builder.step(number, ms(start), ms(end))
        builder.annotation("collect", ms(start), ms(start + growth))
        builder.operator("aten::mm", ms(start + growth), ms(start + growth + 1))
        builder.kernel("sgemm", ms(start + growth), ms(end))
        start = end
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # 0, 0.5, … 4.5 ms: 2.25 ms on average.
    rising = [0.5 * i for i in range(10)]
    checked = check_rule(StepDrift, slow=steps(*rising), fixed=steps(*[0.0] * 10), saves="2.25ms")
    (finding,) = checked.findings
    assert finding.summary == (
        "The step time rises by 4.50 ms (45.0 %) over 10 steps; most of it is unexplained."
    )
    assert finding.saving is not None
    assert finding.saving.expected_ns == ms(4.5 * 10 / 2)


def test_steps_that_vary_are_left_alone() -> None:
    assert find(StepDrift, steps(0, 3, 1, 4, 0, 5, 1, 2, 4, 1)) == ()


def test_one_slow_step_is_left_alone() -> None:
    assert find(StepDrift, steps(*[0.0] * 9, 40)) == ()


def test_falling_step_times_are_left_alone() -> None:
    assert find(StepDrift, steps(*[5 - 0.5 * i for i in range(10)])) == ()


def test_just_below_and_just_above_the_limits() -> None:
    rising = steps(*[0.5 * i for i in range(10)])  # 45 % of the first step
    assert find(changed(StepDrift, {"minimum_growth": 0.46}), rising) == ()
    assert len(find(changed(StepDrift, {"minimum_growth": 0.44}), rising) or ()) == 1
    assert find(changed(StepDrift, {"minimum_steps": 11}), rising) == ()


def test_a_rise_that_cannot_have_lasted_is_chance() -> None:
    # 4.5 ms in 122 ms: a second before, the steps of 10 ms would have taken less than no time.
    rising = steps(*[0.5 * i for i in range(10)])
    for seconds, is_found in ((0.25, True), (0.3, False), (1.0, False)):
        ran = replace(rising, facts=Facts(lines=Lines(seconds, looks=100, lines=())))
        assert bool(find(StepDrift, ran)) is is_found


def test_a_thousand_steps_are_judged_like_ten() -> None:
    # A millisecond more every hundred steps, and every third step 2 ms longer by chance. In each
    # group of three the middle step is 0.01 ms above the line, which begins at 10.01 ms.
    wobble = (0.0, 0.0, 2.0)
    rising = [0.01 * i + wobble[i % 3] for i in range(1000)]
    (finding,) = find(StepDrift, steps(*rising)) or ()
    assert finding.summary == (
        "The step time rises by 9.99 ms (99.8 %) over 1000 steps; most of it is unexplained."
    )
    assert finding.saving is not None
    assert finding.saving.expected_ns == ms(9.99 * 1000 / 2)
    assert find(StepDrift, steps(*[wobble[i % 3] for i in range(1000)])) == ()


def test_load_that_comes_for_some_steps_is_no_trend() -> None:
    # Another program has the core in the second half, and for some steps before.
    busy = (0.0, 0.1, 2.0, 2.1, 1.9, 0.2, 0.1, 0.3, 2.2, 2.0, 2.1, 2.3, 1.9, 2.2, 2.4, 2.1)
    assert find(StepDrift, steps(*busy)) == ()


def test_on_a_busy_machine_a_trend_is_rated_low() -> None:
    rising = steps(*[0.5 * i for i in range(10)])
    (finding,) = find(StepDrift, rising) or ()
    busy = replace(rising, facts=Facts(load=Load(others=0.2, idle=0.0)))
    (rated,) = find(StepDrift, busy) or ()
    assert (finding.severity, rated.severity) == (None, "low")
