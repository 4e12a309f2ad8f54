"""All-to-alls into which ranks put unlike amounts, and who waits for the one with the most.

A layer of experts sends every token to the rank of its expert and, when that has been computed,
back again. What a rank puts into the second all-to-all is what it had to compute.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.ranks import Ranks, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import steps_of, uncovered_waits
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import Intervals, last_before, union
from tb_perfadvisor.trace.tables import Int32, Int64

UNEVEN = 1.25
"""The most over the mean. Routers train with a loss that keeps experts about as even as that, and
capacity factors of 1.25 are common (Fedus et al., "Switch Transformers", section 2.2)."""


class ExpertLoad(Struct, frozen=True):
    """The uneven all-to-alls of the used steps whose last rank had more than its share."""

    collectives: int
    all_to_alls: int
    """All whose sizes are known, even or not."""
    imbalance: float
    """The most over the mean of a group, the median over the uneven ones."""
    sent_bytes: Int64
    """Of each worker, into the uneven ones; shape (workers,)."""
    times_last: Int64
    """Shape (workers,)."""
    waiting_ns: Int64
    """Of each worker in them, with nothing to cover it; shape (workers,)."""
    mean_wait_ns: int
    """The mean over each group's ranks, summed: what equal loads would save."""
    own_row: Int32
    """Rows of this worker's trace; shape (n,)."""
    own_wait_ns: Int64
    """What it waited in each; 0 where it came last; shape (n,)."""
    own_compute: Intervals
    """From the end of the collective before to each to which this worker came last."""


@memoized
def expert_load(signals: Signals) -> ExpertLoad | None:
    """How unevenly experts are loaded; None where nothing shows it."""
    ranks = ranks_of(signals)
    matched, count = ranks.matched, len(ranks)
    is_exchange = np.array([one[1] == "all-to-all" for one in matched.streams], dtype=bool)
    if len(matched) == 0 or not is_exchange[matched.stream].any():
        return None
    sent = _sent(ranks)
    members = np.diff(np.append(matched.first, len(sent)))
    most = np.maximum.reduceat(sent, matched.first)
    mean = np.add.reduceat(sent, matched.first) / members
    is_known = np.minimum.reduceat(sent, matched.first) >= 0
    counted = is_known & is_exchange[matched.stream] & (steps_of(ranks) >= 0)
    # Uneven, and the last to come is one of those with more than their share.
    uneven = counted & (most >= UNEVEN * mean) & (sent[matched.first] >= UNEVEN * mean)
    if not uneven.any():
        return None
    waits = uncovered_waits(ranks)
    rows = np.flatnonzero(uneven[matched.collective])
    rank = matched.rank[rows]
    own = rows[rank == signals.worker]
    mean_waits = np.add.reduceat(waits, matched.first) / members
    own_row = ranks.summaries[signals.worker].collectives.row[matched.position[own]]
    is_last = is_in(own, matched.first)

    def per_worker(values: Int64) -> Int64:
        return np.bincount(rank, weights=values, minlength=count).astype(np.int64)

    return ExpertLoad(
        collectives=int(uneven.sum()),
        all_to_alls=int(counted.sum()),
        imbalance=float(np.median(most[uneven] / mean[uneven])),
        sent_bytes=per_worker(sent[rows]),
        times_last=np.bincount(matched.last_rank[uneven], minlength=count),
        waiting_ns=per_worker(waits[rows]),
        mean_wait_ns=int(mean_waits[uneven].sum()),
        own_row=own_row,
        own_wait_ns=np.where(is_last, 0, waits[own]),
        own_compute=_before(signals, own_row[is_last]),
    )


def _sent(ranks: Ranks) -> Int64:
    """Of every matched row what its rank put in; -1 when unknown."""
    sent = np.full(len(ranks.matched.rank), -1, dtype=np.int64)
    for worker, rows in ranks.rows_by_worker():
        table = ranks.summaries[worker].collectives
        sent[rows] = table.sent_bytes[ranks.matched.position[rows]]
    return sent


def _before(signals: Signals, rows: Int32) -> Intervals:
    """From the end of the collective before each to its start."""
    events, table = signals.trace.events, signals.trace.collectives
    ends = np.sort(events.end_ns[table.row])
    start = events.start_ns[rows]
    before = last_before(ends, start)
    begin = np.where(before >= 0, ends[np.maximum(before, 0)], signals.attribution.window_start_ns)
    return union(begin, start)
