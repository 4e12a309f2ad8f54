"""Aligns the clocks of ranks by their collectives, and matches collectives across ranks.

Recordings begin and end at different collectives, and each rank has a clock of its own. But ranks
leave a collective together, up to the latency of the last hop: the time from one end to the next is
the same on all of them, to within microseconds. So, where no sequence numbers say which collectives
are the same one, the shift of one rank's list against another's is the one at which the ends differ
by a constant. That constant is the difference of the clocks.

A collective's duration includes waiting for the other ranks. Its transfer takes the shortest
duration over all ranks of its group, because the last rank to arrive waits for nobody. If only some
of its ranks were recorded, the shortest of them may still contain waiting: the transfer takes at
most that long, and the others wait at least for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.collectives import LEFT_TOGETHER
from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.rank_summary import RankCollectives, RankSummary, Stream
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

_GAPS = 256
"""Enough gaps between ends to tell one shift from another."""
_CANDIDATES = 8
_GAP_NS, _GAP_SHARE = 20_000, 0.02
"""Two ranks see the same gap to within this: the last hop of a collective, and threads on a CPU."""
_LEAST_OVERLAP = 0.3
"""Of the shorter list. Recordings of the same steps share more."""
_FEWEST = 3
"""Fewer ends in common say nothing about how constant their difference is."""
_NEARLY_ALL = 0.9
"""Of the differences. Collectives come in groups, within which a wrong shift fits as well."""
_MOST_APART, _MOST_APART_NS = 0.5, 1_000_000
"""Of the time between ends, and at least. What ends further apart is not one collective: samples of
a recording hold different ones on each rank. Threads on a busy CPU leave within milliseconds."""
_SAME_SIZES = 0.9
_AS_CONSTANT, _AS_CONSTANT_NS = 2.0, 20_000
"""Shifts whose ends differ by as little cannot be told apart by them."""
_ALIKE_OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast")
"""Operations whose sizes are the same on all ranks."""


def aligned_numbers(
    sources: Sequence[Source], tables: Sequence[RankCollectives]
) -> tuple[Int64, ...]:
    """A number for each collective, by which ranks can be matched: equal within a stream.

    Recorded sequence numbers stay. The others become positions in the list of the rank that
    recorded most of the stream.

    Sources have wall clocks at time 0 where known, and `tables` the same order. A number is -1
    where no shift fits.
    """
    numbers = [table.number.copy() for table in tables]
    for stream, members in _unnumbered(tables).items():
        lists = [_list_of(sources[worker], tables[worker], index) for worker, index in members]
        longest = max(lists, key=lambda listed: len(listed.end_ns))
        is_equal = _need_no_shift(stream, longest, lists)
        for (worker, _), listed, equal in zip(members, lists, is_equal, strict=True):
            shift = 0 if equal else _shift(stream, longest, listed)
            numbers[worker][listed.rows] = (
                -1 if shift is None else np.arange(len(listed.rows)) + (shift + _ORIGIN)
            )
    return tuple(numbers)


_ORIGIN = 2**32
"""Numbers are only compared. No list is longer than this, so that none is negative."""


class _List(Struct, frozen=True):
    """The collectives of a stream on one rank, in order; columns of shape (n,)."""

    rows: Int64
    """Positions in the rank's table."""
    end_ns: Int64
    """By the rank's wall clock, if it is known."""
    size_bytes: Int64
    has_clock: bool


def _list_of(source: Source, table: RankCollectives, stream: int) -> _List:
    rows = np.flatnonzero(table.stream == stream)
    origin = source.origin_unix_ns
    end = table.start_ns[rows] + table.duration_ns[rows] + (origin or 0)
    return _List(rows, end, table.size_bytes[rows], origin is not None)


def _need_no_shift(stream: Stream, longest: _List, lists: Sequence[_List]) -> list[bool]:
    """Whether each list is as long as the longest one and ends with it, on clocks that agree.

    Without clocks, the longest overlap is the best guess anyway. Thousands of ranks are compared in
    one pass; only what differs is searched for a shift.
    """
    count, has_clock = len(longest.end_ns), longest.has_clock
    possible = [listed.has_clock == has_clock and len(listed.end_ns) == count for listed in lists]
    if count <= _FEWEST or stream[1] not in LEFT_TOGETHER or not any(possible):
        return [listed is longest for listed in lists]
    chosen = distinct(np.linspace(0, count - 1, _GAPS).astype(np.int64))
    differences = np.stack(
        [
            listed.end_ns[chosen] - longest.end_ns[chosen]
            for listed, can in zip(lists, possible, strict=True)
            if can
        ]
    )
    middle = np.median(differences, axis=1)
    spread = np.median(np.abs(differences - middle[:, None]), axis=1)
    near = np.abs(middle) < np.median(np.diff(longest.end_ns)) / 2
    equal = iter(((near | (not has_clock)) & (spread <= _GAP_NS)).tolist())
    return [can and next(equal) for can in possible]


