"""Collectives of one worker, and what the other workers' recordings say about them.

A collective's duration includes waiting for the others. With all ranks at hand its transfer
is the shortest duration over the ranks (the last to arrive waits for nobody); otherwise
transfer and waiting are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

Key = tuple[str, str, int]
"""Group, operation, and sequence number or position: names one collective on every rank."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives that overlap the used window; columns of shape (n,), in order of start."""

    row: Int32
    operation: tuple[str, ...]
    group: tuple[str, ...]
    size_bytes: Int64
    dtype: tuple[str, ...]
    group_size: Int64
    """-1 when unknown."""
    duration_ns: Int64
    exposed_ns: Int64
    """What of each no compute covers; where two overlap, both count it."""
    transfer_ns: Int64
    """The shortest duration over all ranks, or what the recorder tells; -1 when ranks are missing
    or don't match."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.row)

    @property
    def sizes_known(self) -> bool:
        """Whether bytes and ranks of every all-reduce are known."""
        own = np.array([one == "all-reduce" for one in self.operation], dtype=bool)
        return bool((self.size_bytes[own] >= 0).all() and (self.group_size[own] >= 2).all())


def find_collectives(
    trace: Trace,
    exposed: Intervals,
    window_start_ns: int,
    window_end_ns: int,
    transfers: Mapping[int, int],
    world_size: int | None,
) -> Collectives:
    """The collectives of the used window.

    Args:
        trace: The worker's trace.
        exposed: Its exposed communication (attribution).
        window_start_ns: The used window.
        window_end_ns: Its end.
        transfers: Row to transfer time, from `match_transfers`.
        world_size: Stands in for a group size that is not recorded.
    """
    table, events = trace.collectives, trace.events
    start, end = events.start_ns[table.row], events.end_ns[table.row]
    keep = (end > window_start_ns) & (start < window_end_ns)
    row = table.row[keep]
    # A group without a recorded size is taken for all ranks only where there is one group.
    has_groups = table.group.size > 0 and table.group.min() < table.group.max()
    fallback = world_size if world_size and not has_groups else -1
    group_size = table.group_size[keep].astype(np.int64)
    waiting = table.waiting_ns[keep]
    told = np.where(waiting >= 0, np.maximum(events.duration_ns[row] - waiting, 0), -1)
    return Collectives(
        row=row,
        operation=tuple(text or "unknown" for text in trace.texts(table.operation[keep])),
        group=trace.texts(table.group[keep]),
        size_bytes=table.size_bytes[keep],
        dtype=trace.texts(table.dtype[keep]),
        group_size=np.where(group_size > 0, group_size, fallback),
        duration_ns=events.duration_ns[row],
        exposed_ns=overlap_ns(exposed, start[keep], end[keep]),
        transfer_ns=_matched(row, transfers, told),
    )


def _matched(row: Int32, transfers: Mapping[int, int], told: Int64) -> Int64:
    """The transfer time of each collective: as all ranks tell together, else as it tells itself."""
    if not transfers:
        return told
    pairs = zip(row.tolist(), told.tolist(), strict=True)
    return np.array([transfers.get(one, own) for one, own in pairs], dtype=np.int64)


def match_transfers(traces: Sequence[Trace]) -> tuple[Mapping[int, int], ...]:
    """Per trace, the transfer time of each of its collectives that all ranks recorded.

    Collectives are matched by group, operation and sequence number; without numbers by
    position, where every rank recorded equally many of that group and operation.
    """
    empty: tuple[Mapping[int, int], ...] = tuple({} for _ in traces)
    world_size = next((t.source.world_size for t in traces if t.source.world_size), None)
    if len(traces) < 2 or (world_size is not None and len(traces) < world_size):
        return empty
    if any(trace.totals is not None for trace in traces):
        # Sums of a step: the shortest sum is not the sum of the shortest.
        return empty
    keyed = [_keys(trace) for trace in traces]
    common = set(keyed[0]).intersection(*keyed[1:])
    shortest = {
        key: min(
            int(trace.events.duration_ns[rows[key]])
            for trace, rows in zip(traces, keyed, strict=True)
        )
        for key in common
    }
    return tuple({rows[key]: shortest[key] for key in common} for rows in keyed)


def _keys(trace: Trace) -> dict[Key, int]:
    table = trace.collectives
    by_stream: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row, group, operation, sequence in zip(
        table.row.tolist(),
        table.group.tolist(),
        table.operation.tolist(),
        table.sequence.tolist(),
        strict=True,
    ):
        stream = (trace.text(group), trace.text(operation))
        by_stream.setdefault(stream, []).append((sequence, row))
    keys: dict[Key, int] = {}
    for (group, operation), members in by_stream.items():
        numbers = [sequence for sequence, _ in members]
        is_numbered = min(numbers) >= 0 and len(set(numbers)) == len(numbers)
        count = len(members)
        for position, (sequence, row) in enumerate(members):
            # Positions only match where the counts do: the count is part of the key.
            number = sequence if is_numbered else position
            suffix = "" if is_numbered else f"/{count}"
            keys[(group, operation + suffix, number)] = row
    return keys


def waiting_ns(trace: Trace, transfers: Mapping[int, int]) -> int | None:
    """How long this worker waited for others in matched collectives; None without any."""
    if not transfers:
        return None
    rows = np.fromiter(transfers.keys(), dtype=np.int64, count=len(transfers))
    shortest = np.fromiter(transfers.values(), dtype=np.int64, count=len(transfers))
    return int((trace.events.duration_ns[rows] - shortest).sum())


def exposed_part(trace: Trace, rows: Int32, exposed: Intervals) -> Intervals:
    """What of the exposed communication these collectives make up."""
    return intersect(exposed, union(trace.events.start_ns[rows], trace.events.end_ns[rows]))
