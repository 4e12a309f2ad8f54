"""How often the sequential test of `perfadvisor try` errs, by simulation.

    python benchmarks/proof_errors.py

prints the table in docs/try.md. Readings of pairs are drawn with a true effect and one of three
kinds of noise; the machine that drifts keeps four fifths of its deviation from pair to pair, and
the orders of pairs alternate.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.proof.results import MARGIN
from tb_perfadvisor.proof.trial import LOOKS, QUANTILES

NOISES = ("normal", "heavy tails", "drift")
_KEPT = 0.8
_SPREAD = 0.03


def readings_of(
    trials: int, effect: float, spread: float, kind: str, seed: int
) -> NDArray[np.float64]:
    """The readings of each trial, as a row.

    Args:
        trials: How many.
        effect: The true logarithm of new to old step time.
        spread: The standard deviation of the noise; with heavy tails, its scale.
        kind: One of `NOISES`.
        seed: Of the random numbers.
    """
    generator = np.random.default_rng(seed)
    shape = (trials, LOOKS[-1])
    if kind == "heavy tails":
        noise = spread * generator.standard_t(3, shape)
    elif kind == "drift":
        noise = spread * generator.standard_normal(shape)
        for pair in range(1, LOOKS[-1]):
            fresh = math.sqrt(1 - _KEPT**2) * noise[:, pair]
            noise[:, pair] = _KEPT * noise[:, pair - 1] + fresh
        noise[:, ::2] *= -1  # what comes first in one pair comes second in the next
    else:
        noise = spread * generator.standard_normal(shape)
    drawn: NDArray[np.float64] = effect + noise
    return drawn


def decisions(trials: int, effect: float, spread: float, kind: str, seed: int) -> Counter[str]:
    """How trials end; the same as `look` decides, for many at a time."""
    left = readings_of(trials, effect, spread, kind, seed)
    found: Counter[str] = Counter()
    for pairs in LOOKS:
        counted = left[:, :pairs]
        mean = counted.mean(axis=1)
        reach = QUANTILES[pairs][0] * counted.std(axis=1, ddof=1) / math.sqrt(pairs)
        faster = mean + reach < math.log(1 - MARGIN)
        slower = mean - reach > math.log(1 + MARGIN)
        within = (mean - reach > math.log(1 - MARGIN)) & (mean + reach < math.log(1 + MARGIN))
        found["faster"] += int(faster.sum())
        found["slower"] += int(slower.sum())
        found["no difference"] += int(within.sum())
        left = left[~(faster | slower | within)]
    found["undecided"] += len(left)
    return +found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100_000)
    trials = parser.parse_args().trials
    print("| noise between pairs | true change | faster | slower | no difference | undecided |")
    print("|---|---|---|---|---|---|")
    for kind in NOISES:
        for change in (0.0, -0.03, -0.18):
            found = decisions(trials, math.log1p(change), _SPREAD, kind, seed=0)
            shares = " | ".join(
                f"{100 * found[name] / trials:.2f} %"
                for name in ("faster", "slower", "no difference", "undecided")
            )
            print(f"| {kind}, {100 * _SPREAD:.0f} % | {100 * change:+.0f} % | {shares} |")


if __name__ == "__main__":
    main()
