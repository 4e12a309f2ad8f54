"""Stragglers: which ranks keep the others waiting in collectives, how long, and why.

In a collective that all ranks of its group recorded, a rank's wait is its duration minus the
shortest one. If late ranks arrived together with the others, a rank would save the wait of the
median rank, as far as no compute covers it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.multi_device_collectives import LEFT_TOGETHER
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.excess import extra_by_step
from tb_perfadvisor.signals.ranks.matching import Matched
from tb_perfadvisor.signals.ranks.ranks import Ranks, ranks_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.rank_summary import NO_STEP
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

LATE_SHARE = 0.25
"""A rank is late if it waits less than this share of the median rank's wait."""
STEPS_SHARE = 0.5
"""A rank that is late in a smaller share of the steps is late by chance."""
FAIR_SHARES, MOST = 2.0, 2 / 3
"""A straggler causes twice its equal share of all lateness; among two or three ranks, two
thirds."""
_ONE_SIDED_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t that chance exceeds in 5 % of cases, for 1 to 10 degrees of freedom. 1.812 is also
used for more; there, the exact value is at least 1.645."""


class Lateness(Struct, frozen=True):
    """Lateness in collectives of the used steps. Columns without a shape have shape (workers,)."""

    collectives: int
    """Number of collectives."""
    steps_share: float
    """Share of the used steps with collectives that the numbers below cover. At the edges, each
    rank recorded something else."""
    times_late: Int64
    """Number of collectives in which others wait and each worker arrives last."""
    late_ns: Int64
    """How long the median rank of each group waits for it without compute."""
    waiting_ns: Int64
    """How long each worker waits, covered by compute or not."""
    late: tuple[int, ...]
    """Stragglers: workers that are late by more than chance, the worst first."""
    own_row: Int32
    """Rows of this worker's trace: its collectives in which a straggler is late; shape (n,)."""
    own_low_ns: Int64
    """What each would save if nobody were late: the shortest wait of the ranks in time; shape
    (n,)."""
    own_middle_ns: Int64
    """The wait of the median rank; shape (n,)."""
    own_waiting_ns: Int64
    """This worker's own wait without compute; shape (n,)."""


@memoized
def lateness(signals: Signals) -> Lateness | None:
    """Which ranks are late; None if no collective was recorded by several ranks of its group."""
    ranks = ranks_of(signals)
    matched, count = ranks.matched, len(ranks)
    leaves_together = np.array(
        [stream[1] in LEFT_TOGETHER for stream in matched.streams], dtype=bool
    )
    if len(matched) == 0 or not leaves_together[matched.stream].any():
        return None
    waits, is_used = uncovered_waits(ranks), _used_rows(ranks)
    middle, low = _waits_of(matched, waits, is_used)
    step = steps_of(ranks)
    in_steps = leaves_together[matched.stream] & (step != NO_STEP)
    # Where most ranks do not use the step, how long they wait without compute is unknown.
    used = np.add.reduceat(is_used.astype(np.int64), matched.first)
    in_steps &= 2 * used >= _recording_ranks(matched)
    whole, recorded = _whole_steps(ranks, signals.worker, step, in_steps)
    in_steps &= is_in(step, whole) if len(whole) else True
    counted = in_steps & _shows_last(matched)
    of_row = matched.collective
    is_late = matched.waiting_ns <= LATE_SHARE * middle[of_row]
    is_late &= (middle > 0)[of_row] & counted[of_row]
    late_rows = np.flatnonzero(is_late)
    step_of_row = step[of_row[late_rows]]
    steps = len(distinct(step[in_steps]))
    caused_ns = middle[of_row[late_rows]]
    late_ns = np.bincount(matched.rank[late_rows], weights=caused_ns, minlength=count)
    late_ns = late_ns.astype(np.int64)
    candidates = _possible_stragglers(
        np.maximum(late_ns - _once_more_ns(ranks), 0),
        _steps_late(matched.rank[late_rows], step_of_row, count),
        steps,
    )
    by_step = _caused_by_step(matched.rank[late_rows], step_of_row, caused_ns, count)
    late = tuple(
        worker
        for worker in candidates
        if _is_steady(_lateness_by_step(worker, matched, waits, middle, is_late, step))
        or _is_no_chance(worker, by_step)
        or _explains(extra_by_step(ranks, worker, candidates), int(late_ns[worker]) / steps)
    )
    has_straggler = np.zeros(len(matched), dtype=bool)
    has_straggler[of_row[late_rows[is_in(matched.rank[late_rows], late)]]] = True
    matched_row = np.flatnonzero((matched.rank == signals.worker) & has_straggler[of_row])
    row = ranks.summaries[signals.worker].collectives.row[matched.position[matched_row]]
    order = np.argsort(row, kind="stable")
    matched_row = matched_row[order]
    inside = counted[of_row]
    return Lateness(
        collectives=int(counted.sum()),
        steps_share=len(whole) / recorded if len(whole) else 1.0,
        times_late=np.bincount(
            matched.last_rank[counted & (_longest_waits(matched) > 0)], minlength=count
        ),
        late_ns=late_ns,
        waiting_ns=np.bincount(
            matched.rank[inside], weights=_waits(ranks, covered=True)[inside], minlength=count
        ).astype(np.int64),
        late=late,
        own_row=row[order],
        own_low_ns=low[of_row[matched_row]],
        own_middle_ns=middle[of_row[matched_row]],
        own_waiting_ns=waits[matched_row],
    )


