"""Who keeps the other ranks waiting in collectives, how long, and why.

Of a collective that all ranks of its group recorded, what a rank waited is its duration less the
shortest. What it would save if those who came late had come with the others is what the middle
rank waited, as far as nothing covered it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import COMPUTE, Cause
from tb_perfadvisor.signals.core.multi_device_collectives import LEFT_TOGETHER
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.matching import Matched
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.ranks import Ranks, ranks_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

LATE_SHARE = 0.25
"""A rank that waits less than this of what the middle one waits came late itself."""
STEPS_SHARE = 0.5
"""A rank that comes late in fewer of the steps does so by chance."""
FAIR_SHARES, MOST = 2.0, 2 / 3
"""A named rank makes twice its equal share of all lateness; of two or three, two thirds."""
MORE_WORK = 1.1
"""A rank with so many times the others' work has more of it. Batches of whole samples may differ
by one; sequences that are sorted by length by a few percent."""
_ONE_SIDED_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t that chance exceeds one time in twenty, for one to ten degrees of freedom; 1.812 is
used beyond, where it is 1.645 at the least."""
_NOT_OWN = (Cause.COMMUNICATION, Cause.QUEUED)
"""Causes by which nobody is late: they depend on the others, or on what was queued before."""


class Lateness(Struct, frozen=True):
    """Of the collectives in the used steps. Columns have shape (workers,) unless said otherwise."""

    collectives: int
    times_late: Int64
    """In how many each worker came late."""
    late_ns: Int64
    """How long the middle rank of each group waited for it, what compute covered left out."""
    waiting_ns: Int64
    """How long each waited itself, covered or not."""
    late: tuple[int, ...]
    """The workers that are late by more than chance, the worst first."""
    own_row: Int32
    """Rows of this worker's trace: its collectives to which a named worker came late; (n,)."""
    own_low_ns: Int64
    """What each would take less if nobody were late: of the rank that waited least among those
    in time; shape (n,)."""
    own_middle_ns: Int64
    """Of the middle rank; shape (n,)."""
    own_high_ns: Int64
    """Of the rank that waited most; shape (n,)."""
    own_waiting_ns: Int64
    """What this worker itself waited with nothing to cover it; shape (n,)."""


@memoized
def lateness(signals: Signals) -> Lateness | None:
    """Who is late; None where no collective was recorded by all ranks of its group."""
    ranks = ranks_of(signals)
    matched, count = ranks.matched, len(ranks)
    leaves_together = np.array([one[1] in LEFT_TOGETHER for one in matched.streams], dtype=bool)
    if len(matched) == 0 or not leaves_together[matched.stream].any():
        return None
    waits = uncovered_waits(ranks)
    middle, low, high = _waits_of(matched, waits)
    step = steps_of(ranks)
    counted = leaves_together[matched.stream] & (step >= 0)
    of_row = matched.collective
    is_late = matched.waiting_ns <= LATE_SHARE * middle[of_row]
    is_late &= (middle > 0)[of_row] & counted[of_row]
    late_rows = np.flatnonzero(is_late)
    step_of_row = step[of_row[late_rows]]
    steps = len(distinct(step[counted]))
    late_ns = np.bincount(
        matched.rank[late_rows],
        weights=middle[of_row[late_rows]],
        minlength=count,
    ).astype(np.int64)
    named = _named(late_ns, _steps_late(matched.rank[late_rows], step_of_row, count), steps)
    late = tuple(
        one
        for one in named
        if _is_steady(_lateness_by_step(one, matched, waits, middle, is_late, step))
        or _explains(_more_by_step(ranks, one, named), int(late_ns[one]) / steps)
    )
    is_named = np.zeros(len(matched), dtype=bool)
    is_named[of_row[late_rows[is_in(matched.rank[late_rows], late)]]] = True
    own = np.flatnonzero((matched.rank == signals.worker) & is_named[of_row])
    row = ranks.summaries[signals.worker].collectives.row[matched.position[own]]
    order = np.argsort(row, kind="stable")
    own = own[order]
    inside = counted[of_row]
    return Lateness(
        collectives=int(counted.sum()),
        times_late=np.bincount(matched.rank[late_rows], minlength=count),
        late_ns=late_ns,
        waiting_ns=np.bincount(
            matched.rank[inside], weights=_waits(ranks, covered=True)[inside], minlength=count
        ).astype(np.int64),
        late=late,
        own_row=row[order],
        own_low_ns=low[of_row[own]],
        own_middle_ns=middle[of_row[own]],
        own_high_ns=high[of_row[own]],
        own_waiting_ns=waits[own],
    )


