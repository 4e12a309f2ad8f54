from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tb_perfadvisor.comparison.compare import compare_facts, is_regression, split_per_step
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract.model import ComparedTarget
from tb_perfadvisor.signals import Cause
from tb_perfadvisor.testing import draw, ms
from tests.support.comparison_facts import FIXED, SLOW, facts, facts_of, setup, times


def compared(base: RunFacts, target: RunFacts) -> ComparedTarget:
    (result,) = compare_facts(base, [target]).targets
    return result


def test_a_drawn_pair() -> None:
    result = compared(facts_of(draw(SLOW)), facts_of(draw(FIXED)))
    # Steps of 10 and 7 ms without any spread.
    assert (result.verdict, result.per) == ("faster", "step")
    change = result.change
    assert (change.base_ns, change.target_ns, change.change_ns) == (ms(10), ms(7), -ms(3))
    assert change.change_share == -0.3
    assert change.speed_up == 10 / 7
    assert (change.low_ns, change.high_ns) == (-ms(3), -ms(3))
    # 4 ms of input disappeared, 1 ms of compute was added.
    assert [
        (cause.cause, cause.base_ns, cause.target_ns, cause.change_ns) for cause in result.causes
    ] == [
        ("input", ms(4), 0, -ms(4)),
        ("compute-32", ms(6), ms(7), ms(1)),
    ]
    assert result.headline == "1.43 times as fast: a step takes 7.00 ms instead of 10.0 ms"
    (stall,) = result.findings
    assert (stall.rule_id, stall.status, stall.causes) == ("input-stall", "fixed", ["input"])
    assert stall.predicted is not None
    # Between half of the wait and all of it.
    assert (stall.predicted.expected_ns, stall.predicted.high_ns) == (ms(3), ms(4))
    assert stall.achieved_ns == ms(4)
    assert stall.is_in_range
    assert result.kernels is not None
    (kernel,) = result.kernels.rows
    assert (kernel.status, kernel.change_ns, kernel.base_count) == ("slower", ms(1), 1.0)
    assert result.warnings == []


def test_the_reverse_comparison_is_slower() -> None:
    result = compared(facts_of(draw(FIXED)), facts_of(draw(SLOW)))
    assert result.verdict == "slower"
    assert result.change.change_ns == ms(3)
    assert result.headline == "1.43 times as long: a step takes 10.0 ms instead of 7.00 ms"
    (stall,) = result.findings
    assert (stall.status, stall.predicted, stall.achieved_ns) == ("new", None, None)
    assert stall.remaining is not None
    assert (stall.remaining.expected_ns, stall.remaining.high_ns) == (ms(3), ms(4))


def test_facts_of_a_compared_run() -> None:
    rates = {"samples_per_s": 4_000.0, "tokens_per_s": 2e6, "mfu": 0.4}
    base = facts(
        ms(8), ms(8), setup=setup(batch=32), peak_allocated_bytes=5, id="a", name="b", **rates
    )
    run = compare_facts(base, []).base
    assert (run.id, run.name, run.steps, run.step_time_ns, run.window_ns) == (
        "a", "b", 2, ms(8), ms(16),
    )  # fmt: skip
    assert (run.batch, run.samples_per_s, run.peak_allocated_bytes) == (32, 4_000.0, 5)
    assert (run.tokens_per_s, run.mfu) == (2e6, 0.4)
    assert compare_facts(facts(ms(8)), []).base.samples_per_s is None


def test_any_number_of_targets() -> None:
    base = facts(ms(8), ms(8))
    targets = [facts(ms(8 - less), ms(8 - less), name=str(less)) for less in range(5)]
    result = compare_facts(base, targets)
    assert [target.run.name for target in result.targets] == ["0", "1", "2", "3", "4"]
    assert [target.change.speed_up for target in result.targets] == [1, 8 / 7, 8 / 6, 8 / 5, 2]


@pytest.mark.parametrize(
    ("target_ms", "verdict"),
    [
        ((90.0, 90.0), "faster"),
        ((110.0, 110.0), "slower"),
        # A certain change of just below one percent, and just above.
        ((99.1, 99.1), "inconclusive"),
        ((98.9, 98.9), "faster"),
        ((100.9, 100.9), "inconclusive"),
        ((101.1, 101.1), "slower"),
        # A tenth less on average, but uncertain.
        ((50.0, 130.0), "inconclusive"),
        # One step.
        ((50.0,), "inconclusive"),
    ],
)
def test_verdict(target_ms: tuple[float, ...], verdict: str) -> None:
    result = compared(facts(ms(100), ms(100), ms(100)), facts(*map(ms, target_ms)))
    assert result.verdict == verdict


