"""What the other ranks leave to be saved: a step is as fast as its slowest rank.

Savings are of the critical rank, which the others wait for in collectives. A change saves what it
takes off that rank, but no more than until the next one comes last. The same change is made on
all of them: of each cause it takes the same share of a rank's time as of the critical one's.
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
    """What the steps of the others are made of, without their waiting for one another."""

    cause_ns: Float64
    """Shape (others, causes), in as many steps as the critical rank has."""


@memoized
def other_ranks(signals: Signals) -> OtherRanks | None:
    """The others; None for a rank alone, or where not every collective is known of all ranks.

    None on the CPU as well: ranks that share the cores of a host take turns, and compute for longer
    where they would otherwise wait.
    """
    ranks = ranks_of(signals)
    if signals.device.is_host_only:
        return None
    known = [len(one.collectives) for one in ranks.summaries]
    matched = np.bincount(ranks.matched.rank, minlength=len(ranks))
    left_out = any(one.collectives.left_out for one in ranks.summaries)
    if len(ranks) < 2 or not len(ranks.matched) or left_out or (matched != known).any():
        return None
    waits = np.bincount(ranks.matched.rank, uncovered_waits(ranks), minlength=len(ranks))
    cause_ns = np.stack([one.cause_total_ns for one in ranks.summaries]).astype(np.float64)
    cause_ns[:, _COMMUNICATION] = np.maximum(cause_ns[:, _COMMUNICATION] - waits, 0)
    steps = np.array([one.step_count for one in ranks.summaries])
    own = ranks.summaries[signals.worker].step_count
    others = np.arange(len(ranks)) != signals.worker
    return OtherRanks((cause_ns * (own / steps)[:, np.newaxis])[others])


def most_saved_ns(signals: Signals, claims: Intervals) -> int:
    """What a change that claims some time of the used window may save of it at the most.

    That is the window's length, unless the other ranks are known.
    """
    attribution, others = signals.attribution, other_ranks(signals)
    if others is None:
        return attribution.window_ns
    left = np.array(
        [
            1 - total_ns(intersect(claims, attribution.intervals[cause])) / max(1, total)
            for cause, total in ((one, attribution.total_ns(one)) for one in CAUSES)
        ]
    )
    return max(attribution.window_ns - round(float((others.cause_ns @ left).max())), 0)
