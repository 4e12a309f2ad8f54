"""All-to-alls to which ranks send unequal amounts, and the waits for the rank that sends most.

A layer of experts sends each token to the rank of its expert, and the result back. What a rank
sends in the second all-to-all is what it had to compute.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import Ranks, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import Lateness, steps_of, uncovered_waits
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import Intervals, last_before, union
from tb_perfadvisor.trace.rank_summary import NO_STEP
from tb_perfadvisor.trace.tables import Int32, Int64

UNEVEN = 1.25
"""Largest amount over the mean. The loss of routers keeps experts about as even as that, and
capacity
factors of 1.25 are common (Fedus et al., "Switch Transformers", section 2.2)."""


class ExpertLoad(Struct, frozen=True):
    """The uneven all-to-alls of the used steps whose last rank had more than its share."""

    collectives: int
    """Number of uneven all-to-alls."""
    all_to_alls: int
    """Number of all-to-alls with known sizes, even or not."""
    imbalance: float
    """Largest amount over the mean of a group; the median over the uneven all-to-alls."""
    sent_bytes: Int64
    """What each worker sends in the uneven all-to-alls; shape (workers,)."""
    times_last: Int64
    """How often each worker arrives last; shape (workers,)."""
    waiting_ns: Int64
    """How long each worker waits in them without compute; shape (workers,)."""
    mean_wait_ns: int
    """Sum of the mean waits of each group: what equal loads would save."""
    own_row: Int32
    """Rows of this worker's trace; shape (n,)."""
    own_wait_ns: Int64
    """How long this worker waits in each; 0 where it arrives last; shape (n,)."""
    own_compute: Intervals
    """Where this worker arrives last: from the end of the previous collective to its start."""


@memoized
def expert_load(signals: Signals) -> ExpertLoad | None:
    """How unevenly experts are loaded; None if the loads are even or unknown."""
    ranks = ranks_of(signals)
    matched, count = ranks.matched, len(ranks)
    is_exchange = np.array([stream[1] == "all-to-all" for stream in matched.streams], dtype=bool)
    if len(matched) == 0 or not is_exchange[matched.stream].any():
        return None
    sent = _sent(ranks)
    members = np.diff(np.append(matched.first, len(sent)))
    most = np.maximum.reduceat(sent, matched.first)
    mean = np.add.reduceat(sent, matched.first) / members
    is_known = np.minimum.reduceat(sent, matched.first) >= 0
    counted = (
        is_known & is_exchange[matched.stream] & (steps_of(ranks) != NO_STEP) & matched.is_whole
    )
    counted[_for_something_else(signals)] = False
    # Uneven, and the last rank to arrive has more than its share.
    uneven = counted & (most >= UNEVEN * mean) & (sent[matched.first] >= UNEVEN * mean)
    if not uneven.any():
        return None
    waits = uncovered_waits(ranks)
    rows = np.flatnonzero(uneven[matched.collective])
    rank = matched.rank[rows]
    of_worker = rows[rank == signals.worker]
    mean_waits = np.add.reduceat(waits, matched.first) / members
    own_row = ranks.summaries[signals.worker].collectives.row[matched.position[of_worker]]
    is_last = is_in(of_worker, matched.first)

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
        own_wait_ns=np.where(is_last, 0, waits[of_worker]),
        own_compute=_before(signals, own_row[is_last]),
    )


def saved_by_equal_loads_ns(signals: Signals, delays: Lateness) -> int | None:
    """What equal loads would save; None if the late ranks are not late for their experts' tokens.

    Tokens have to be processed somewhere: equal loads make the other ranks slower.
    """
    load, late = expert_load(signals), list(delays.late)
    if load is None or 2 * load.times_last[late].sum() < delays.times_late[late].sum():
        return None
    return load.mean_wait_ns


def _for_something_else(signals: Signals) -> Int32:
    """Matched collectives of this worker that are not for experts, such as embedding tables."""
    ranks = ranks_of(signals)
    matched, roles = ranks.matched, collective_roles(signals)
    rows = np.flatnonzero(matched.rank == signals.worker)
    row = ranks.summaries[signals.worker].collectives.row[matched.position[rows]]
    slot = np.searchsorted(signals.trace.collectives.row, row)
    others: Int32 = matched.collective[rows][~roles.is_for(Role.EXPERTS, Role.UNKNOWN)[slot]]
    return others


def _sent(ranks: Ranks) -> Int64:
    """The bytes that the rank of each matched row sends; -1 if unknown."""
    sent = np.full(len(ranks.matched.rank), -1, dtype=np.int64)
    for worker, rows in ranks.rows_by_worker():
        table = ranks.summaries[worker].collectives
        sent[rows] = table.sent_bytes[ranks.matched.position[rows]]
    return sent


def _before(signals: Signals, rows: Int32) -> Intervals:
    """From the end of the collective before each row to the start of the row."""
    events, table = signals.trace.events, signals.trace.collectives
    ends = np.sort(events.end_ns[table.row])
    start = events.start_ns[rows]
    before = last_before(ends, start)
    begin = np.where(before >= 0, ends[np.maximum(before, 0)], signals.attribution.window_start_ns)
    return union(begin, start)
