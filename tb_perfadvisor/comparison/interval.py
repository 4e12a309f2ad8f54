"""Intervals of the ratio of two loops' total times, and marks of recordings that got slower.

The speed-up of a loop is the ratio of the mean steps: of total times, not of medians. A median
ignores the step in three in which a loader is waited for, and so most of the time that a fix saves.

How far chance moves that ratio is found by a block bootstrap: each run's steps are cut into blocks
of neighbors, and blocks are drawn with replacement. Neighboring steps are alike, and steps may
repeat in a pattern, so a block is a whole number of periods. Fewer than eight blocks are too few to
draw from. Then the interval is Welch's, by Student's t, of the blocks' means.

The interval describes the recorded steps. Two recordings of the same program also differ because of
the machine's clock rates and other load, so a change within `NOISE_SHARE` is never reported.

A log folder may have thousands of recordings. A mark in their table must not need the facts of a
whole comparison, so a recording keeps only the totals of a few blocks, and two recordings are
compared only if they state the same work on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract.run_row import Mark, MarkVerdict, Pace
from tb_perfadvisor.trace.tables import Float64

CONFIDENCE = 0.95
NOISE_SHARE = 0.01
"""The default noise threshold of Criterion.rs, which compares benchmarks in the same way."""

_MOST_TIMES = 1_000
"""The largest end of an interval, as a multiple of the base. Steps that allow for more say nothing
about a change, and the end in nanoseconds might not fit into 64 bits."""
_FEW_BLOCKS = 8
"""Fewer have too few different drawings: 7 blocks give 1,716, most of them near the mean."""
_MOST_BLOCKS = 40
"""Enough to tell a change of a few percent, and small beside the report."""
_DRAWINGS = 4_000
"""The ends, the 2.5 % quantiles, then rest on a hundred drawings each."""
_REPEATED_SHARE = 0.9
"""Of the variance between steps, which a period must explain."""
_LEAST_PERIODS = 3
"""Two that look alike may be chance."""
_UNEVEN = 1.2
"""How many times as long the longest step of a period is as the shortest, at least. In even steps
a period makes no difference."""
_Z = 1.959964
# The 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Blocks(Struct, frozen=True):
    """Times of a run's steps in blocks of neighbors."""

    total_ns: Float64
    """Shape (blocks,), as is the next."""
    steps: Float64

    @property
    def mean_ns(self) -> float:
        """Of all steps."""
        return float(self.total_ns.sum() / self.steps.sum())


