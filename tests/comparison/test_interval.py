from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.comparison import interval
from tb_perfadvisor.comparison.interval import student_quantile


def change_interval(base: list[int], target: list[int]) -> tuple[float, float] | None:
    """Of the steps of two runs."""
    sides = ((steps, interval.period_of(steps)) for steps in (base, target))
    before, after = (interval.blocks_of(steps, period) for steps, period in sides)
    return interval.ratio_interval(before, after)


def width(base: list[int], target: list[int]) -> float:
    low, high = change_interval(base, target) or (0.0, 0.0)
    return high - low


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Published tables of Student's t, two-sided 95 %.
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_quantiles_of_student_s_t(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=0.002)
    assert student_quantile(freedom + 0.9) <= student_quantile(freedom)


def test_the_interval_is_of_the_ratio_of_totals() -> None:
    # Two of three steps are unchanged, and the third takes 100 instead of 700: 900 become 300.
    low, high = change_interval([100, 100, 700] * 6, [100, 100, 100] * 6) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(300 / 900 - 1), pytest.approx(300 / 900 - 1))


def test_a_long_step_widens_the_interval() -> None:
    base = [100, 101, 99, 100, 102] * 4
    usual, paused = (
        [130, 131, 129, 130, 132] * 3 + [130, 131, 129, 130, last] for last in (132, 900)
    )
    assert width(base, usual) < 0.02
    low, high = change_interval(base, paused) or (0.0, 0.0)
    # One of the 20 steps takes 770 more, a mean of 38.5: up to about three of them may be drawn.
    assert 0.28 < low < 0.34
    assert high > 1.0


@pytest.mark.parametrize("steps", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_thousands_of_steps_give_the_textbook_interval(steps: int) -> None:
    generator = np.random.default_rng(5)
    base, target = generator.normal(100e6, 5e6, steps), generator.normal(110e6, 5.5e6, steps // 2)
    low, high = change_interval(base.tolist(), target.tolist()) or (0.0, 0.0)
    # The relative standard errors of both means are 5 % over the roots of the numbers.
    error = 1.1 * 0.05 * np.sqrt(1 / steps + 2 / steps)
    assert (low + high) / 2 == pytest.approx(0.1, abs=3 * error)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.2)


@pytest.mark.parametrize(
    ("steps", "period"),
    [
        ([100, 100, 100, 500] * 3, 4),
        ([10, 10, 40] * 4 + [10], 3),
        ([90, 10] * 5, 2),
        ([100, 101, 99, 102, 98, 100] * 3, 1),  # even, whatever repeats
        ([100, 100, 500] * 2, 1),  # twice may be chance
        ([100, 300, 200, 100, 100, 250, 120, 310, 90], 1),
        ([], 1),
    ],
)
def test_the_period_of_steps(steps: list[int], period: int) -> None:
    assert interval.period_of(steps) == period


def test_neighbors_that_are_alike_stay_together() -> None:
    # 40 runs of 25 equal steps: by single steps the mean would seem five times as certain.
    generator = np.random.default_rng(9)
    sides = [np.repeat(generator.normal(100e6, 10e6, 40), 25).astype(int) for _ in range(2)]
    alone = [generator.permutation(side) for side in sides]
    assert width(*sides) > 2 * width(*alone)


def test_a_mark_keeps_few_blocks() -> None:
    blocks = interval.blocks_of([1_000_000] * 10_007, 1, 40)
    assert len(blocks.steps) == 40
    assert (blocks.steps.sum(), blocks.mean_ns) == (10_007, 1e6)


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_the_interval_contains_the_true_change_as_often_as_promised(steps: int) -> None:
    # 95 % of 200 are 190, give or take 3.1. With few steps it may only be too wide.
    generator = np.random.default_rng(steps)
    held = 0
    for _ in range(200):
        base, target = generator.normal(100e6, 5e6, steps), generator.normal(90e6, 4.5e6, steps)
        low, high = change_interval(base.tolist(), target.tolist()) or (0.0, 0.0)
        held += low <= -0.1 <= high
    assert held >= 181


def test_fewer_steps_give_a_wider_interval() -> None:
    generator = np.random.default_rng(3)
    base, target = generator.integers(90, 110, 64), generator.integers(90, 110, 64)
    widths = [width(base[:n].tolist(), target[:n].tolist()) for n in (2, 4, 16, 64)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 5 * widths[-1]


def test_the_same_steps_give_the_same_interval() -> None:
    base, target = [100, 120, 95, 101], [80, 99, 85]
    assert change_interval(base, target) == change_interval(base, target)


def test_a_copy_of_a_recording_has_not_changed() -> None:
    assert change_interval([90, 110, 300], [90, 110, 300]) == (0.0, 0.0)
    assert change_interval([90], [90]) is None


def test_one_step_gives_no_interval() -> None:
    assert change_interval([100], [80, 81, 82]) is None
    assert change_interval([100, 101], [80]) is None
    assert change_interval([], []) is None
    assert change_interval([0, 0], [80, 81]) is None


def test_equal_steps_give_an_exact_interval() -> None:
    low, high = change_interval([100, 100], [75, 75, 75]) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(-0.25), pytest.approx(-0.25))


def test_the_change_is_never_below_minus_one() -> None:
    low, _ = change_interval([100, 1_000], [1, 20]) or (0.0, 0.0)
    assert -1 < low < -0.9


def test_steps_that_tell_nothing_have_an_interval_that_ends() -> None:
    # Two steps, one of which takes ten thousand times as long: stretched by t, the end overflowed.
    low, high = change_interval([100, 10_000], [10_000, 1]) or (0.0, 0.0)
    assert -1 <= low < 0
    assert high == pytest.approx(1_000 - 1)
    # A clear change beyond the end is not cut off.
    assert change_interval([10, 10], [10**6, 10**6]) == pytest.approx((10**5 - 1, 10**5 - 1))