def waiting_for(ranks: Ranks, most: int) -> list[tuple[int, Int64]]:
    """Who waits for whom in used steps.

    Args:
        ranks: All of them.
        most: How many of those that are waited for.

    Returns:
        Those that came last, the most waited for first, each with how long every worker waited
        for it; shape (workers,).
    """
    matched, count = ranks.matched, len(ranks)
    counted = (steps_of(ranks) >= 0)[matched.collective]
    last, waits = matched.last_rank[matched.collective], _waits(ranks, covered=True)
    waited = np.bincount(last[counted], weights=waits[counted], minlength=count)
    order = np.argsort(-waited, kind="stable")[:most]
    result = []
    for one in order[waited[order] > 0].tolist():
        rows = counted & (last == one)
        column = np.bincount(matched.rank[rows], weights=waits[rows], minlength=count).astype(
            np.int64
        )
        result.append((one, column))
    return result


def critical_of_steps(ranks: Ranks) -> tuple[Int64, Int64]:
    """Of every used step that all workers have: its number, and who waited least in it."""
    matched, count, common = ranks.matched, len(ranks), ranks.common_steps()
    if len(matched) == 0 or len(common) == 0:
        none = np.empty(0, dtype=np.int64)
        return none, none
    waited = np.zeros((len(common), count), dtype=np.int64)
    takes_part = np.zeros((len(common), count), dtype=bool)
    for worker, rows in ranks.rows_by_worker():
        summary = ranks.summaries[worker]
        at = summary.collectives.start_ns[matched.position[rows]]
        step = last_before(summary.step_start_ns, at)
        inside = (step >= 0) & (at < summary.step_end_ns[step])
        number = summary.step_number[step[inside]]
        row = np.searchsorted(common, number)
        is_common = common[np.minimum(row, len(common) - 1)] == number
        np.add.at(waited[:, worker], row[is_common], matched.waiting_ns[rows[inside]][is_common])
        takes_part[row[is_common], worker] = True
    # Who takes part in no collective of a step holds nobody up in it.
    waited[~takes_part] = np.iinfo(np.int64).max
    known = takes_part.any(axis=1)
    return common[known], waited[known].argmin(axis=1)


class Excess(Struct, frozen=True):
    """What a worker spends more than the others in each step, by cause; the largest first."""

    cause: Cause
    own_ns: float
    """Per step."""
    others_ns: float
    """Per step, of the median of those in time."""
    even_ns: float
    """Per step, what it would spend with an equal share of all ranks' work; of what is no work,
    or is as much as the others', `others_ns`."""
    work: float | None = None
    """How many times the work of those in time it has, where that makes it compute longer."""


def excess_by_cause(ranks: Ranks, worker: int, late: tuple[int, ...]) -> tuple[Excess, ...]:
    """Why a worker is late: where it spends more than the median of those in time.

    Programs that share the cores of one host take turns: which of them computes longer says
    nothing of its own work, unless the shapes say that it has more.

    Args:
        ranks: All of them.
        worker: Which to explain.
        late: Those that are late, which are no measure.
    """
    totals = np.stack([one.cause_total_ns for one in ranks.summaries]).astype(np.float64)
    steps: Float64 = np.array([one.step_count for one in ranks.summaries], dtype=np.float64)
    per_step = totals / steps[:, None]
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    if len(in_time) == 0:
        return ()
    median = np.median(per_step[in_time], axis=0)
    work, even_share = _work_of(ranks, worker, in_time)
    ignored: tuple[Cause, ...] = _NOT_OWN
    if work is None and _share_cores(ranks):
        ignored = (*_NOT_OWN, Cause.HOST_COMPUTE)
    found = []
    for cause, own, others in zip(CAUSES, per_step[worker].tolist(), median.tolist(), strict=True):
        if own <= others or cause in ignored:
            continue
        if work is not None and cause in (*COMPUTE, Cause.HOST_COMPUTE):
            found.append(Excess(cause, own, others, max(others, even_share * own), work))
        else:
            found.append(Excess(cause, own, others, others))
    return tuple(sorted(found, key=lambda one: one.others_ns - one.own_ns))


def _work_of(ranks: Ranks, worker: int, in_time: NDArray[np.intp]) -> tuple[float | None, float]:
    """How many times the others' work a worker has, and what an equal share of all is of its own.

    None where it has no more than they, or the shapes that tell were not recorded on every rank.
    """
    known = [one.matrix_flop for one in ranks.summaries if one.matrix_flop is not None]
    if len(known) < len(ranks):
        return None, 1.0
    flop = np.array(known)
    work = float(flop[worker] / np.median(flop[in_time]))
    return (work, float(flop.mean() / flop[worker])) if work >= MORE_WORK else (None, 1.0)


def _share_cores(ranks: Ranks) -> bool:
    hosts = {source.host for source in ranks.sources}
    return len(hosts) == 1 and all(one.device_kind is None for one in ranks.summaries)


def _more_by_step(ranks: Ranks, worker: int, late: tuple[int, ...]) -> Float64:
    """Of each step that all ranks have, what a worker spends more than the median of those in time.

    Only where ranks share the cores of one host, without what they compute: who computes longer
    there is a matter of turns, which makes anyone late now and again. Elsewhere that is no other
    measure than the waiting itself, and there is none.
    """
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    common = ranks.common_steps()
    if len(in_time) == 0 or len(common) == 0 or not _share_cores(ranks):
        return np.empty(0)
    own = [cause not in (*_NOT_OWN, Cause.HOST_COMPUTE) for cause in CAUSES]
    spent = np.stack(
        [one.cause_ns[own].sum(axis=0)[is_in(one.step_number, common)] for one in ranks.summaries]
    )
    return np.asarray(spent[worker] - np.median(spent[in_time], axis=0), dtype=np.float64)


