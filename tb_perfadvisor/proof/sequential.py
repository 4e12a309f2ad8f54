"""When pairs of runs prove a change: a sequential test with a stated rate of errors.

The unit of evidence is a pair of runs, one of each version. Steps of one run are correlated, and
share what is peculiar to their process, so they count as one reading. A pair's reading is the
logarithm of the ratio of its step times.

After 3, 4, 6, 8, 12, 16, 24, 32 and 48 pairs, the test looks at Student's interval of the mean
reading. The looks share the allowed error (Bonferroni), so that the interval at which the test
ends holds with the stated confidence, however often it looked. A look's share is inverse to its
pairs: with few of them Student's interval is wide, a larger share narrows it most, and a trial that
ends early saves its user the most time. The test ends as soon as the interval lies

- beyond the margin: `faster` or `slower`,
- within the margin on both sides: `no difference`.

A change whose true effect is within the margin is so called faster or slower in less than 1 % of
the trials, and one whose effect is beyond the margin is called without effect in less than 1 %. An
effect near the margin may stay `undecided`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from tb_perfadvisor.proof.results import MARGIN, Effect

ALPHA: Final = 0.01
LOOKS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48)
QUANTILES: Final = MappingProxyType(
    {
        3: (18.2449, 8.0857),
        4: (9.8225, 5.6063),
        6: (6.2879, 4.3332),
        8: (5.3015, 3.9394),
        12: (4.6140, 3.6625),
        16: (4.3594, 3.5680),
        24: (4.1643, 3.5127),
        32: (4.0949, 3.5082),
        48: (4.0557, 3.5326),
    }
)
"""By number of pairs, Student's t with one degree of freedom less: the quantiles that the look's
shares of ALPHA and of 1 - CONFIDENCE leave out on both sides together."""

Decision = Literal["faster", "slower", "no difference", "undecided"]


class Look(Struct, frozen=True):
    """What the pairs so far say."""

    decision: Decision
    effect: Effect | None
    """At 95 % confidence; None before the first look."""


def look(readings: Sequence[float]) -> Look:
    """Look at the pairs so far.

    A reading is the logarithm of new ÷ old step time of a pair.
    """
    pairs = max((count for count in LOOKS if count <= len(readings)), default=0)
    if not pairs:
        return Look("undecided", None)
    counted = readings[:pairs]
    mean, error = float(np.mean(counted)), float(np.std(counted, ddof=1)) / sqrt(pairs)
    strict, shown = (quantile * error for quantile in QUANTILES[pairs])
    effect = Effect(1 - exp(mean + shown), 1 - exp(mean), 1 - exp(mean - shown))
    low, high = mean - strict, mean + strict
    if high < log(1 - MARGIN):
        return Look("faster", effect)
    if low > log(1 + MARGIN):
        return Look("slower", effect)
    if low > log(1 - MARGIN) and high < log(1 + MARGIN):
        return Look("no difference", effect)
    return Look("undecided", effect)


def is_look(pairs: int) -> bool:
    """Whether the test looks after this many pairs."""
    return pairs in LOOKS
