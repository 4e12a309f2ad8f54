"""All ranks of a run together, and the reference rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.collectives import (
    LEFT_TOGETHER,
    Collectives,
    collective_rows_of,
    describe_collectives,
    shortest_over_devices,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.matching import Clocks, Matched, align_clocks, match_collectives
from tb_perfadvisor.signals.ranks.rank_summary import collectives_kept, summarize
from tb_perfadvisor.signals.signals import Options, Signals
from tb_perfadvisor.trace import Run, Source
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.rank_summary import NO_STEP, RankSummary
from tb_perfadvisor.trace.tables import Int32, Int64


class Ranks(Struct, frozen=True):
    """The ranks of a run, in its order."""

    sources: tuple[Source, ...]
    summaries: tuple[RankSummary, ...]
    matched: Matched
    clocks: Clocks
    waiting_ns: Int64
    """How long each worker waits for others in matched collectives; -1 if it has none; shape
    (workers,)."""
    step_shift: Int64
    """What to add to each worker's step numbers to get the number that most workers give the same
    step; shape (workers,)."""

    def __len__(self) -> int:
        """Number of workers."""
        return len(self.summaries)

    def common_steps(self) -> Int64:
        """Numbers of the used steps that all workers have, ascending; shape (steps,)."""
        return reduce(np.intersect1d, map(self.steps_of_worker, range(len(self))))

    def steps_of_worker(self, worker: int) -> Int64:
        """Numbers of a worker's used steps, as most workers count; shape (steps,)."""
        return np.asarray(self.summaries[worker].step_number + self.step_shift[worker])

    def transfers_of(self, worker: int) -> dict[int, int]:
        """Transfer times of a worker's collectives that all ranks recorded, by row of its trace."""
        matched = self.matched
        of_worker = np.flatnonzero((matched.rank == worker) & matched.is_whole[matched.collective])
        rows = self.summaries[worker].collectives.row[matched.position[of_worker]]
        transfer = matched.transfer_ns[matched.collective[of_worker]]
        return dict(zip(rows.tolist(), transfer.tolist(), strict=True))

    def rows_by_worker(self) -> Iterator[tuple[int, Int64]]:
        """Each worker with matched collectives, and its rows of `matched`."""
        rank = self.matched.rank
        order = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[order], np.arange(len(self) + 1)).tolist()
        for worker, (low, high) in enumerate(pairwise(bounds)):
            if high > low:
                yield worker, order[low:high]

    @property
    def critical(self) -> int:
        """The reference worker, which savings refer to.

        It waits least for others in collectives; on a tie, it is the lowest rank. Without matched
        collectives, it is the worker with the slowest mean step.
        """
        if (self.waiting_ns >= 0).all():
            return int(self.waiting_ns.argmin())
        return max(
            range(len(self)),
            key=lambda worker: self.summaries[worker].window_ns / self.summaries[worker].step_count,
        )


def reduce_ranks(sources: Sequence[Source], summaries: Sequence[RankSummary]) -> Ranks:
    """Combine the workers of a run.

    Sources and summaries are in the run's order.
    """
    matched = match_collectives(sources, summaries)
    count = len(summaries)
    waiting = np.bincount(matched.rank, weights=matched.waiting_ns, minlength=count)
    takes_part = np.bincount(matched.rank, minlength=count) > 0
    return Ranks(
        sources=tuple(sources),
        summaries=tuple(summaries),
        matched=matched,
        clocks=align_clocks(sources, *_ends(matched, summaries)),
        waiting_ns=np.where(takes_part, waiting.astype(np.int64), -1),
        step_shift=_step_shifts(matched, summaries),
    )