def _unnumbered(tables: Sequence[RankCollectives]) -> dict[Stream, list[tuple[int, int]]]:
    """Streams of several workers without sequence numbers: each worker and its stream's index."""
    found: dict[Stream, list[tuple[int, int]]] = {}
    for worker, table in enumerate(tables):
        for index, stream in enumerate(table.streams):
            if not stream[2]:
                found.setdefault(stream, []).append((worker, index))
    return {stream: members for stream, members in found.items() if len(members) > 1}


def _shift(stream: Stream, longest: _List, listed: _List) -> int | None:
    """What to add to a position in a list to get the position in the longest one.

    None if none fits.
    """
    count, most = len(listed.end_ns), len(longest.end_ns)
    if stream[1] not in LEFT_TOGETHER:
        return 0 if count == most else None
    least = max(min(_LEAST_OVERLAP * min(count, most), count), 1)
    gap_ns = float(np.median(np.diff(longest.end_ns))) if most > 1 else 0.0
    found = []
    for shift in _candidates(longest, listed):
        low, high = max(-shift, 0), min(count, most - shift)
        if high - low < least:
            continue
        own, other = slice(low, high), slice(low + shift, high + shift)
        if not _same_sizes(stream, listed.size_bytes[own], longest.size_bytes[other]):
            continue
        difference = listed.end_ns[own] - longest.end_ns[other]
        middle = float(np.median(difference))
        spread = float(np.quantile(np.abs(difference - middle), _NEARLY_ALL))
        is_enough = high - low >= _FEWEST or (count == most and shift == 0)
        if not is_enough or spread > _MOST_APART * gap_ns + _MOST_APART_NS:
            continue
        found.append((spread, abs(middle), shift, high - low))
    if not found:
        return None
    # Few ends in common differ by a constant by chance.
    longest_overlap = max(item[3] for item in found)
    found = [
        (spread * (longest_overlap / overlap) ** 2, apart, shift, overlap)
        for spread, apart, shift, overlap in found
    ]
    limit = _AS_CONSTANT * min(found)[0] + _AS_CONSTANT_NS
    likely = [item for item in found if item[0] <= limit]
    if longest.has_clock and listed.has_clock:
        return min(likely, key=lambda item: (item[1], -item[3]))[2]
    return min(likely, key=lambda item: (-item[3], abs(item[2])))[2]


def _candidates(longest: _List, listed: _List) -> list[int]:
    """Shifts to try: none, equal last ones, equal wall clocks, and those of many equal gaps."""
    ends, others = listed.end_ns, longest.end_ns
    simple = [0, len(others) - len(ends)]
    if longest.has_clock and listed.has_clock:
        nearest = np.searchsorted(others, ends - _GAP_NS) - np.arange(len(ends))
        simple.append(int(np.median(nearest)))
    gaps, other_gaps = np.diff(ends), np.diff(others)
    if len(gaps) == 0 or len(other_gaps) == 0:
        return list(dict.fromkeys(simple))
    chosen = distinct(np.linspace(0, len(gaps) - 1, _GAPS).astype(np.int64))
    order = np.argsort(other_gaps, kind="stable")
    tolerance: Float64 = _GAP_NS + _GAP_SHARE * np.abs(gaps[chosen])
    low = np.searchsorted(other_gaps[order], gaps[chosen] - tolerance)
    high = np.searchsorted(other_gaps[order], gaps[chosen] + tolerance, side="right")
    found = high - low
    within = np.arange(found.sum()) - np.repeat(np.cumsum(found) - found, found)
    shift = order[np.repeat(low, found) + within] - np.repeat(chosen, found)
    votes = np.bincount(shift + len(ends))
    best = np.argsort(-votes, kind="stable")[:_CANDIDATES]
    return list(dict.fromkeys([*simple, *(best[votes[best] > 0] - len(ends)).tolist()]))


def _same_sizes(stream: Stream, sizes: Int64, others: Int64) -> bool:
    """Whether the known sizes of two lists agree; operations with sizes of their own always do."""
    if stream[1] not in _ALIKE_OPERATIONS:
        return True
    known = (sizes >= 0) & (others >= 0)
    return not known.any() or bool((sizes[known] == others[known]).mean() >= _SAME_SIZES)


_ENDS_PER_RANK = 128
"""Enough for a median that a single outlier does not move."""
_ROUNDS = 32
_SETTLED_NS = 100.0


