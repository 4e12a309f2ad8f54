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
from tb_perfadvisor.signals.core.device import device_facts, existing_devices
from tb_perfadvisor.signals.host.preempted_calls import preempted_calls
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import collective_roles
from tb_perfadvisor.signals.ranks.matching import Clocks, Matched, align_clocks, match_collectives
from tb_perfadvisor.signals.signals import Options, Signals
from tb_perfadvisor.signals.snapshots.course import courses
from tb_perfadvisor.signals.work.products import matrix_flop
from tb_perfadvisor.trace import EventKind, Run, Source, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, rows_by_group
from tb_perfadvisor.trace.intervals import overlap_ns, total_ns
from tb_perfadvisor.trace.rank_summary import NO_STEP, RankCollectives, RankSummary, Stream
from tb_perfadvisor.trace.tables import Int32, Int64


class DevicePeak(Struct, frozen=True):
    """The most memory on one device, as one rank's process sees it."""

    rank: int | None
    device: int
    allocated_bytes: int
    reserved_bytes: int


@memoized
def snapshot_peaks(signals: Signals) -> tuple[DevicePeak, ...]:
    """The peaks of each rank's devices, in order of rank."""
    run = signals.run
    if run.summaries:
        return tuple(
            DevicePeak(source.rank, *peak)
            for source, summary in zip(run.sources, run.summaries, strict=True)
            for peak in summary.snapshot_peaks
        )
    return tuple(
        DevicePeak(trace.source.rank, *peak)
        for worker, trace in enumerate(run.traces)
        for peak in peaks_of(signals if worker == signals.worker else Signals(run, worker))
    )


def peaks_of(signals: Signals) -> tuple[tuple[int, int, int], ...]:
    """Device, peak of allocated and of reserved bytes, for each device of one rank's snapshot."""
    return tuple(
        (course.device, course.peak_allocated_bytes, course.peak_reserved_bytes)
        for course in courses(signals)
    )


CAUSES = tuple(Cause)
"""The rows of `RankSummary.cause_ns`."""
MAX_COLLECTIVES = 65_536
"""Per rank: 3 MB. A step of a large model has hundreds to thousands."""
_COLLECTIVES_IN_ALL = 8_000_000
"""Over all ranks: half a gigabyte, and seconds to match them."""
_MIN_COLLECTIVES = 1_024
MAX_STEPS = 128
"""Most profiles have a few. Of longer profiles, only the totals cover all steps."""


