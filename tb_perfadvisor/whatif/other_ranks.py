"""How much the other ranks allow to be saved: a step is as fast as its slowest rank.

Savings are those of the critical rank, which the others wait for in collectives. A change saves at
most the time until another rank becomes the slowest. The change is made on all ranks: it takes the
same share of each cause off every rank.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals import Cause, Signals, ranks_of
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import uncovered_waits
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns
from tb_perfadvisor.trace.tables import Float64

_COMMUNICATION = CAUSES.index(Cause.COMMUNICATION)


class OtherRanks(Struct, frozen=True):
    """Where the time of the other ranks goes, without their waiting for one another."""

    cause_ns: Float64
    """Shape (other ranks, causes), scaled to the number of steps of the critical rank."""
    window_ns: int
    """Of the critical rank."""
    intervals: tuple[Intervals, ...]
    """The time of each cause on the critical rank."""

    def most_saved_ns(self, claims: Intervals) -> int:
        """The most that a change can save of the used window, given the time that it claims."""
        left = np.array(
            [
                1 - total_ns(intersect(claims, intervals)) / max(1, total_ns(intervals))
                for intervals in self.intervals
            ]
        )
        return max(self.window_ns - round(float((self.cause_ns @ left).max())), 0)


@memoized
def other_ranks(signals: Signals) -> OtherRanks | None:
    """The other ranks; None for a single rank, or if not every collective is known of all ranks.

    Also None on the CPU: ranks that share the cores of a host take turns, and compute longer where
    they would otherwise wait.
    """
    ranks = ranks_of(signals)
    if signals.device.is_host_only:
        return None
    known = [len(summary.collectives) for summary in ranks.summaries]
    matched = np.bincount(ranks.matched.rank, minlength=len(ranks))
    left_out = any(summary.collectives.left_out for summary in ranks.summaries)
    if len(ranks) < 2 or not len(ranks.matched) or left_out or (matched != known).any():
        return None
    if not ranks.matched.is_whole.all():
        return None
    waits = np.bincount(ranks.matched.rank, uncovered_waits(ranks), minlength=len(ranks))
    cause_ns = np.stack([summary.cause_total_ns for summary in ranks.summaries]).astype(np.float64)
    cause_ns[:, _COMMUNICATION] = np.maximum(cause_ns[:, _COMMUNICATION] - waits, 0)
    steps = np.array([summary.step_count for summary in ranks.summaries])
    critical_steps = ranks.summaries[signals.worker].step_count
    others = np.arange(len(ranks)) != signals.worker
    attribution = signals.attribution
    return OtherRanks(
        (cause_ns * (critical_steps / steps)[:, np.newaxis])[others],
        attribution.window_ns,
        tuple(attribution.intervals[cause] for cause in CAUSES),
    )


def most_saved_ns(signals: Signals, claims: Intervals) -> int:
    """The most that a change can save of the used window, given the time that it claims.

    This is the length of the window if the other ranks are unknown.
    """
    others = other_ranks(signals)
    return signals.attribution.window_ns if others is None else others.most_saved_ns(claims)