def test_a_single_step_has_no_interval() -> None:
    result = compared(facts(ms(100), ms(101)), facts(ms(50)))
    change = result.change
    assert [change.low_ns, change.high_ns, change.low_share, change.high_share] == [None] * 4
    assert result.headline == (
        "No verdict: a step takes 50.0 ms instead of 100 ms, but a single step of the target "
        "proves nothing"
    )
    other = compared(facts(ms(50)), facts(ms(100), ms(101)))
    assert "a single step of the base proves nothing" in other.headline


def test_an_unclear_change() -> None:
    result = compared(facts(ms(90), ms(110)), facts(ms(91), ms(112)))
    assert result.verdict == "inconclusive"
    assert result.headline == "No clear change: a step takes 102 ms instead of 100 ms"


def test_a_long_step_makes_the_total_uncertain() -> None:
    base = facts(*map(ms, (100, 101, 99, 100, 100)))
    # Four steps are slower by 10 %. The fifth, a pause, makes the mean (440 + 300) / 5 = 148 ms.
    target = facts(*map(ms, (110, 111, 109, 110, 300)))
    result = compared(base, target)
    assert (result.verdict, result.change.target_ns) == ("inconclusive", ms(148))
    assert result.change.speed_up == 100 / 148
    assert result.headline == (
        "Perhaps 1.48 times as long: a step takes 148 ms instead of 100 ms, but the steps vary too "
        "much to be sure"
    )
    (warning,) = result.warnings
    # 148 / 110 = 1.345
    assert warning.id == "uneven-steps"
    assert "the mean is 34.5 % more than the median" in warning.message
    assert is_regression(result, 0.05) is None


def test_a_loader_waited_for_in_every_fourth_step() -> None:
    # The median step is 100 ms in both. Of 4 steps the base takes 100 * 3 + 500 = 800 ms, so a
    # step takes 200; two of the 14 steps are no whole turn and would make it (800 * 3 + 200) / 14.
    base = facts(*map(ms, (100, 100, 100, 500) * 3 + (100, 100)), cause_step_ns={
        "compute-32": [ms(100)] * 14,
        "input": [0, 0, 0, ms(400)] * 3 + [0, 0],
    })  # fmt: skip
    target = facts(*map(ms, (100, 100, 100, 101) * 4), cause_step_ns={
        "compute-32": list(map(ms, (100, 100, 100, 101) * 4)),
    })  # fmt: skip
    result = compared(base, target)
    change = result.change
    # 16 steps of 100.25 ms.
    assert (change.base_ns, change.target_ns) == (ms(200), ms(100.25))
    assert change.speed_up == 2.0  # as shown: 200 ms and 100 ms
    assert (result.verdict, [warning.id for warning in result.warnings]) == (
        "faster", ["whole-periods"],
    )  # fmt: skip
    input_wait = result.causes[0]
    assert (input_wait.cause, input_wait.change_ns) == ("input", -ms(100))
    assert sum(cause.change_ns for cause in result.causes) == change.change_ns


def test_what_is_certain_by_cause_if_the_total_is_not() -> None:
    # Each step waits 50 ms for input in the base, and no longer. Pauses hide that in the total.
    waits, computes = [50, 51, 49, 50, 50, 50], [100, 100, 100, 100, 100, 400]
    base = facts(
        *(ms(wait + 100) for wait in waits),
        causes={"input": ms(300), "compute-32": ms(600)},
        cause_step_ns={"input": list(map(ms, waits)), "compute-32": [ms(100)] * 6},
    )
    target = facts(*map(ms, computes), cause_step_ns={"compute-32": list(map(ms, computes))})
    result = compared(base, target)
    # (5 * 100 + 400) / 6 = 150 ms, as before.
    assert (result.verdict, result.headline) == (
        "inconclusive", "No clear change: a step takes 150 ms instead of 150 ms",
    )  # fmt: skip
    assert result.explanation == (
        "Certain by cause: Waiting for input is gone: −50.0 ms. The total is not certain."
    )
    assert {cause.cause: cause.is_certain for cause in result.causes} == {
        "input": True, "compute-32": False,
    }  # fmt: skip


def test_kinds_of_steps_are_a_part_of_the_total() -> None:
    names = ["accumulates", "accumulates", "updates"] * 4
    base = facts(*map(ms, (10, 10, 40) * 4), step_kinds=names)
    # Each step takes 30 % more.
    slower = facts(*map(ms, (13, 13, 52) * 4), step_kinds=names)
    result = compared(base, slower)
    assert (result.verdict, result.change.target_ns) == ("slower", ms(26))
    assert is_regression(result, 0.29) is True
    assert result.warnings == []
    (warning,) = compared(base, facts(*map(ms, (20,) * 12))).warnings
    assert warning.id == "kinds-differ"


