"""What the scalars of two runs add to the comparison of their profiles."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.logged import LoggedRun, logged_run, with_logged
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import RecordedInfo
from tb_perfadvisor.training.metrics import RunScalars, ScalarSeries
from tests.support.comparison_facts import facts, setup

S = 1_000_000_000
MS = 1_000_000


def run(
    step_ms: float,
    *,
    place: str,
    loss: float = 2.0,
    intervals: int = 200,
    noise: float = 0.02,
    seed: int = 0,
    recorded: RecordedInfo | None = None,
) -> LoggedRun:
    """Points each ten steps; step times and losses vary by a share."""
    generator = np.random.default_rng(seed)
    length_ns = 10 * step_ms * MS * (1 + noise * generator.standard_normal(intervals))
    unix_ns = np.concatenate(([0], np.cumsum(length_ns))).astype(np.int64)
    step = np.arange(intervals + 1, dtype=np.int64) * 10
    values = loss * (1 + noise * generator.standard_normal(len(step)))
    found = logged_run(
        place, RunScalars({"train/loss": ScalarSeries(step, unix_ns, values)}), recorded
    )
    assert found is not None
    return found


def compared(base: LoggedRun | None, target: LoggedRun | None) -> model.LoggedChange | None:
    profiles = compare_facts(facts(10 * MS, 10 * MS), [facts(9 * MS, 9 * MS)])
    (found,) = with_logged(profiles, base, [target]).targets
    return found.logged


def test_more_steps_give_a_tighter_interval() -> None:
    change = compared(run(10, place="a"), run(9, place="b", seed=1))
    assert change is not None
    assert (change.base_intervals, change.target_intervals) == (200, 200)
    # A tenth less. Each mean has a standard error of 2 % / sqrt(200) = 0.14 %.
    assert change.change_share == pytest.approx(-0.1, abs=0.005)
    assert change.low_share < -0.1 < change.high_share
    assert change.high_share - change.low_share < 0.02
    assert change.sentences[0].startswith("Faster without the profiler: 8.99 ms")


def test_pauses_and_the_recording_do_not_count() -> None:
    recorded = RecordedInfo(start_unix_ns=5 * S, end_unix_ns=7 * S)
    found = run(10, place="a", noise=0.0, recorded=recorded)
    # Intervals of 100 ms: those that share time with 5 to 7 s are 20.
    assert len(found.steps) == 180
    assert set(found.elapsed_ns) == {100 * MS}


def test_intervals_that_are_alike_count_less_than_independent_ones() -> None:
    """A run whose speed wanders in waves knows its mean less well than its intervals suggest."""
    wave = 10 * MS * (1 + 0.1 * np.sin(np.arange(400) / 60))
    unix_ns = np.concatenate(([0], np.cumsum(10 * wave))).astype(np.int64)
    step = np.arange(401, dtype=np.int64) * 10
    series = RunScalars({"loss": ScalarSeries(step, unix_ns, np.ones(401))})
    wandering = logged_run("a", series, None)
    assert wandering is not None
    change = compared(wandering, run(10, place="b", noise=0.0, intervals=400))
    assert change is not None
    # Independent intervals would give 2 x 1.96 x 7 % / sqrt(400) = 1.4 %.
    assert change.high_share - change.low_share > 0.04


def test_what_both_runs_do_at_the_same_step_is_no_difference() -> None:
    def slower_later(step_ms: float, place: str, seed: int) -> LoggedRun:
        """Steps take three times as long from step 1,000 of 2,000 on."""
        generator = np.random.default_rng(seed)
        factor = np.where(np.arange(200) < 100, 1, 3) * (1 + 0.02 * generator.standard_normal(200))
        unix_ns = np.concatenate(([0], np.cumsum(10 * step_ms * MS * factor))).astype(np.int64)
        series = ScalarSeries(np.arange(201, dtype=np.int64) * 10, unix_ns, np.ones(201))
        found = logged_run(place, RunScalars({"loss": series}), None)
        assert found is not None
        return found

    change = compared(slower_later(10, "a", 0), slower_later(9.5, "b", 1))
    assert change is not None
    # 20 ms on average, and 5 % less. Unpaired, the interval would be over 40 % wide.
    assert change.base_step_ns == pytest.approx(20 * MS, rel=0.01)
    assert change.change_share == pytest.approx(-0.05, abs=0.01)
    assert change.low_share < -0.05 < change.high_share < -0.03
    assert change.high_share - change.low_share < 0.03


def test_runs_without_steps_in_common_are_not_compared() -> None:
    later = run(9, place="b")
    resumed = msgspec.structs.replace(later, first_step=[step + 5_000 for step in later.first_step])
    assert compared(run(10, place="a"), resumed) is None


@pytest.mark.parametrize(
    ("loss", "verdict", "words"),
    [
        (2.0, "same", "The loss went on as before"),
        (2.1, "higher", "The loss is higher: 2.09"),
        (1.9, "lower", "The loss is lower: 1.89"),
    ],
)
def test_loss_is_compared_at_equal_steps(loss: float, verdict: str, words: str) -> None:
    change = compared(run(10, place="a"), run(9, place="b", seed=1, loss=loss, intervals=150))
    assert change is not None
    assert change.loss is not None
    # Both logged steps 0 to 1,500: the later half.
    assert (change.loss.first_step, change.loss.last_step) == (750, 1_500)
    assert change.loss.verdict == verdict
    assert change.loss.change_share == pytest.approx(loss / 2 - 1, abs=0.01)
    assert words in change.sentences[-1]


def test_noisy_loss_is_no_proof_of_equality() -> None:
    change = compared(run(10, place="a"), run(10, place="b", seed=1, noise=0.5, intervals=60))
    assert change is not None
    assert change.loss is not None
    assert change.loss.verdict == "unclear"


def test_profiles_of_one_run_are_not_compared_by_it() -> None:
    one = run(10, place="a")
    assert compared(one, one) is None
    assert compared(one, None) is None
    assert compared(None, one) is None


def test_loss_of_other_batches_is_not_compared() -> None:
    profiles = compare_facts(
        facts(10 * MS, 10 * MS, setup=setup(batch=8)),
        [facts(9 * MS, 9 * MS, setup=setup(batch=16))],
    )
    (found,) = with_logged(profiles, run(10, place="a"), [run(9, place="b")]).targets
    assert found.logged is not None
    assert found.logged.loss is None


def test_scaling_efficiency_follows_from_the_steps_without_the_profiler() -> None:
    # The same batch on one and on four ranks: 10 ms and 12.5 ms per step, 80 %.
    profiles = compare_facts(
        facts(10 * MS, 10 * MS, setup=setup(world_size=1, batch=8)),
        [facts(14 * MS, 14 * MS, setup=setup(world_size=4, batch=8))],
    )
    assert profiles.targets[0].verdict == "scaled"
    (found,) = with_logged(profiles, run(10, place="a"), [run(12.5, place="b", seed=1)]).targets
    assert found.logged is not None
    assert found.logged.efficiency is not None
    expected, least, most = found.logged.efficiency
    assert expected == pytest.approx(0.8, abs=0.005)
    assert least < expected < most
    assert "Scaling efficiency by these steps: 8" in found.logged.sentences[1]


def test_few_intervals_say_nothing() -> None:
    series = RunScalars({"loss": ScalarSeries(*(np.arange(10) * S,) * 2, np.ones(10))})
    assert logged_run("a", series, None) is None
