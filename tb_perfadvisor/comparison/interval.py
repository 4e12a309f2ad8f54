"""Intervals of a speed-up, and the pace of steps.

A confidence interval for the change of a typical step, without assumptions about outliers.

Each step of one run is compared with each step of the other. The interval takes the k-th smallest
and the k-th largest of these ratios, where k is the largest number at which the rank sum test
(Mann and Whitney) still gives 95 % confidence. It belongs to the estimate of Hodges and Lehmann
(1963): the median of the ratios. If both runs' steps have the same distribution but for their
scale, that is the ratio of their medians. One long step, such as a checkpoint or a pause, moves
neither end by much, however long it is.

Ranks of fewer than four steps each cannot prove anything. Then the interval is Welch's, by
Student's t, of the steps' logarithms; logarithms, because a step can become ten times as long but
not shorter than zero.

Steps of one kind are compared with steps of the same kind. The interval of a step of the mix that
the base has follows from those of its kinds.

The interval describes the recorded steps. Two recordings of the same program also differ because of
the machine's clock rates and other load, so a change within `NOISE_SHARE` is never reported.

Whether a recording got slower, decided from a few numbers of each of two recordings.

A log folder may have thousands of recordings. A mark in their table must not need the facts of a
whole comparison, so a recording's steps are thinned to a few, and two recordings are compared only
if they state the same work on the same machine. The verdict is that of the comparison: fewer steps
make its interval wider, so a mark never says more than the comparison would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.comparison.run_facts import RunFacts, steps_by_kind
from tb_perfadvisor.contract.pace import Mark, MarkVerdict, Pace
from tb_perfadvisor.trace.tables import Float64

CONFIDENCE = 0.95
NOISE_SHARE = 0.01
"""The default noise threshold of Criterion.rs, which compares benchmarks in the same way."""

_MOST_TIMES = 1_000
"""The largest end of an interval, as a multiple of the base. Steps that allow for more say nothing
about a typical one, and the end in nanoseconds might not fit into 64 bits."""
_MOST_STEPS = 2_000
"""Of each run, beyond which quantiles of its steps stand for them. This bounds the ratios."""
_EXACT = 50
"""Steps of both runs up to which the test's distribution is counted; the counts fit 64 bits."""
_Z = 1.959964
# The 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


Kinds = Mapping[str, Sequence[int]]
"""The steps of each kind, in nanoseconds."""


class _Ratio(Struct, frozen=True):
    """How many times as long a step takes, with the ends of the interval."""

    low: float
    estimate: float
    high: float


def change_interval(base: Kinds, target: Kinds) -> tuple[float, float] | None:
    """The 95 % confidence interval of the change of a typical step, as shares of the base.

    Args:
        base: The base's steps.
        target: The target's steps, of the same kinds.

    Returns:
        The low and the high end (-0.1 is a tenth less). None if a run has a single step of a kind,
        which does not show how much steps vary, or if steps take no time.
    """
    steps = [
        (np.asarray(base[kind], dtype=np.float64), np.asarray(target[kind], dtype=np.float64))
        for kind in base
    ]
    if any(min(map(len, pair)) < 2 or not all(side.all() for side in pair) for pair in steps):
        return None
    ratios = [_ratio(np.log(before), np.log(after)) for before, after in steps]
    if not ratios:
        return None
    # What each kind takes of the base. The intervals are independent, so that their distances from
    # the estimates add up like standard errors (Zou and Donner, 2008).
    time = np.array([len(before) * float(np.median(before)) for before, _ in steps])
    weight = time / time.sum()
    low, middle, high = (
        np.array([getattr(ratio, end) for ratio in ratios]) for end in ("low", "estimate", "high")
    )
    whole = float(weight @ middle)
    below, above = (
        sqrt(float(((weight * reach) ** 2).sum())) for reach in (middle - low, high - middle)
    )
    return whole - below - 1, whole + above - 1


def _ratio(base: Float64, target: Float64) -> _Ratio:
    """The ratio of steps of one kind, from their logarithms."""
    if np.array_equal(base, target):
        return _Ratio(1.0, 1.0, 1.0)  # a copy of the recording, not another one
    excluded = _excluded_pairs(len(base), len(target))
    if excluded:
        return _by_ranks(base, target, (excluded - 1) / (len(base) * len(target)))
    return _by_student(base, target)


def _by_ranks(base: Float64, target: Float64, tail: float) -> _Ratio:
    """The interval from which a share of the pairs of steps is left out on each side."""
    base, target = _thinned(base), _thinned(target)
    changes = np.sort((target[:, None] - base[None, :]).ravel())
    place = round(tail * len(changes))
    return _Ratio(exp(changes[place]), exp(np.median(changes)), exp(changes[-1 - place]))