def waiting_for(ranks: Ranks, most: int) -> list[tuple[int, Int64]]:
    """Which workers wait for which, in used steps.

    Args:
        ranks: All ranks.
        most: The largest number of workers to return.

    Returns:
        Workers that arrive last, those that cause most waiting first. Each comes with the time that
        every worker waits for it; shape (workers,).
    """
    matched, count = ranks.matched, len(ranks)
    counted = (steps_of(ranks) != NO_STEP)[matched.collective]
    last, waits = matched.last_rank[matched.collective], _waits(ranks, covered=True)
    waited = np.bincount(last[counted], weights=waits[counted], minlength=count)
    order = np.argsort(-waited, kind="stable")[:most]
    result = []
    for worker in order[waited[order] > 0].tolist():
        rows = counted & (last == worker)
        column = np.bincount(matched.rank[rows], weights=waits[rows], minlength=count).astype(
            np.int64
        )
        result.append((worker, column))
    return result


class StepWaits(Struct, frozen=True):
    """How long each worker waits in each of the used steps that all workers have."""

    number: Int64
    """Of each step; shape (steps,)."""
    waiting_ns: Int64
    """-1 for a worker without collectives in a step; shape (steps, workers)."""

    @property
    def critical(self) -> Int64:
        """The worker that waits least in each step; shape (steps,).

        A worker without collectives in a step keeps nobody waiting in it.
        """
        most = np.iinfo(np.int64).max
        waits: Int64 = np.where(self.waiting_ns < 0, most, self.waiting_ns)
        critical: Int64 = waits.argmin(axis=1)
        return critical


def waits_by_step(ranks: Ranks) -> StepWaits:
    """How long each worker waits in each common step with collectives, overlapped or not."""
    matched, count, common = ranks.matched, len(ranks), ranks.common_steps()
    if len(matched) == 0 or len(common) == 0:
        return StepWaits(np.empty(0, dtype=np.int64), np.empty((0, count), dtype=np.int64))
    waited = np.zeros((len(common), count), dtype=np.int64)
    takes_part = np.zeros((len(common), count), dtype=bool)
    for worker, rows in ranks.rows_by_worker():
        summary = ranks.summaries[worker]
        launched = summary.collectives.step[matched.position[rows]]
        inside = launched != NO_STEP
        number = launched[inside] + ranks.step_shift[worker]
        row = np.searchsorted(common, number)
        is_common = common[np.minimum(row, len(common) - 1)] == number
        np.add.at(waited[:, worker], row[is_common], matched.waiting_ns[rows[inside]][is_common])
        takes_part[row[is_common], worker] = True
    waited[~takes_part] = -1
    known = takes_part.any(axis=1)
    return StepWaits(common[known], waited[known])


