"""A confidence interval for the change of the mean step time: a bootstrap, widened for few steps.

Both runs' steps are resampled with replacement, and the logarithm of the ratio of their means is
recorded each time; logarithms, because a step can become ten times as long but not shorter than
zero. With few steps this interval is too narrow: resampled means vary less than true means, and
normal quantiles are too small. So the distances from the observed ratio are stretched by the ratio
of the unbiased standard error to the resampled one, and by the ratio of the t quantile with Welch's
degrees of freedom to the normal quantile (Hesterberg, "What Teachers Should Know about the
Bootstrap", 2015: narrowness bias and expanded percentile intervals).

The interval describes the recorded steps. Two recordings of the same program also differ because of
the machine's clock rates and other load, so a change within `NOISE_SHARE` is never reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log, sqrt

import numpy as np

from tb_perfadvisor.trace.tables import Float64

CONFIDENCE = 0.95
NOISE_SHARE = 0.01
"""The default noise threshold of Criterion.rs, which compares benchmarks in the same way."""

_MOST_TIMES = 1_000
"""The largest end of an interval, as a multiple of the base. Steps that allow for more say nothing
about the mean, and the end in nanoseconds might not fit into 64 bits."""
_RESAMPLES = 10_000
_CHUNK = 1_000_000
"""Draws at a time. This bounds the memory needed for runs with thousands of steps."""
_Z = 1.959964
# The 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def change_interval(base_ns: Sequence[int], target_ns: Sequence[int]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the change of the mean, as shares of the base.

    The same steps always give the same interval.

    Args:
        base_ns: The base's steps.
        target_ns: The target's steps.

    Returns:
        The low and the high end (-0.1 is a tenth less). None if a run has a single step, which
        does not show how much steps vary, or if steps take no time.
    """
    base, target = (np.asarray(steps, dtype=np.float64) for steps in (base_ns, target_ns))
    if min(len(base), len(target)) < 2 or not (base.all() and target.all()):
        return None
    change = float(np.log(target.mean()) - np.log(base.mean()))
    generator = np.random.default_rng(0)
    resampled = np.log(_means(target, generator)) - np.log(_means(base, generator))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled - change, [tail, 1 - tail])
    stretch, most = _stretch(base, target), max(change, log(_MOST_TIMES))
    low, high = (min(change + stretch * float(end), most) for end in (low, high))
    return expm1(low), expm1(high)


def _means(steps: Float64, generator: np.random.Generator) -> Float64:
    """Means of resampled steps; shape (resamples,)."""
    rows = max(_CHUNK // len(steps), 1)
    means = [
        steps[generator.integers(len(steps), size=(min(rows, _RESAMPLES - at), len(steps)))].mean(1)
        for at in range(0, _RESAMPLES, rows)
    ]
    return np.concatenate(means)


def _stretch(*samples: Float64) -> float:
    """The factor by which the resampled distances are too short."""
    spare = [len(steps) - 1 for steps in samples]
    # Squared standard errors of the logarithms of the means.
    errors = [float(steps.var(ddof=1)) / len(steps) / float(steps.mean()) ** 2 for steps in samples]
    whole = sum(errors)
    if whole == 0:
        return 1.0
    freedom = whole**2 / sum(error**2 / left for error, left in zip(errors, spare, strict=True))
    resampled = sum(error * left / (left + 1) for error, left in zip(errors, spare, strict=True))
    return student_quantile(freedom) / _Z * sqrt(whole / resampled)


def student_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; fractions of a degree are rounded down."""
    if freedom < len(_T) + 1:
        return _T[max(int(freedom), 1) - 1]
    return _Z * (1 + (_Z**2 + 1) / (4 * freedom))
