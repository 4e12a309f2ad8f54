"""Which collectives of several ranks are one, and who waited for whom.

A collective's duration includes waiting for the other ranks. Its transfer takes the shortest
duration over all ranks of its group, because the last rank to arrive waits for nobody. Without all
of its ranks, transfer and waiting are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.rank_summary import RankCollectives, RankSummary, Stream
from tb_perfadvisor.trace.tables import Int32, Int64


class Matched(Struct, frozen=True):
    """Collectives that every rank of their group recorded: one row per rank that took part.

    Rows of one collective stand together, its last to arrive first.
    """

    rank: Int32
    """Index of the run's workers; shape (rows,)."""
    position: Int32
    """In that rank's `RankCollectives`."""
    collective: Int32
    """Which one; shape (rows,), rising."""
    waiting_ns: Int64
    """Shape (rows,): 0 for the last to arrive."""
    first: Int64
    """Of each collective, the row of its last to arrive; shape (collectives,)."""
    stream: Int32
    """Of each collective, its index of `streams`."""
    streams: tuple[Stream, ...]
    transfer_ns: Int64
    """Of each collective."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.first)

    @property
    def last_rank(self) -> Int32:
        """Of each collective, the worker that arrived last; shape (collectives,)."""
        return self.rank[self.first]


def match_collectives(sources: Sequence[Source], summaries: Sequence[RankSummary]) -> Matched:
    """Find the collectives that all ranks of their group recorded.

    They are matched by group, operation and sequence number; without numbers by position, where
    every rank recorded equally many of that group and operation.
    """
    # Sums of a step: the shortest sum is not the sum of the shortest.
    if len(summaries) < 2 or any(summary.is_summed for summary in summaries):
        return _nothing()
    world = max([source.world_size or 0 for source in sources] + [len(summaries)])
    if len(summaries) == world and _are_alike([one.collectives for one in summaries], world):
        return _matched_alike([one.collectives for one in summaries])
    known: dict[Stream, int] = {}
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for worker, summary in enumerate(summaries):
        own = summary.collectives
        ids = np.array([known.setdefault(one, len(known)) for one in own.streams], dtype=np.int64)
        columns.append(
            (
                np.full(len(own), worker, dtype=np.int64),
                np.arange(len(own), dtype=np.int64),
                ids[own.stream] if len(own) else np.empty(0, dtype=np.int64),
                own.number,
                own.duration_ns,
                own.group_size.astype(np.int64),
            )
        )
    rank, position, stream, number, duration, size = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    # Ties go to the lowest rank: the workers come in order of it.
    order = np.lexsort((rank, duration, number, stream))
    rank, position, stream, number, duration, size = (
        column[order] for column in (rank, position, stream, number, duration, size)
    )
    is_new = np.ones(len(rank), dtype=bool)
    is_new[1:] = (stream[1:] != stream[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(is_new)
    members = np.diff(np.append(first, len(rank)))
    # A group of unknown size is taken for all ranks.
    wanted = np.where(size[first] > 0, size[first], world)
    is_whole = (members == wanted) & (members >= 2)
    keep = np.repeat(is_whole, members)
    members = members[is_whole]
    collective = np.repeat(np.arange(len(members)), members)
    own_first = np.cumsum(members) - members
    transfer = duration[first[is_whole]]
    return Matched(
        rank=rank[keep].astype(np.int32),
        position=position[keep].astype(np.int32),
        collective=collective.astype(np.int32),
        waiting_ns=duration[keep] - transfer[collective],
        first=own_first,
        stream=stream[first[is_whole]].astype(np.int32),
        streams=tuple(known),
        transfer_ns=transfer,
    )


def _are_alike(tables: Sequence[RankCollectives], world: int) -> bool:
    """Whether all ranks recorded the same collectives, all of the whole world."""
    first = tables[0]
    return len(first) > 0 and all(
        one.streams == first.streams
        and np.array_equal(one.stream, first.stream)
        and np.array_equal(one.number, first.number)
        and bool(((one.group_size == world) | (one.group_size <= 0)).all())
        for one in tables
    )


def _matched_alike(tables: Sequence[RankCollectives]) -> Matched:
    """The usual case needs no sorting: a matrix of ranks and collectives."""
    count, calls = len(tables), len(tables[0])
    duration = np.stack([one.duration_ns for one in tables], axis=1)
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
    )


def _nothing() -> Matched:
    none, none32 = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return Matched(none32, none32, none32, none, none, none32, (), none)