def _explains(extra_ns: Float64, late_ns: float) -> bool:
    """Whether a worker's extra time is steady and large enough to explain its lateness."""
    return len(extra_ns) > 1 and bool(extra_ns.mean() >= late_ns) and _is_steady(extra_ns)


def uncovered_waits(ranks: Ranks) -> Int64:
    """Waiting of each matched row that no compute covers, without counting a moment twice."""
    return _waits(ranks, covered=False)


def _waits(ranks: Ranks, *, covered: bool) -> Int64:
    """How long the rank of each matched row waits.

    A rank may wait in several collectives at once: each moment counts for the first one.

    Args:
        ranks: All ranks.
        covered: Whether to count waiting that compute covers.
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
    """Number of the step that launched each collective on the rank that arrives last.

    `NO_STEP` for none that it uses. Numbers are those of most workers.
    """
    matched = ranks.matched
    number = np.full(len(matched), NO_STEP)
    last = matched.last_rank
    for worker in distinct(last).tolist():
        of_worker = np.flatnonzero(last == worker)
        place = matched.position[matched.first[of_worker]]
        launched = ranks.summaries[worker].collectives.step[place]
        known = launched != NO_STEP
        number[of_worker[known]] = launched[known] + ranks.step_shift[worker]
    return number


def _used_rows(ranks: Ranks) -> NDArray[np.bool_]:
    """Which matched rows are of a step that their own rank uses; shape (rows,)."""
    is_used = np.zeros(len(ranks.matched.rank), dtype=bool)
    for worker, rows in ranks.rows_by_worker():
        launched = ranks.summaries[worker].collectives.step
        is_used[rows] = launched[ranks.matched.position[rows]] != NO_STEP
    return is_used


def _recording_ranks(matched: Matched) -> Int64:
    """How many ranks recorded any of the stream of each collective; shape (collectives,)."""
    stream = matched.stream[matched.collective].astype(np.int64)
    ranks = int(matched.rank.max()) + 1
    takes_part = distinct(stream * ranks + matched.rank)
    return np.bincount(takes_part // ranks, minlength=len(matched.streams))[matched.stream]


def _whole_steps(
    ranks: Ranks, worker: int, step: Int64, is_known: NDArray[np.bool_]
) -> tuple[Int64, int]:
    """Steps of a worker in which most of its collectives are known, and how many it has.

    Args:
        ranks: All ranks.
        worker: The worker.
        step: Number of each matched collective's step.
        is_known: Which matched collectives count.
    """
    table, matched = ranks.summaries[worker].collectives, ranks.matched
    together = np.array([stream[1] in LEFT_TOGETHER for stream in table.streams], dtype=bool)
    own = table.step[together[table.stream] & (table.step != NO_STEP)] + ranks.step_shift[worker]
    rows = matched.collective[matched.rank == worker]
    known = step[rows[is_known[rows]]]
    numbers, count = np.unique(own, return_counts=True)
    found = np.array([(known == number).sum() for number in numbers.tolist()], dtype=np.int64)
    return numbers[2 * found >= count], len(numbers)


def _shows_last(matched: Matched) -> NDArray[np.bool_]:
    """Whether no rank can have arrived after the last one that was recorded; shape (collectives,).

    If ranks are missing, one of them may be later still. Then even the last of those recorded
    waits, and its collective takes longer than the shortest ones of the same operation and size.
    """
    if matched.is_whole.all():
        return matched.is_whole
    first, kind = group_rows(matched.stream, matched.size_bytes)
    least = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(least, kind, matched.transfer_ns)
    return matched.is_whole | (matched.transfer_ns <= 2 * least[kind] + _ALIKE_NS)


_ALIKE_NS = 50_000
"""Latency of a collective within a node: below it, durations differ by chance."""


def _steps_late(rank: Int32, step: Int64, count: int) -> Int64:
    """Number of steps in which each worker is late."""
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
    """Time that others wait for a worker minus its own waits, by used step with collectives.

    Ranks that are only roughly in step wait for each other in turns, which cancels out.
    """
    of_worker = np.flatnonzero((matched.rank == worker) & (step[matched.collective] != NO_STEP))
    lost = np.where(is_late[of_worker], middle[matched.collective[of_worker]], 0) - waits[of_worker]
    _, place = unique_inverse(step[matched.collective[of_worker]])
    return np.bincount(place, weights=lost).astype(np.float64)


def _is_steady(by_step: Float64) -> bool:
    """Whether a worker's lateness is significant compared with its spread over the steps.

    One-sided Student's t-test of the mean at 5 %. A single step has no spread and counts as steady.
    """
    count = len(by_step)
    if count < 2:
        return True
    error: float = by_step.std(ddof=1) / count**0.5
    return bool(by_step.mean() > _ONE_SIDED_T[min(count - 1, len(_ONE_SIDED_T)) - 1] * error)


def _caused_by_step(rank: Int32, step: Int64, caused_ns: Int64, count: int) -> Float64:
    """How long others wait for each worker in each step; shape (steps, workers)."""
    _, place = unique_inverse(step)
    steps = int(place.max()) + 1 if len(place) else 0
    cell = place.reshape(-1) * count + rank
    total = np.bincount(cell, weights=caused_ns, minlength=steps * count)
    return np.asarray(total.reshape(steps, count), dtype=np.float64)


def _is_no_chance(worker: int, by_step: Float64) -> bool:
    """Whether a worker causes more waiting than any would if chance drew anew in each step.

    A permutation test at 5 %: the waits of each step are dealt out to the workers at random. A rank
    that causes nearly all waiting in three of four steps is late by more than chance, even if
    another one is late in the fourth, which looks like a large variation to a t-test.
    """
    steps, count = by_step.shape
    if steps > _MOST_DEALT or count < _FEWEST_DEALT:
        return False
    generator = np.random.default_rng(0)
    dealt = [generator.permuted(by_step, axis=1).sum(axis=0).max() for _ in range(_DEALS)]
    return bool((np.array(dealt) >= by_step[:, worker].sum()).mean() <= _CHANCE)


_DEALS, _CHANCE = 400, 0.05
_MOST_DEALT, _FEWEST_DEALT = 16, 3
"""With more steps, the t-test decides as well. Of two ranks, one is always late."""


def _waits_of(matched: Matched, waits: Int64, is_used: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Waits in each collective: of the median rank, and the shortest of those in time.

    Only of the ranks that use its step, unless none does.
    """
    order = np.lexsort((waits, ~is_used, matched.collective))
    ordered = waits[order]
    members = np.diff(np.append(matched.first, len(waits)))
    used = np.add.reduceat(is_used.astype(np.int64), matched.first)
    members = np.where(used > 0, used, members)
    # Of two ranks the one that waits, of four the third: half of the ranks wait at least that long.
    middle = ordered[matched.first + members // 2]
    in_time = ordered > LATE_SHARE * middle[matched.collective]
    least = np.where(in_time, ordered, np.iinfo(np.int64).max)
    low = np.minimum.reduceat(least, matched.first)
    return middle, np.minimum(low, middle)


def _longest_waits(matched: Matched) -> Int64:
    """The longest wait in each collective, covered by compute or not; shape (collectives,)."""
    return np.maximum.reduceat(matched.waiting_ns, matched.first)


def _once_more_ns(ranks: Ranks) -> Int64:
    """How much longer each worker takes than the median for what happens once; shape (workers,).

    A rank that loads code later than the others is late only in this recording.
    """
    once = np.array([summary.once_ns for summary in ranks.summaries], dtype=np.int64)
    more_ns: Int64 = np.maximum(once - np.sort(once)[(len(once) - 1) // 2], 0)
    return more_ns


def _possible_stragglers(late_ns: Int64, steps_late: Int64, steps: int) -> tuple[int, ...]:
    """Workers that are late by more than chance, the worst first."""
    total = int(late_ns.sum())
    limit = total * min(FAIR_SHARES / len(late_ns), MOST)
    is_candidate = (late_ns >= limit) & (steps_late >= STEPS_SHARE * steps) & (late_ns > 0)
    worst = np.argsort(-late_ns, kind="stable")
    return tuple(int(worker) for worker in worst if is_candidate[worker])
