"""Which collectives of several ranks are one, and who waited for whom.

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

from tb_perfadvisor.signals.ranks.alignment import aligned_numbers
from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.rank_summary import RankCollectives, RankSummary, Stream
from tb_perfadvisor.trace.tables import Int32, Int64


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