def _thinned(logarithms: Float64) -> Float64:
    if len(logarithms) <= _MOST_STEPS:
        return logarithms
    shares = (np.arange(_MOST_STEPS) + 0.5) / _MOST_STEPS
    quantiles: Float64 = np.quantile(logarithms, shares)
    return quantiles


def _excluded_pairs(base: int, target: int) -> int:
    """The largest k at which fewer than k pairs speak against a change in 2.5 % of the cases.

    Args:
        base: Number of the base's steps.
        target: Number of the target's steps.

    Returns:
        0 if even the clearest order of the steps occurs more often by chance.
    """
    tail = (1 - CONFIDENCE) / 2
    if base + target > _EXACT:
        # Its distribution is nearly normal, with these moments.
        mean = base * target / 2
        deviation = sqrt(base * target * (base + target + 1) / 12)
        return int(mean - _Z * deviation)
    # The number of orders in which u pairs are reversed: the coefficients of a Gaussian binomial,
    # (1 - q^(base+1)) ... (1 - q^(base+target)) / ((1 - q) ... (1 - q^target)).
    orders = np.zeros(base * target + 1, dtype=np.int64)
    orders[0] = 1
    for number in range(1, target + 1):
        orders[base + number :] -= orders[: len(orders) - base - number].copy()
        for start in range(number):
            orders[start::number] = np.cumsum(orders[start::number])
    chance = np.cumsum(orders) / orders.sum()
    return int(np.searchsorted(chance, tail, side="right"))


def _by_student(base: Float64, target: Float64) -> _Ratio:
    """Welch's interval of the difference of two means."""
    change = float(target.mean() - base.mean())
    samples = (base, target)
    errors = [float(steps.var(ddof=1)) / len(steps) for steps in samples]
    whole = sum(errors)
    if whole == 0:
        return _Ratio(exp(change), exp(change), exp(change))
    freedom = whole**2 / sum(
        error**2 / (len(steps) - 1) for error, steps in zip(errors, samples, strict=True)
    )
    reach = student_quantile(freedom) * sqrt(whole)
    most = max(change, log(_MOST_TIMES))
    return _Ratio(exp(change - reach), exp(change), exp(min(change + reach, most)))


def student_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; fractions of a degree are rounded down."""
    if freedom < len(_T) + 1:
        return _T[max(int(freedom), 1) - 1]
    return _Z * (1 + (_Z**2 + 1) / (4 * freedom))


_MOST_PACE_STEPS = 40
"""Of each kind: enough to tell a change of a few percent, and small beside the report."""


def pace_of(facts: RunFacts) -> Pace | None:
    """The pace of a recording; None if it has no steps, or does not tell how fast they are."""
    if not facts.step_ns or facts.is_truncated or facts.not_to_act_on:
        return None
    kinds = steps_by_kind(facts)
    typical = sum(len(steps) * float(np.median(steps)) for steps in kinds.values())
    setup = facts.setup
    return Pace(
        step_ns={kind: _thinned_pace(steps) for kind, steps in kinds.items()},
        typical_ns=round(typical / facts.steps),
        setup=msgspec.json.encode(
            [
                *(facts.is_synthetic, facts.step_source, setup.framework, setup.device),
                *(setup.devices_used, setup.world_size, setup.workers, setup.batch),
            ]
        ).decode(),
    )


def mark(base_id: str, base: Pace, target: Pace) -> Mark | None:
    """How a recording compares with another.

    Args:
        base_id: The other recording.
        base: Its pace.
        target: The pace of the recording.

    Returns:
        None if they cannot be compared by their steps alone.
    """
    if base.setup != target.setup or base.step_ns.keys() != target.step_ns.keys():
        return None
    if not base.typical_ns:
        return None
    verdict: MarkVerdict = "inconclusive"
    interval = change_interval(base.step_ns, target.step_ns)
    if interval is not None and interval[0] > NOISE_SHARE:
        verdict = "slower"
    elif interval is not None and interval[1] < -NOISE_SHARE:
        verdict = "faster"
    share = target.typical_ns / base.typical_ns - 1
    return Mark(base=base_id, change_share=share, verdict=verdict)


def _thinned_pace(steps: list[int]) -> list[int]:
    ordered = sorted(steps)
    if len(ordered) <= _MOST_PACE_STEPS:
        return ordered
    places = (np.arange(_MOST_PACE_STEPS) + 0.5) / _MOST_PACE_STEPS * len(ordered)
    return [ordered[int(place)] for place in places]