@pytest.mark.parametrize("without", ["base", "target", "both"])
def test_whole_recordings_are_compared_without_steps(without: str) -> None:
    base, target = facts(ms(40), ms(60)), facts(ms(30), ms(40))
    if without != "target":
        base = msgspec.structs.replace(base, step_ns=[])
    if without != "base":
        target = msgspec.structs.replace(target, step_ns=[])
    result = compared(base, target)
    assert (result.verdict, result.per) == ("no_steps", "window")
    # 100 and 70 ms, whatever the number of steps.
    assert (result.change.base_ns, result.change.change_ns) == (ms(100), -ms(30))
    assert result.change.low_ns is None
    assert [warning.id for warning in result.warnings] == ["no-steps"]
    assert result.headline == (
        "No verdict: 70.0 ms were recorded instead of 100 ms, without steps to compare"
    )


def test_nothing_recorded() -> None:
    empty = facts(causes={"compute-32": 0}, window_ns=0)
    result = compared(empty, facts(ms(1), ms(1)))
    assert (result.verdict, result.change.change_share) == ("no_steps", None)
    back = compared(facts(ms(1), ms(1)), empty)
    assert back.change.speed_up is None


def test_times_are_per_step_even_if_the_numbers_of_steps_differ() -> None:
    base = facts(*[ms(10)] * 6, kernels=times(("gemm", ms(48), 12)))
    target = facts(*[ms(10)] * 2, kernels=times(("gemm", ms(20), 2)))
    result = compared(base, target)
    assert result.kernels is not None
    (kernel,) = result.kernels.rows
    # 48 ms over 6 steps, 20 over 2.
    assert (kernel.base_ns, kernel.target_ns) == (ms(8), ms(10))
    assert (kernel.base_count, kernel.target_count) == (2.0, 1.0)


def test_regression_needs_the_whole_interval() -> None:
    base = facts(ms(100), ms(100), ms(100))
    sure = compared(base, facts(ms(110), ms(110), ms(110)))
    assert is_regression(sure, 0.09)
    assert not is_regression(sure, 0.11)
    # A tenth more on average, but possibly less.
    unsure = compared(base, facts(ms(95), ms(110), ms(125)))
    assert unsure.change.change_share == 0.1
    assert not is_regression(unsure, 0.05)
    assert not is_regression(compared(base, facts(ms(300))), 0.05)
    assert not is_regression(compared(base, facts(ms(50), ms(50))), 0.0)


_CAUSES = st.dictionaries(
    st.sampled_from([cause.value for cause in Cause]),
    st.integers(0, 10**12),
    min_size=1,
    max_size=len(Cause),
)


@given(_CAUSES, st.integers(1, 5_000))
def test_means_in_whole_nanoseconds_sum_to_the_rounded_mean(
    totals: dict[str, int], count: int
) -> None:
    means = split_per_step(totals, count)
    # The report's own step time.
    assert sum(means.values()) == round(sum(totals.values()) / count)
    for cause, total in totals.items():
        assert abs(means[cause] - Fraction(total, count)) < 1


@given(_CAUSES, st.integers(0, 50), _CAUSES, st.integers(0, 50))
@example({"compute-8": 0}, 1, {"compute-8": 1}, 1)
def test_the_parts_of_the_change_add_up_exactly(
    before: dict[str, int], base_steps: int, after: dict[str, int], target_steps: int
) -> None:
    base = facts(causes=before, window_ns=sum(before.values()), step_ns=[7] * base_steps)
    target = facts(causes=after, window_ns=sum(after.values()), step_ns=[5] * target_steps)
    result = compared(base, target)
    assert sum(cause.base_ns for cause in result.causes) == result.change.base_ns
    assert sum(cause.target_ns for cause in result.causes) == result.change.target_ns
    assert sum(cause.change_ns for cause in result.causes) == result.change.change_ns
    if base_steps and target_steps:
        step_time = compare_facts(base, []).base.step_time_ns
        assert result.change.base_ns == step_time


def test_a_comparison_survives_a_json_round_trip() -> None:
    comparison = compare_facts(facts_of(draw(SLOW)), [facts_of(draw(FIXED))])
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=type(comparison)) == comparison


def test_a_recording_that_is_none_to_act_on_is_not_compared() -> None:
    base, target = facts_of(draw(SLOW)), facts_of(draw(FIXED))
    doubtful = msgspec.structs.replace(target, not_to_act_on="most steps lack their device events")
    result = compared(base, doubtful)
    assert result.verdict == "not_comparable"
    assert result.headline == (
        "Not comparable: the target is no recording to act on, because most steps lack their "
        "device events"
    )
    assert result.change.speed_up is None
    assert is_regression(result, 0.05) is None
    assert compared(doubtful, base).headline.startswith("Not comparable: the base is no recording")
