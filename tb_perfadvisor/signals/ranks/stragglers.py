"""Ranks that the others wait for in collectives: which, how long, and why.

In a collective that all ranks of its group recorded, a rank's wait is its duration minus the
shortest one. If late ranks arrived together with the others, a rank would save the wait of the
median rank, as far as no compute covers it.

A layer of experts sends each token to the rank of its expert, and the result back. What a rank
sends in the second all-to-all is what it had to compute.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.core.collectives import LEFT_TOGETHER
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.matching import Matched
from tb_perfadvisor.signals.ranks.ranks import CAUSES, Ranks, ranks_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, last_before, union
from tb_perfadvisor.trace.rank_summary import NO_STEP
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

MORE_WORK = 1.1
"""A rank with this many times the others' work has more work. Batches of whole samples may differ
by one sample, and sequences sorted by length by a few percent."""
_NOT_OWN = (Cause.COMMUNICATION, Cause.QUEUED)
"""Causes that make no rank late: they depend on other ranks, or on work queued earlier."""


class Excess(Struct, frozen=True):
    """Time of one cause that a worker spends per step, and what the others spend."""

    cause: Cause
    own_ns: float
    """Per step."""
    others_ns: float
    """Per step; the median of the workers in time."""
    even_ns: float
    """Per step, with an equal share of all ranks' work; `others_ns` if the worker does not have
    more work, and for causes that are not work."""
    work: float | None = None
    """Its work as a multiple of the others', if that makes it compute longer."""
    same_operators: bool = False
    """Whether it spends the time on as many operators as the others: each takes longer."""


def excess_by_cause(ranks: Ranks, worker: int, late: tuple[int, ...]) -> tuple[Excess, ...]:
    """Causes on which a late worker spends more than the median of those in time, largest first.

    Programs that share the cores of one host take turns. A longer compute time then says nothing
    about a program's own work, unless its shapes show that it has more.

    Late workers are no part of the median.
    """
    totals = np.stack([summary.cause_total_ns for summary in ranks.summaries]).astype(np.float64)
    steps: Float64 = np.array([summary.step_count for summary in ranks.summaries], dtype=np.float64)
    per_step = totals / steps[:, None]
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    if len(in_time) == 0:
        return ()
    median = np.median(per_step[in_time], axis=0)
    work, even_share = _work_of(ranks, worker, in_time)
    ignored: tuple[Cause, ...] = _NOT_OWN
    if work is None and share_cores(ranks):
        ignored = (*_NOT_OWN, Cause.HOST_COMPUTE)
    excesses = []
    for cause, own_ns, others_ns in zip(
        CAUSES, per_step[worker].tolist(), median.tolist(), strict=True
    ):
        if own_ns <= others_ns or cause in ignored:
            continue
        if work is not None and cause in (*COMPUTE, Cause.HOST_COMPUTE):
            excesses.append(
                Excess(cause, own_ns, others_ns, max(others_ns, even_share * own_ns), work)
            )
        else:
            same = cause in _OF_OPERATORS and _runs_as_many_operators(ranks, worker, in_time)
            excesses.append(Excess(cause, own_ns, others_ns, others_ns, same_operators=same))
    return tuple(sorted(excesses, key=lambda excess: excess.others_ns - excess.own_ns))


_OF_OPERATORS = (Cause.FRAMEWORK, Cause.LAUNCHING)
_AS_MANY = 0.02
"""Ranks of one program differ by a few operators, such as those of logging."""


def _runs_as_many_operators(ranks: Ranks, worker: int, in_time: NDArray[np.int64]) -> bool:
    """Whether a worker runs as many operators per step as the median of those in time."""
    count = np.array([s.host_operators / s.step_count for s in ranks.summaries])
    usual = float(np.median(count[in_time]))
    return usual > 0 and abs(float(count[worker]) - usual) <= _AS_MANY * usual


def preempted_more_ns(ranks: Ranks, worker: int, late: tuple[int, ...]) -> float:
    """Idle time per step while a late worker's calls lost their core, above the median in time.

    Late workers are no part of the median.
    """
    per_step = np.array([s.preempted_ns / s.step_count for s in ranks.summaries])
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    usual_ns = float(np.median(per_step[in_time])) if len(in_time) else 0.0
    return max(float(per_step[worker]) - usual_ns, 0.0)


def _work_of(ranks: Ranks, worker: int, in_time: NDArray[np.intp]) -> tuple[float | None, float]:
    """A worker's work as a multiple of the others', and an equal share as a fraction of its own.

    None if it does not have more work, or if a rank recorded no shapes.
    """
    known = [summary.matrix_flop for summary in ranks.summaries if summary.matrix_flop is not None]
    if len(known) < len(ranks):
        return None, 1.0
    flop = np.array(known)
    work = float(flop[worker] / np.median(flop[in_time]))
    return (work, float(flop.mean() / flop[worker])) if work >= MORE_WORK else (None, 1.0)


def share_cores(ranks: Ranks) -> bool:
    """Whether all ranks compute on the cores of one host."""
    hosts = {source.host for source in ranks.sources}
    return len(hosts) == 1 and all(summary.device_kind is None for summary in ranks.summaries)


def extra_by_step(ranks: Ranks, worker: int, late: tuple[int, ...]) -> Float64:
    """Time that a worker spends above the median of those in time, in each common step.

    Compute does not count for ranks that share the cores of one host: which of them computes longer
    changes from step to step.
    """
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    common = ranks.common_steps()
    if len(in_time) == 0 or len(common) == 0:
        return np.empty(0)
    ignored = (*_NOT_OWN, Cause.HOST_COMPUTE) if share_cores(ranks) else _NOT_OWN
    is_counted = [cause not in ignored for cause in CAUSES]
    spent = np.stack(
        [
            summary.cause_ns[is_counted].sum(axis=0)[is_in(ranks.steps_of_worker(at), common)]
            for at, summary in enumerate(ranks.summaries)
        ]
    )
    return np.asarray(spent[worker] - np.median(spent[in_time], axis=0), dtype=np.float64)


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

    At most `most` workers that arrive last, those that cause most waiting first. Each comes with
    the time that every worker waits for it; shape (workers,).
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

    Waiting that compute covers counts only if `covered`.
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

    `step` is the number of each matched collective's step, and `is_known` tells which of them
    count.
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
    first, _ = group_rows(rank, step)
    return np.bincount(rank[first], minlength=count)


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
