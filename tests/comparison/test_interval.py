from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.comparison.interval import change_interval, student_quantile


def width(base: list[int], target: list[int]) -> float:
    interval = change_interval(base, target)
    assert interval is not None
    return interval[1] - interval[0]


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Published tables of Student's t, two-sided 95 %.
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_quantiles_of_student_s_t(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=0.002)
    assert student_quantile(freedom + 0.9) <= student_quantile(freedom)


def test_many_steps_give_the_textbook_interval() -> None:
    generator = np.random.default_rng(5)
    base, target = generator.normal(100e6, 5e6, 2_000), generator.normal(110e6, 8e6, 1_000)
    low, high = change_interval(base.tolist(), target.tolist()) or (0.0, 0.0)
    # The ratio of two means, by propagation of errors: sd/mean/sqrt(n) of each.
    ratio = target.mean() / base.mean()
    error = ratio * np.hypot(
        base.std() / base.mean() / np.sqrt(2_000), target.std() / target.mean() / np.sqrt(1_000)
    )
    assert low == pytest.approx(ratio - 1 - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(ratio - 1 + 1.96 * error, abs=0.1 * error)


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_the_interval_contains_the_true_change_as_often_as_promised(steps: int) -> None:
    # 95 % of 200 are 190, give or take 3.1. With few steps it may only be too wide.
    generator = np.random.default_rng(steps)
    held = 0
    for _ in range(200):
        base, target = generator.normal(100e6, 5e6, steps), generator.normal(90e6, 8e6, steps)
        low, high = change_interval(base.tolist(), target.tolist()) or (0.0, 0.0)
        held += low <= -0.1 <= high
    assert held >= 181


def test_fewer_steps_give_a_wider_interval() -> None:
    spread = [90, 110]
    widths = [width(spread * times, spread * times) for times in (1, 2, 4, 16)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10 * widths[-1]


def test_the_same_steps_give_the_same_interval() -> None:
    base, target = [100, 120, 95, 101], [80, 99, 85]
    assert change_interval(base, target) == change_interval(base, target)


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
    # Two steps, one of which takes a billion times as long: stretched by t, the end overflowed.
    interval = change_interval([1, 10**9], [1, 10**9])
    assert interval is not None
    low, high = interval
    assert -1 <= low < 0
    assert high == pytest.approx(1_000 - 1)
    # A clear change beyond the end is not cut off.
    assert change_interval([10, 10], [10**6, 10**6]) == pytest.approx((10**5 - 1, 10**5 - 1))
