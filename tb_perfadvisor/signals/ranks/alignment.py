"""Which collectives of two ranks are the same one, where no sequence numbers say so.

Recordings begin and end at different collectives, and each rank has a clock of its own. But ranks
leave a collective together: the time from one end to the next is the same on all of them, to within
microseconds. So the shift of one rank's list against another's is the one at which the ends differ
by a constant. That constant is the difference of the clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.multi_device_collectives import LEFT_TOGETHER
from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.rank_summary import RankCollectives, Stream
from tb_perfadvisor.trace.tables import Float64, Int64

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

    Args:
        sources: Sources of the workers, with their wall clocks at time 0 where known.
        tables: Their collectives, in the same order.

    Returns:
        Shape (n,) for each worker; -1 where no shift fits.
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
    chosen = np.unique(np.linspace(0, count - 1, _GAPS).astype(np.int64))
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
    chosen = np.unique(np.linspace(0, len(gaps) - 1, _GAPS).astype(np.int64))
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