def _explains(more_ns: Float64, late_ns: float) -> bool:
    """Whether what a worker spends more in the steps is steady, and enough to make it so late."""
    return len(more_ns) > 1 and bool(more_ns.mean() >= late_ns) and _is_steady(more_ns)


def uncovered_waits(ranks: Ranks) -> Int64:
    """Of every matched row, the waiting that no compute covers, no moment of a rank twice."""
    return _waits(ranks, covered=False)


def _waits(ranks: Ranks, *, covered: bool) -> Int64:
    """Of every matched row, how long its rank waited.

    A rank may wait in several collectives at once: all but the first count for what they add.

    Args:
        ranks: All of them.
        covered: Whether waiting beside compute counts.
    """
    matched = ranks.matched
    waits = np.zeros(len(matched.rank), dtype=np.int64)
    for worker, rows in ranks.rows_by_worker():
        table, position = ranks.summaries[worker].collectives, matched.position[rows]
        length = matched.waiting_ns[rows]
        if not covered:
            length = np.minimum(length, table.exposed_ns[position])
        start = table.start_ns[position]
        order = np.lexsort((start + length, start))
        begin, end = start[order], (start + length)[order]
        reached = np.maximum.accumulate(np.append(begin[:1], end[:-1]))
        waits[rows[order]] = np.maximum(end - np.maximum(begin, reached), 0)
    return waits


def steps_of(ranks: Ranks) -> Int64:
    """Of every collective, the used step of its last rank in which it began; -1 for none."""
    matched = ranks.matched
    step = np.full(len(matched), -1, dtype=np.int64)
    last = matched.last_rank
    for worker in distinct(last).tolist():
        own = np.flatnonzero(last == worker)
        summary = ranks.summaries[worker]
        at = summary.collectives.start_ns[matched.position[matched.first[own]]]
        inside = (at >= summary.window_start_ns) & (
            at < summary.window_start_ns + summary.window_ns
        )
        index = last_before(summary.step_start_ns, at)
        step[own] = np.where(inside, np.maximum(index, 0), -1)
    return step


def _steps_late(rank: Int32, step: Int64, count: int) -> Int64:
    """In how many steps each worker came late."""
    pairs = np.unique(np.stack([rank.astype(np.int64), step]), axis=1)
    return np.bincount(pairs[0], minlength=count)


def _lateness_by_step(
    worker: int,
    matched: Matched,
    waits: Int64,
    middle: Int64,
    is_late: NDArray[np.bool_],
    step: Int64,
) -> Float64:
    """Of each used step with its collectives, what others waited for a worker less its own waits.

    Ranks that come together only by and large wait for one another in turns, which cancels out.
    """
    own = np.flatnonzero((matched.rank == worker) & (step[matched.collective] >= 0))
    lost = np.where(is_late[own], middle[matched.collective[own]], 0) - waits[own]
    _, place = unique_inverse(step[matched.collective[own]])
    return np.bincount(place, weights=lost).astype(np.float64)


def _is_steady(by_step: Float64) -> bool:
    """Whether a worker's lateness stands out from its own spread over the steps.

    Student's one-sided test of the mean at 5 %. Of one step there is no spread to hold it against.
    """
    count = len(by_step)
    if count < 2:
        return True
    error: float = by_step.std(ddof=1) / count**0.5
    return bool(by_step.mean() > _ONE_SIDED_T[min(count - 1, len(_ONE_SIDED_T)) - 1] * error)


def _waits_of(matched: Matched, waits: Int64) -> tuple[Int64, Int64, Int64]:
    """Of every collective: what the middle rank waited, the least of those in time, the most."""
    order = np.lexsort((waits, matched.collective))
    ordered = waits[order]
    members = np.diff(np.append(matched.first, len(waits)))
    # Of two ranks the one that waits, of four the third: half of them wait as long or longer.
    middle = ordered[matched.first + members // 2]
    in_time = ordered > LATE_SHARE * middle[matched.collective]
    least = np.where(in_time, ordered, np.iinfo(np.int64).max)
    low = np.minimum.reduceat(least, matched.first)
    return middle, np.minimum(low, middle), ordered[matched.first + members - 1]


def _named(late_ns: Int64, steps_late: Int64, steps: int) -> tuple[int, ...]:
    """Workers late by more than chance, the worst first."""
    total = int(late_ns.sum())
    limit = total * min(FAIR_SHARES / len(late_ns), MOST)
    is_named = (late_ns >= limit) & (steps_late >= STEPS_SHARE * steps) & (late_ns > 0)
    worst = np.argsort(-late_ns, kind="stable")
    return tuple(int(one) for one in worst if is_named[one])