class Clocks(Struct, frozen=True):
    """When each worker's trace began, on the clock of the first aligned one."""

    begin_ns: Int64
    """Shape (workers,): add it to a worker's times to compare them with other workers' times."""
    is_aligned: NDArray[np.bool_]
    """Shape (workers,): whether collectives align it; if not, its wall clock is used."""
    skew_ns: Int64
    """Shape (workers,): how far its wall clock is ahead of the median clock; 0 if unknown."""
    skew_is_known: bool
    """Whether the aligned workers recorded their wall clocks."""


def align_clocks(
    sources: Sequence[Source], rank: Int32, collective: Int32, end_ns: Int64
) -> Clocks:
    """Align the workers' clocks, beginning with the wall clocks of their sources at time 0.

    For each end, of shape (ends,), `rank` is the worker and `end_ns` the time on its own clock.
    Collectives are ascending.
    """
    count = len(sources)
    origins = [source.origin_unix_ns for source in sources]
    base = next((origin for origin in origins if origin is not None), 0)
    wall_clock = np.array([0 if at is None else at - base for at in origins], dtype=np.int64)
    rank, collective, end_ns = _sample(rank, collective, end_ns, count)
    correction = _corrections(
        rank, collective, (end_ns + wall_clock[rank]).astype(np.float64), count
    )
    is_aligned = np.bincount(rank, minlength=count) > 0
    begin = wall_clock - np.rint(correction).astype(np.int64)
    has_clock = is_aligned & np.array([origin is not None for origin in origins], dtype=bool)
    skew = np.zeros(count, dtype=np.int64)
    if has_clock.sum() >= 2:
        offset = correction[has_clock]
        skew[has_clock] = np.rint(offset - np.median(offset)).astype(np.int64)
    return Clocks(begin, is_aligned, skew, bool(has_clock.sum() >= 2))


