from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.comparison import interval
from tb_perfadvisor.comparison.interval import student_quantile


def change_interval(base: list[int], target: list[int]) -> tuple[float, float] | None:
    """Of steps that are all of one kind."""
    return interval.change_interval({"": base}, {"": target})


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


@pytest.mark.parametrize(
    ("base", "target", "place"),
    # Published tables of the rank sum test, two-sided 5 %: the largest U that is still significant.
    [(4, 4, 0), (5, 5, 2), (3, 5, 0), (6, 6, 5), (8, 8, 13), (10, 10, 23), (20, 20, 127)],
)
def test_the_ends_are_the_ratios_that_the_rank_sum_test_still_excludes(
    base: int, target: int, place: int
) -> None:
    # Powers of two, so that every ratio is exact: 2^(i-j), from the smallest on.
    steps = [2**number for number in range(base)], [2 ** (number + 5) for number in range(target)]
    ratios = sorted(after / before for before in steps[0] for after in steps[1])
    low, high = change_interval(*steps) or (0.0, 0.0)
    assert (1 + low, 1 + high) == pytest.approx((ratios[place], ratios[-1 - place]))


def test_an_outlier_does_not_move_the_end_beside_it() -> None:
    base = [100, 101, 99, 100, 102]
    usual, paused = ([130, 131, 129, 130, last] for last in (132, 900))
    low, high = change_interval(base, paused) or (0.0, 0.0)
    assert low == pytest.approx((change_interval(base, usual) or (0.0,))[0], abs=0.01)
    assert 0.25 < low < 0.3 < high
    # The mean of the step that has no outlier is 30 % more, with it 183 % more.


def test_thousands_of_steps_give_the_textbook_interval() -> None:
    generator = np.random.default_rng(5)
    base, target = generator.normal(100e6, 5e6, 20_000), generator.normal(110e6, 5.5e6, 10_000)
    low, high = change_interval(base.tolist(), target.tolist()) or (0.0, 0.0)
    # Both scale alike by 5 %. The estimate's standard error is that of the means times
    # sqrt(pi / 3), which is the square root of the test's relative efficiency for normal data.
    error = 1.1 * 0.05 * np.sqrt(1 / 20_000 + 1 / 10_000) * np.sqrt(np.pi / 3)
    middle = (low + high) / 2
    assert middle == pytest.approx(0.1, abs=3 * error)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


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
    # Two steps, one of which takes a billion times as long: stretched by t, the end overflowed.
    low, high = change_interval([1, 10**9], [10**9, 1]) or (0.0, 0.0)
    assert -1 <= low < 0
    assert high == pytest.approx(1_000 - 1)
    # A clear change beyond the end is not cut off.
    assert change_interval([10, 10], [10**6, 10**6]) == pytest.approx((10**5 - 1, 10**5 - 1))


def test_a_step_is_compared_with_steps_of_its_kind() -> None:
    # Three short steps and a long one; only the long ones got slower, from 400 to 600 ms. A cycle
    # of 700 ms takes 900: 28.6 % more, whatever the order of the steps is.
    short, long_before, long_after = [99, 100, 101] * 4, [399, 400, 401, 400], [599, 600, 601, 600]
    before, after = {"short": short, "long": long_before}, {"short": short, "long": long_after}
    low, high = interval.change_interval(before, after) or (0.0, 0.0)
    assert low == pytest.approx(2 / 7, abs=0.01)
    assert high == pytest.approx(2 / 7, abs=0.01)
    # All in one, the median step is a short one, and nothing changed.
    assert change_interval(short + long_before, short + long_after)[0] < 0.02  # type: ignore[index]
    # A single step of a kind proves nothing about it.
    assert interval.change_interval(before, after | {"long": [600]}) is None
