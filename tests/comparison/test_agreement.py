"""What a comparison says of the step, of its findings and of its numbers never disagrees."""

from __future__ import annotations

import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.run_facts import OutcomeFacts, RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.testing import ms
from tests.support.comparison_facts import facts, finding, setup

GONE = {"input-stall": OutcomeFacts(status="passed", reason=None)}


def slow(*steps_ms: float) -> RunFacts:
    """Steps of which 40 ms are waiting for input."""
    steps = [ms(step) for step in steps_ms]
    waiting = ms(40) * max(len(steps), 1)
    stall = finding("input-stall", waiting // 2, waiting * 3 // 4, waiting, {"input": waiting})
    return facts(
        *steps,
        causes={"input": waiting, "compute-32": max(sum(steps), ms(100)) - waiting},
        findings=[stall],
    )


def fixed(*steps_ms: float, wait_ms: float = 0) -> RunFacts:
    """Steps without a finding, and with hardly any waiting."""
    steps = [ms(step) for step in steps_ms]
    waiting = ms(wait_ms) * max(len(steps), 1)
    return facts(
        *steps,
        causes={"input": waiting, "compute-32": max(sum(steps), ms(100)) - waiting},
        outcomes=GONE,
    )


def compared(base: RunFacts, target: RunFacts) -> tuple[model.ComparedTarget, model.FindingChange]:
    (result,) = compare_facts(base, [target]).targets
    (change,) = result.findings or [None]
    assert change is not None
    return result, change


def test_faster() -> None:
    result, change = compared(slow(100, 101, 102, 99), fixed(70, 71, 72, 69))
    assert (result.verdict, change.outcome) == ("faster", "Fixed")
    assert change.summary == "predicted 20.0–40.0 ms less; achieved 40.0 ms less, as predicted"
    result, change = compared(slow(100, 101, 102, 99), fixed(85, 86, 84, 87, wait_ms=25))
    assert change.summary.endswith("achieved 15.0 ms less, less than predicted")
    result, change = compared(slow(100, 101, 102, 99), fixed(85, 86, 84, 87, wait_ms=21))
    assert change.summary.endswith("achieved 19.0 ms less, almost as predicted")


def test_slower() -> None:
    result, change = compared(slow(100, 101, 102, 99), fixed(120, 121, 122, 119))
    assert (result.verdict, change.outcome) == ("slower", "Gone")
    assert change.summary.endswith("achieved 40.0 ms less, but the step got slower")
    result, change = compared(slow(100, 101, 102, 99), fixed(120, 121, 122, 119, wait_ms=45))
    assert change.summary.endswith("its time grew by 5.00 ms")


def test_inconclusive() -> None:
    result, change = compared(slow(144, 60, 150, 200), fixed(100, 45, 120, 160))
    assert (result.verdict, change.outcome) == ("inconclusive", "Gone")
    # It may be faster, so no sentence denies it.
    assert result.headline.startswith("Perhaps 1.30 times as fast: a step takes 106 ms")
    assert change.summary.endswith("but the step did not change clearly")


def test_without_steps() -> None:
    result, change = compared(slow(), fixed())
    assert (result.verdict, change.outcome) == ("no_steps", "Gone")
    assert "without steps to compare" in result.headline
    assert result.change.speed_up is None
    # A fact about the recordings, without a judgment.
    assert change.summary == "predicted 20.0–40.0 ms less; achieved 40.0 ms less"


def test_not_comparable() -> None:
    cpu = fixed(70, 71, 72, 69)
    cpu = facts(*cpu.step_ns, causes=cpu.causes, setup=setup(framework="tensorflow"))
    (result,) = compare_facts(slow(100, 101, 102, 99), [cpu]).targets
    change = result.change
    assert result.verdict == "not_comparable"
    assert [change.speed_up, change.low_share, change.high_share] == [None] * 3
    assert result.findings == []


@pytest.mark.parametrize("wait_ms", [0, 20, 40, 60])
def test_no_credit_for_what_stayed(wait_ms: float) -> None:
    base = slow(100, 101, 102, 99)
    faster = slow(80, 81, 82, 79)
    waiting = ms(wait_ms) * 4
    target = facts(
        *faster.step_ns,
        causes={"input": waiting, "compute-32": sum(faster.step_ns) - waiting},
        findings=faster.findings,
    )
    result, change = compared(base, target)
    assert (result.verdict, change.outcome, change.achieved_ns) == ("faster", "Unchanged", None)
    assert change.summary == "predicted 20.0–40.0 ms less; 20.0–40.0 ms left to save"
