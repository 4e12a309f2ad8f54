"""What kept a run from advancing."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.training.metrics import ScalarSeries
from tb_perfadvisor.training.pauses import (
    Delay,
    Slowdown,
    find_delays,
    find_regimes,
    is_usual_interval,
)
from tb_perfadvisor.training.progress import Progress, find_progress
from tb_perfadvisor.training.training import delay_label

S = 1_000_000_000
Points = list[tuple[int, float]]


def series(points: Points) -> ScalarSeries:
    steps, seconds = zip(*points, strict=True)
    return ScalarSeries(
        np.array(steps, np.int64),
        np.array([round(second * S) for second in seconds], np.int64),
        np.ones(len(points)),
    )


def run(*step_times: float) -> Points:
    """A point each ten steps, from the mean step time in each interval."""
    times = np.concatenate(([0.0], np.cumsum(10 * np.array(step_times))))
    return [(10 * number, float(time)) for number, time in enumerate(times)]


def progress_of(points: Points) -> Progress:
    progress = find_progress({"loss": series(points)})
    assert progress is not None
    return progress


def delays_of(points: Points, **others: Points) -> tuple[Delay, ...]:
    logged = {"loss": series(points)} | {
        name.replace("__", "/"): series(other) for name, other in others.items()
    }
    return find_delays(progress_of(points), logged, ())


def test_even_run_has_no_delay() -> None:
    assert delays_of(run(*[1.0] * 30)) == ()


def test_pause_costs_what_it_takes_beyond_usual_steps() -> None:
    # 30 intervals of 10 s; one takes 40 s more.
    (delay,) = delays_of(run(*[1.0] * 12, 5.0, *[1.0] * 17))
    assert delay == Delay("pause", 1, 40 * S, 120, 130)


def test_regular_pauses_have_a_distance() -> None:
    # Every fifth interval of ten steps takes 4 s more per step: 40 s each, six times.
    (delay,) = delays_of(run(*([1.0] * 4 + [5.0]) * 6))
    assert (delay.reason, delay.count, delay.every_steps) == ("pause", 6, 50)
    assert delay.cost_ns == 6 * 40 * S


def test_irregular_pauses_have_none() -> None:
    (delay,) = delays_of(run(*[1.0] * 5, 5.0, 1.0, 5.0, *[1.0] * 12, 5.0, *[1.0] * 5))
    assert (delay.count, delay.every_steps) == (3, None)


def test_pause_in_which_results_were_logged_is_an_evaluation() -> None:
    points = run(*[1.0] * 12, 5.0, *[1.0] * 17)
    # The pause lasts from 120 s to 170 s.
    (delay,) = delays_of(points, eval__loss=[(120, 165.0)])
    assert (delay.reason, delay.cost_ns) == ("evaluation", 40 * S)


def test_slow_beginning_is_told_once() -> None:
    (delay,) = delays_of(run(9.0, 4.0, *[1.0] * 28))
    # 80 s and 30 s beyond the usual 10 s.
    assert delay == Delay("start", 1, 110 * S, 0, 20)


def test_recorded_steps_neither_count_as_usual_nor_as_a_pause() -> None:
    progress = progress_of(run(*[1.0] * 10, 4.0, *[1.0] * 10))
    recording = (105 * S, 130 * S)
    (regime,) = find_regimes(progress, is_usual_interval(progress))
    assert regime.step_ns == S
    (delay,) = find_delays(progress, {}, [recording])
    assert (delay.reason, delay.cost_ns) == ("recording", 30 * S)


def test_restart_costs_the_time_away_and_the_repeated_steps() -> None:
    points = run(*[1.0] * 20)
    # After step 200 at 200 s, the run logs step 150 at 260 s.
    points += [(150 + 10 * number, 260.0 + 10 * number) for number in range(10)]
    (delay,) = delays_of(points)
    # 60 s away, and 50 steps of 1 s again.
    assert delay == Delay("restart", 1, 110 * S, 200, 200)


def test_restart_costs_only_steps_that_the_run_took_again() -> None:
    points = run(*[1.0] * 20)
    # After step 200 at 200 s, the run logs step 100 at 260 s, and ends at step 150 at 310 s.
    points += [(100 + 10 * number, 260.0 + 10 * number) for number in range(6)]
    (delay,) = delays_of(points)
    # 60 s away, and the 50 steps of 1 s from 100 to 150.
    assert (delay.reason, delay.cost_ns) == ("restart", 110 * S)


@pytest.mark.parametrize("damaged", [2**32, 2**62, 2**63 - 1, -(2**63)])
def test_damaged_number_of_a_step_costs_no_more_than_the_run(damaged: int) -> None:
    points = run(*[1.0] * 20)
    points[10] = (damaged, points[10][1])
    whole_ns = 200 * S
    assert all(0 <= delay.cost_ns <= whole_ns for delay in delays_of(points))


def test_restart_at_the_very_end_is_outside_the_run() -> None:
    # Nothing tells how the run went on after its only step back.
    assert delays_of([*run(*[1.0] * 20), (50, 900.0)]) == ()


def test_steps_that_become_slower_are_a_trend() -> None:
    # From 1.0 s to 1.3 s over 40 intervals.
    times = np.linspace(1.0, 1.3, 40)
    (delay,) = delays_of(run(*times.tolist()))
    assert delay.reason == "slower"
    first = float(np.median(times[:10]))
    assert abs(delay.cost_ns - 10 * S * float((times - first).sum())) < 1_000
    # Ten intervals on average from 1 to 1 + 9 / 39 x 0.3, and as far from the end.
    assert delay.slowdown is not None
    assert (delay.slowdown.is_gradual, delay.first_step, delay.slowdown.start_unix_ns) == (
        True,
        0,
        0,
    )
    assert delay.slowdown.before_ns == pytest.approx((1 + 4.5 / 39 * 0.3) * S)
    assert delay_label(delay, is_per_epoch=False) == (
        "Steps became slower little by little, from 1.03 s in the first quarter to 1.27 s in the"
        " last"
    )


def test_run_that_is_slower_from_some_point_on_does_not_pause() -> None:
    # 1 s per step in 60 intervals, then 3 s in 40: 40 x 10 steps x 2 s more. One pause of 60 s.
    times = [1.0] * 60 + [3.0] * 40
    times[80] = 9.0
    slower, pause = delays_of(run(*times))
    assert (slower.reason, slower.cost_ns) == ("slower", 39 * 10 * 2 * S)
    # After 600 steps of 1 s.
    assert slower.slowdown == Slowdown(False, 600 * S, 1.0 * S, 3.0 * S)
    assert (slower.first_step, slower.last_step) == (600, 1000)
    assert delay_label(slower, is_per_epoch=False) == (
        "Steps became slower after step 600 (1970-01-01 00:10 UTC): 3.00 s instead of 1.00 s"
    )
    # Ten steps that take 9 s in place of the 3 s that are usual there.
    assert pause == Delay("pause", 1, 60 * S, 800, 810)


def test_steps_that_vary_are_no_trend() -> None:
    times = 1.0 + 0.05 * np.sin(np.arange(40))
    assert delays_of(run(*times.tolist())) == ()


def test_minor_delays_are_not_told() -> None:
    # 8 s of 308 s would be told; 2 s of 1002 s are not.
    assert delays_of(run(*[1.0] * 50, 1.8, *[1.0] * 49)) == ()


def test_longer_steps_are_a_pause_from_half_a_step_more() -> None:
    # An interval of 10 steps of 1.4 s costs 4 of 304 s, one of 1.6 s 6 of 306 s: both over 1 %.
    assert delays_of(run(*[1.0] * 12, 1.4, *[1.0] * 17)) == ()
    (delay,) = delays_of(run(*[1.0] * 12, 1.6, *[1.0] * 17))
    assert (delay.reason, delay.cost_ns) == ("pause", 6 * S)


def test_intervals_that_vary_much_hide_a_pause() -> None:
    # The median is 1.0 s, and deviations of 0.4 s are usual. The limit is
    # 1.0 + 5 x 1.4826 x 0.4 = 3.97 s.
    uneven = [0.6, 1.0, 1.4, 0.6, 1.4] * 6
    assert delays_of(run(*uneven[:14], 3.9, *uneven[14:])) == ()
    (delay,) = delays_of(run(*uneven[:14], 4.0, *uneven[14:]))
    assert (delay.reason, delay.cost_ns) == ("pause", 30 * S)


def test_noisy_steps_become_slower_where_their_mean_rises() -> None:
    random = np.random.default_rng(0)
    times = np.where(np.arange(200) < 140, 1.0, 1.3) + random.normal(0, 0.05, 200)
    (delay,) = delays_of(run(*times.tolist()))
    assert delay.slowdown is not None
    # 140 intervals of ten steps. The rise is six standard deviations.
    assert abs(delay.first_step - 1400) <= 10
    assert not delay.slowdown.is_gradual
    assert delay.slowdown.before_ns == pytest.approx(1.0 * S, rel=0.02)
    assert delay.slowdown.after_ns == pytest.approx(1.3 * S, rel=0.02)