def _step_shifts(matched: Matched, summaries: Sequence[RankSummary]) -> Int64:
    """What makes the step numbers of the workers agree.

    Profilers that were started one by one count steps from different moments. A collective that
    step 3 launches on most ranks and step 13 on another shows the difference.
    """
    count = len(summaries)
    shift = np.zeros(count, dtype=np.int64)
    number = np.full(len(matched.rank), NO_STEP)
    order = np.argsort(matched.rank, kind="stable")
    bounds = np.searchsorted(matched.rank[order], np.arange(count + 1)).tolist()
    for summary, low, high in zip(summaries, bounds[:-1], bounds[1:], strict=True):
        rows = order[low:high]
        number[rows] = summary.collectives.step[matched.position[rows]]
    rows = np.flatnonzero(number != NO_STEP)
    rows = rows[np.lexsort((number[rows], matched.collective[rows]))]
    if len(rows) == 0:
        return shift
    collective, rank = matched.collective[rows], matched.rank[rows]
    first = np.flatnonzero(np.diff(collective, prepend=-1))
    members = np.diff(np.append(first, len(rows)))
    usual = number[rows][first + (members - 1) // 2]
    apart = np.repeat(usual, members) - number[rows]
    for worker in distinct(rank[apart != 0]).tolist():
        of_worker = np.sort(apart[rank == worker])
        shift[worker] = of_worker[len(of_worker) // 2]
    return shift


def _ends(matched: Matched, summaries: Sequence[RankSummary]) -> tuple[Int32, Int32, Int64]:
    """Ends of collectives that ranks leave together: worker, collective, time on its clock."""
    leaves_together = np.array(
        [stream[1] in LEFT_TOGETHER for stream in matched.streams], dtype=bool
    )
    rows = np.flatnonzero(leaves_together[matched.stream[matched.collective]])
    rank, position = matched.rank[rows], matched.position[rows]
    end = np.zeros(len(rows), dtype=np.int64)
    order = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[order], np.arange(len(summaries) + 1)).tolist()
    for summary, low, high in zip(summaries, bounds[:-1], bounds[1:], strict=True):
        of_worker = order[low:high]
        table = summary.collectives
        end[of_worker] = (
            table.start_ns[position[of_worker]] + table.duration_ns[position[of_worker]]
        )
    return rank, matched.collective[rows], end


@memoized
def ranks_of(signals: Signals) -> Ranks:
    """All ranks of the run that a rank belongs to."""
    run = signals.run
    if run.summaries:
        return reduce_ranks(run.sources, run.summaries)
    return _reduce(
        run,
        [
            signals if worker == signals.worker else Signals(run, worker)
            for worker in range(len(run.traces))
        ],
    )


def reference_worker(run: Run, options: Options | None = None) -> Signals:
    """Signals of the worker that the overview and the savings refer to: see `Ranks.critical`."""
    if run.summaries:
        ranks = reduce_ranks(run.sources, run.summaries)
        signals = Signals(run, ranks.critical, options)
    else:
        workers = [Signals(run, worker, options) for worker in range(len(run.traces))]
        if len(workers) == 1:
            return workers[0]
        ranks = _reduce(run, workers)
        signals = workers[ranks.critical]
    ranks_of.store(signals, ranks)
    return signals


def _reduce(run: Run, workers: Sequence[Signals]) -> Ranks:
    limit = collectives_kept(len(workers))
    return reduce_ranks(run.sources, [summarize(signals, limit) for signals in workers])


@memoized
def collectives_of(signals: Signals) -> Collectives:
    """The collectives of a rank's used steps, with what its other ranks tell of them."""
    keep = collective_rows_of(signals.trace, signals.device.index)
    return described(signals, keep[signals.steps.owner[signals.trace.collectives.row[keep]] >= 0])


def described(signals: Signals, keep: NDArray[np.intp]) -> Collectives:
    """Some collectives, by rows of their table, with what the other ranks tell of them."""
    return describe_collectives(
        signals.trace,
        keep,
        signals.attribution.intervals[Cause.COMMUNICATION],
        ranks_of(signals).transfers_of(signals.worker),
        shortest_durations(signals),
    )


@memoized
def shortest_durations(signals: Signals) -> Int64:
    """The shortest duration of each collective over the devices of the process, or -1."""
    return shortest_over_devices(signals.trace)