def collectives_kept(workers: int) -> int:
    """How many collectives each worker may keep so that all fit into memory."""
    return max(min(_COLLECTIVES_IN_ALL // max(workers, 1), MAX_COLLECTIVES), _MIN_COLLECTIVES)


def summarize(signals: Signals, max_collectives: int = MAX_COLLECTIVES) -> RankSummary:
    """Summarize one rank.

    It keeps the first `max_collectives`, the same number on all ranks.
    """
    trace, steps, attribution = signals.trace, signals.steps, signals.attribution
    device, facts = signals.device, signals.device_facts
    if device.is_missing and trace.devices:
        # Any listed device stands for the one whose events are missing.
        facts = device_facts(trace, trace.devices[0].index)
    kind = facts.kind if facts is not None else "gpu" if device.is_missing else None
    first_steps = slice(0, MAX_STEPS)
    return RankSummary(
        device_kind=kind,
        device_name=facts.name if facts is not None else "",
        device_evidence=facts.evidence if facts is not None else "",
        visible_devices=max(len(existing_devices(trace)), device.used),
        used_devices=None if device.is_missing else device.used,
        events=len(trace.events),
        duration_ns=trace.duration_ns,
        is_summed=trace.totals is not None,
        step_source=steps.source,
        step_number=steps.number[first_steps],
        step_start_ns=steps.start_ns[first_steps],
        step_end_ns=steps.end_ns[first_steps],
        step_count=steps.count,
        window_start_ns=attribution.window_start_ns,
        window_ns=attribution.window_ns,
        cause_ns=np.stack([attribution.step_total_ns[cause][first_steps] for cause in CAUSES]),
        cause_total_ns=np.array([attribution.total_ns(cause) for cause in CAUSES]),
        preempted_ns=total_ns(preempted_calls(signals).idle),
        once_ns=total_ns(first_calls(signals).idle),
        matrix_flop=matrix_flop(signals),
        collectives=_collectives(signals, max_collectives),
        notes=tuple(note for note in trace.notes if note.severity != "info"),
        snapshot_peaks=peaks_of(signals),
        host_operators=_host_operators(signals),
    )


def _host_operators(signals: Signals) -> int:
    """How many operators the thread of the steps ran in the used steps."""
    events, rows = signals.trace.events, signals.trace.rows(EventKind.OPERATOR)
    rows = rows[events.track[rows] == signals.step_track]
    return int((signals.steps.owner[rows] >= 0).sum())


def _collectives(signals: Signals, max_collectives: int) -> RankCollectives:
    trace = signals.trace
    table = trace.collectives
    on_rank = collective_rows_of(trace, signals.device.index)
    stored = on_rank[:max_collectives]
    row = table.row[stored]
    streams, stream, number = _streams(trace, on_rank)
    start, duration = trace.events.start_ns[row], trace.events.duration_ns[row]
    exposed = signals.attribution.intervals[Cause.COMMUNICATION]
    return RankCollectives(
        streams=streams,
        stream=stream[: len(stored)],
        number=number[: len(stored)],
        row=row,
        start_ns=start,
        duration_ns=duration,
        exposed_ns=overlap_ns(exposed, start, start + duration),
        size_bytes=table.size_bytes[stored],
        sent_bytes=table.sent_bytes[stored],
        group_size=table.group_size[stored],
        step=_launching_step(signals, row),
        role=collective_roles(signals).role[stored],
        left_out=len(on_rank) - len(stored),
    )


def _launching_step(signals: Signals, row: Int32) -> Int64:
    """The number of the used step that launched each event; `NO_STEP` for none."""
    steps = signals.steps
    owner = steps.owner[row]
    numbers = steps.number if len(steps.number) else np.zeros(1, dtype=np.int64)
    return np.where(owner >= 0, numbers[np.maximum(owner, 0)], NO_STEP)


def _streams(trace: Trace, rows: NDArray[np.intp]) -> tuple[tuple[Stream, ...], Int32, Int64]:
    """Streams of some rows of the table of collectives, and each row's number in its stream."""
    table = trace.collectives
    groups, members, operations = table.group[rows], table.ranks[rows], table.operation[rows]
    groups, members = _with_only_group(trace, groups, members, table.sequence[rows])
    first, of_row = group_rows(groups, members, operations)
    number: Int64 = table.sequence[rows]
    streams: list[Stream] = []
    for row, in_stream in zip(first.tolist(), rows_by_group(of_row, len(first)), strict=True):
        numbers = number[in_stream]
        is_numbered = bool(numbers.min() >= 0 and len(distinct(numbers)) == len(numbers))
        if not is_numbered:
            number[in_stream] = np.arange(len(numbers))
        group = f"{trace.text(int(groups[row]))} {trace.text(int(members[row]))}".strip()
        streams.append((group, trace.text(int(operations[row])), is_numbered))
    return tuple(streams), of_row.astype(np.int32), number


def _with_only_group(
    trace: Trace, groups: Int32, members: Int32, sequence: Int64
) -> tuple[Int32, Int32]:
    """Groups and their ranks, where collectives of no known group are of the only one.

    What the device still had to run when the recording began has no recorded launch, which names
    the group. With sequence numbers, those that have none cannot be matched.
    """
    named = np.array([bool(trace.text(code)) for code in distinct(groups).tolist()], dtype=bool)
    known = is_in(groups, distinct(groups)[named]) if named.any() else np.zeros(len(groups), bool)
    if named.sum() != 1 or known.all() or len(distinct(members[known])) > 1:
        return groups, members
    if sequence[known].max() >= 0:
        return groups, members
    only = int(np.argmax(known))
    return np.full_like(groups, groups[only]), np.full_like(members, members[only])


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