def period_of(step_ns: Sequence[int]) -> int:
    """After how many steps the times repeat: k if a loader with k workers is waited for.

    It is 1 if the steps are even, or do not repeat.
    """
    times = np.asarray(step_ns, dtype=np.float64)
    spread = float(((times - times.mean()) ** 2).sum()) if len(times) else 0.0
    for period in range(2, len(times) // _LEAST_PERIODS + 1):
        phase = np.arange(len(times)) % period
        means = np.bincount(phase, times) / np.bincount(phase)
        if means.max() < _UNEVEN * means.min():
            continue
        left = float(((times - means[phase]) ** 2).sum())
        # Many phases explain some of any variance, so compare per degree of freedom.
        if left / (len(times) - period) <= (1 - _REPEATED_SHARE) * spread / (len(times) - 1):
            return period
    return 1


def blocks_of(step_ns: Sequence[int], period: int, most: int | None = None) -> Blocks:
    """Cut steps into blocks of whole periods.

    The steps are a whole number of periods, and a period is in steps. There are at most `most`
    blocks.
    """
    times = np.asarray(step_ns, dtype=np.float64)
    if not len(times):
        return Blocks(times, times)
    periods = max(len(times) // period, 1)
    # The cube root balances what is lost by cutting neighbors apart and by having few blocks.
    length = max(min(round(periods ** (1 / 3)), periods // _FEW_BLOCKS), 1)
    count = min(periods // length, most or periods)
    edges = np.arange(count + 1) * periods // count * period
    edges[-1] = len(times)
    return Blocks(np.add.reduceat(times, edges[:-1]), np.diff(edges).astype(np.float64))


def ratio_interval(base: Blocks, target: Blocks) -> tuple[float, float] | None:
    """The 95 % confidence interval of the change of the mean step, as shares of the base.

    The low end comes first; -0.1 is a tenth less. None if a run has a single block, which does not
    show how much steps vary, or if steps take no time.
    """
    if min(len(base.steps), len(target.steps)) < 2 or not (base.mean_ns and target.mean_ns):
        return None
    if np.array_equal(base.total_ns, target.total_ns):
        return 0.0, 0.0  # a copy of the recording, not another one
    if min(len(base.steps), len(target.steps)) >= _FEW_BLOCKS:
        before, after = (_drawn_means(side) for side in (base, target))
        ends = np.quantile(after / before, _ends(base, target))
        return float(ends[0]) - 1, float(ends[1]) - 1
    change = log(target.mean_ns / base.mean_ns)
    reach = _welch(base, target, relative=True)
    most = max(change, log(_MOST_TIMES))
    return exp(change - reach) - 1, exp(min(change + reach, most)) - 1


def is_certain(base: Blocks, target: Blocks) -> bool:
    """Whether the mean changed by more than chance explains, with 95 % confidence."""
    if min(len(base.steps), len(target.steps)) < 2:
        return False
    if min(len(base.steps), len(target.steps)) >= _FEW_BLOCKS:
        before, after = (_drawn_means(side) for side in (base, target))
        low, high = np.quantile(after - before, _ends(base, target))
        return bool(low > 0 or high < 0)
    return abs(target.mean_ns - base.mean_ns) > _welch(base, target, relative=False)


def _drawn_means(blocks: Blocks) -> Float64:
    """The mean step of each drawing of blocks. A fixed seed gives the same report every time."""
    count = len(blocks.steps)
    drawn = np.random.default_rng(count).integers(0, count, (_DRAWINGS, count))
    means: Float64 = blocks.total_ns[drawn].sum(axis=1) / blocks.steps[drawn].sum(axis=1)
    return means


def _ends(base: Blocks, target: Blocks) -> tuple[float, float]:
    """The quantiles of the drawings, a little further out for few blocks (Hesterberg, 2015)."""
    count = min(len(base.steps), len(target.steps))
    reach = student_quantile(count - 1) * sqrt(count / (count - 1))
    # The normal distribution's tail beyond 1.96 is 2.5 %; near there it shrinks like this.
    tail = (1 - CONFIDENCE) / 2 * exp(-(reach**2 - _Z**2) / 2) * _Z / reach
    return tail, 1 - tail


def _welch(base: Blocks, target: Blocks, *, relative: bool) -> float:
    """How far the difference of two means, or of their logarithms, may be off."""
    errors = []
    for side in (base, target):
        means = side.total_ns / side.steps / (side.mean_ns if relative else 1.0)
        errors.append(float(means.var(ddof=1)) / len(means))
    whole = sum(errors)
    if whole == 0:
        return 0.0
    freedom = whole**2 / sum(
        error**2 / (len(side.steps) - 1) for error, side in zip(errors, (base, target), strict=True)
    )
    return student_quantile(freedom) * sqrt(whole)


def student_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; fractions of a degree are rounded down."""
    if freedom < len(_T) + 1:
        return _T[max(int(freedom), 1) - 1]
    return _Z * (1 + (_Z**2 + 1) / (4 * freedom))


def pace_of(facts: RunFacts) -> Pace | None:
    """The pace of a recording; None if it has no steps, or does not tell how fast they are."""
    if not facts.step_ns or facts.is_truncated or facts.not_to_act_on:
        return None
    period = period_of(facts.step_ns)
    whole = len(facts.step_ns) // period * period
    blocks = blocks_of(facts.step_ns[:whole], period, _MOST_BLOCKS)
    setup = facts.setup
    return Pace(
        block_ns=[round(total) for total in blocks.total_ns],
        block_steps=[round(steps) for steps in blocks.steps],
        setup=msgspec.json.encode(
            [
                *(facts.is_synthetic, facts.step_source, setup.framework, setup.device),
                *(setup.devices_used, setup.world_size, setup.workers, setup.batch),
                *sorted(set(facts.step_kinds)),
            ]
        ).decode(),
    )


def mark(base_id: str, base: Pace, target: Pace) -> Mark | None:
    """How a recording compares with another; None if their steps alone do not tell.

    `base_id` and `base` are those of the other recording.
    """
    before, after = (
        Blocks(np.array(pace.block_ns, np.float64), np.array(pace.block_steps, np.float64))
        for pace in (base, target)
    )
    if base.setup != target.setup or not before.mean_ns:
        return None
    verdict: MarkVerdict = "inconclusive"
    interval = ratio_interval(before, after)
    if interval is not None and interval[0] > NOISE_SHARE:
        verdict = "slower"
    elif interval is not None and interval[1] < -NOISE_SHARE:
        verdict = "faster"
    share = after.mean_ns / before.mean_ns - 1
    return Mark(base=base_id, change_share=share, verdict=verdict)
