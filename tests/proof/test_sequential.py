"""The sequential test: its constants, its decisions, and its rate of errors."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from proof_errors import NOISES, decisions, readings_of
from tb_perfadvisor.proof.results import CONFIDENCE
from tb_perfadvisor.proof.trial import ALPHA, LOOKS, QUANTILES, look


def tail_of_student(t: float, freedom: int) -> float:
    """The probability of more than t, by Simpson's rule over u = t / x from 0 to 1."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    scale /= math.sqrt(freedom * math.pi)

    def density(u: float) -> float:
        if u == 0:
            return 0.0
        x = t / u
        return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * t / u**2

    count = 2000
    weights = [1, *([4, 2] * (count // 2 - 1)), 4, 1]
    values = [weight * density(place / count) for place, weight in enumerate(weights)]
    return math.fsum(values) / (3 * count)


@pytest.mark.parametrize("pairs", LOOKS)
def test_the_quantiles_leave_out_the_share_of_the_look(pairs: int) -> None:
    share = 1 / pairs / sum(1 / each for each in LOOKS)
    strict, shown = QUANTILES[pairs]
    assert tail_of_student(strict, pairs - 1) == pytest.approx(ALPHA * share / 2, rel=1e-3)
    assert tail_of_student(shown, pairs - 1) == pytest.approx(
        (1 - CONFIDENCE) * share / 2, rel=1e-3
    )


def test_decides_by_the_margin() -> None:
    # Four readings around their mean m with deviations of 0.001 have the standard deviation
    # sqrt(4/3) * 0.001 = 0.00115. Strictly, the interval reaches 9.82 * 0.00115 / 2 = 0.0057.
    # The margin is log(1.03) = 0.0296 and -log(0.97) = 0.0305.
    def decided(mean: float) -> str:
        return look([mean + each for each in (0.001, -0.001, 0.001, -0.001)]).decision

    assert decided(0.0) == "no difference"
    assert decided(0.0235) == "no difference"
    assert decided(0.0245) == decided(0.0350) == "undecided"
    assert decided(0.0355) == "slower"
    assert decided(-0.0245) == "no difference"
    assert decided(-0.0255) == decided(-0.0360) == "undecided"
    assert decided(-0.0365) == "faster"


def test_says_nothing_before_the_first_look_and_only_what_looks_saw() -> None:
    assert look([-0.2, -0.2]) == look([])
    assert look([-0.2, -0.21, -0.19, -0.2]) == look([-0.2, -0.21, -0.19, -0.2, 5.0])


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("spread", [0.005, 0.03, 0.1])
def test_errs_in_less_than_one_percent(kind: str, spread: float) -> None:
    trials = 4000
    for place, effect in enumerate((0.0, math.log(1.03), math.log(0.97))):
        found = decisions(trials, effect, spread, kind, seed=place)
        assert found["faster"] + found["slower"] <= ALPHA * trials, (effect, found)
    # Just beyond the margin, to say that there is no difference would be the error.
    for place, effect in enumerate((math.log(1.0301), math.log(0.9699))):
        found = decisions(trials, effect, spread, kind, seed=10 + place)
        assert found["no difference"] <= ALPHA * trials, (effect, found)


def test_the_simulation_decides_as_the_test_does() -> None:
    for effect in (0.0, math.log(0.8), math.log(1.2), math.log(1.03)):
        readings = readings_of(50, effect, 0.02, "normal", seed=5)
        found = Counter(_decided(row.tolist()) for row in readings)
        assert found == decisions(50, effect, 0.02, "normal", seed=5)


def _decided(readings: list[float]) -> str:
    for pairs in LOOKS:
        seen = look(readings[:pairs]).decision
        if seen != "undecided":
            return seen
    return "undecided"


def test_finds_what_is_there() -> None:
    for spread in (0.005, 0.03):
        assert decisions(1000, math.log(0.82), spread, "normal", seed=1)["faster"] >= 990
        assert decisions(1000, math.log(1.2), spread, "normal", seed=2)["slower"] >= 990
    assert decisions(1000, 0.0, 0.01, "normal", seed=3)["no difference"] >= 990