def _sample(
    rank: Int32, collective: Int32, end_ns: Int64, count: int
) -> tuple[Int32, Int32, Int64]:
    """Evenly spaced collectives with all their ends: about `_ENDS_PER_RANK` per worker."""
    if len(rank) == 0:
        return rank, collective, end_ns
    stride = max(len(rank) // (_ENDS_PER_RANK * count), 1)
    keep = collective % stride == 0
    _, renumbered = unique_inverse(collective[keep])
    return rank[keep], renumbered.reshape(-1).astype(np.int32), end_ns[keep]


def _corrections(
    rank: Int32, collective: Int32, end: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """How far each worker's clock is ahead, such that the ends of each collective agree.

    Alternates between means over collectives and medians over workers. One group of all ranks is
    exact after the first round. Overlapping groups (tensor and data parallel) take more rounds,
    until the correction has passed from group to group.
    """
    offset = np.zeros(count)
    if len(rank) == 0:
        return offset
    members = np.bincount(collective)
    order = np.argsort(rank, kind="stable")
    for _ in range(_ROUNDS):
        corrected = end - offset[rank]
        middle = np.bincount(collective, weights=corrected) / members
        change = _medians(rank[order], (corrected - middle[collective])[order], count)
        offset += change
        if np.abs(change).max() < _SETTLED_NS:
            break
    return offset


def _medians(rank: Int32, value: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The median of each worker's values, or 0 without any; `rank` is sorted."""
    ordered = value[np.lexsort((value, rank))]
    low = np.searchsorted(rank, np.arange(count))
    size = np.bincount(rank, minlength=count)
    median = np.zeros(count)
    has = size > 0
    lower = low[has] + (size[has] - 1) // 2
    upper = low[has] + size[has] // 2
    median[has] = (ordered[lower] + ordered[upper]) / 2
    return median


class Matched(Struct, frozen=True):
    """Collectives that several ranks of their group recorded, with one row per rank.

    The rows of a collective are adjacent. The rank that arrives last comes first.
    """

    rank: Int32
    """Index of the worker in the run; shape (rows,)."""
    position: Int32
    """Index into that rank's `RankCollectives`; shape (rows,)."""
    collective: Int32
    """Number of the collective, ascending; shape (rows,)."""
    waiting_ns: Int64
    """Shape (rows,): 0 for the rank that arrives last."""
    first: Int64
    """Row of the rank that arrives last in each collective; shape (collectives,)."""
    stream: Int32
    """Index into `streams`; shape (collectives,)."""
    streams: tuple[Stream, ...]
    transfer_ns: Int64
    """The shortest duration; shape (collectives,)."""
    size_bytes: Int64
    """The size on the rank that arrives last; -1 if unknown; shape (collectives,)."""
    is_whole: NDArray[np.bool_]
    """Whether all ranks of its group recorded it; shape (collectives,)."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.first)

    @property
    def last_rank(self) -> Int32:
        """The worker that arrives last of those recorded, in each; shape (collectives,)."""
        return self.rank[self.first]


def match_collectives(sources: Sequence[Source], summaries: Sequence[RankSummary]) -> Matched:
    """Find the collectives that several ranks of their group recorded.

    They are matched by group, operation and sequence number. Without numbers, the lists of the
    ranks are aligned first: see `alignment`.
    """
    # With sums, transfers are unknown: the shortest sum is not the sum of the shortest durations.
    if len(summaries) < 2 or any(summary.is_summed for summary in summaries):
        return _nothing()
    world = max([source.world_size or 0 for source in sources] + [len(summaries)])
    tables = [summary.collectives for summary in summaries]
    numbers = aligned_numbers(sources, tables)
    if len(summaries) == world and _are_alike(tables, numbers, world):
        return _matched_alike(tables)
    stream_index: dict[Stream, int] = {}
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for worker, (table, aligned) in enumerate(zip(tables, numbers, strict=True)):
        ids = np.array(
            [
                stream_index.setdefault(stream_name, len(stream_index))
                for stream_name in table.streams
            ],
            dtype=np.int64,
        )
        columns.append(
            (
                np.full(len(table), worker, dtype=np.int64),
                np.arange(len(table), dtype=np.int64),
                ids[table.stream] if len(table) else np.empty(0, dtype=np.int64),
                aligned,
                table.duration_ns,
                table.group_size.astype(np.int64),
                table.size_bytes,
            )
        )
    rank, position, stream, number, duration, size, size_bytes = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    # On a tie, the lowest rank is first: workers are sorted by rank.
    order = np.lexsort((rank, duration, number, stream))
    rank, position, stream, number, duration, size, size_bytes = (
        column[order] for column in (rank, position, stream, number, duration, size, size_bytes)
    )
    is_new = np.ones(len(rank), dtype=bool)
    is_new[1:] = (stream[1:] != stream[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(is_new)
    members = np.diff(np.append(first, len(rank)))
    # A group of unknown size counts as all ranks.
    group_size = np.where(size[first] > 0, size[first], world)
    # More ranks than the group has are collectives of several groups with the same name.
    is_matched = (members <= group_size) & (members >= 2) & (number[first] >= 0)
    is_whole = (members == group_size)[is_matched]
    keep = np.repeat(is_matched, members)
    members = members[is_matched]
    collective = np.repeat(np.arange(len(members)), members)
    first_row = np.cumsum(members) - members
    transfer = duration[first[is_matched]]
    return Matched(
        rank=rank[keep].astype(np.int32),
        position=position[keep].astype(np.int32),
        collective=collective.astype(np.int32),
        waiting_ns=duration[keep] - transfer[collective],
        first=first_row,
        stream=stream[first[is_matched]].astype(np.int32),
        streams=tuple(stream_index),
        transfer_ns=transfer,
        size_bytes=size_bytes[first[is_matched]],
        is_whole=is_whole,
    )


def _are_alike(tables: Sequence[RankCollectives], numbers: Sequence[Int64], world: int) -> bool:
    """Whether all ranks recorded the same collectives, all with a group of all ranks."""
    first = tables[0]
    return len(first) > 0 and all(
        table.streams == first.streams
        and np.array_equal(table.stream, first.stream)
        and np.array_equal(number, numbers[0])
        and bool(((table.group_size == world) | (table.group_size <= 0)).all())
        for table, number in zip(tables, numbers, strict=True)
    )


def _matched_alike(tables: Sequence[RankCollectives]) -> Matched:
    """Match equal collectives of all ranks. This usual case is a matrix and needs no sorting."""
    count, calls = len(tables), len(tables[0])
    duration = np.stack([table.duration_ns for table in tables], axis=1)
    last = duration.argmin(axis=1)  # ties go to the lowest rank
    transfer = duration[np.arange(calls), last]
    rank = np.tile(np.arange(count, dtype=np.int32), (calls, 1))
    rank[np.arange(calls), last] = 0
    rank[:, 0] = last
    waiting = np.take_along_axis(duration, rank.astype(np.int64), axis=1) - transfer[:, None]
    each = np.arange(calls, dtype=np.int32)
    return Matched(
        rank=rank.reshape(-1),
        position=np.repeat(each, count),
        collective=np.repeat(each, count),
        waiting_ns=waiting.reshape(-1),
        first=np.arange(calls, dtype=np.int64) * count,
        stream=tables[0].stream,
        streams=tables[0].streams,
        transfer_ns=transfer,
        size_bytes=tables[0].size_bytes,
        is_whole=np.ones(calls, dtype=bool),
    )


def _nothing() -> Matched:
    none, none32 = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return Matched(
        none32, none32, none32, none, none, none32, (), none, none, np.empty(0, dtype=bool)
    )
