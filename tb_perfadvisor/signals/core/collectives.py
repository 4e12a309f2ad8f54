"""Collectives of one worker; what the others' recordings say of them is in `ranks`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.multi_device_collectives import shortest_over_devices
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.trace.text_column import TextColumn

Mask = NDArray[np.bool_]
KNOWN_SHARE = 0.9
"""Of the all-reduces' time."""


class Collectives(Struct, frozen=True):
    """The collectives that overlap the used window; columns of shape (n,), in order of start.

    Of several devices in one process those of the one that stands for the worker.
    """

    row: Int32
    operation: TextColumn
    group: TextColumn
    size_bytes: Int64
    dtype: TextColumn
    group_size: Int64
    """-1 when unknown."""
    duration_ns: Int64
    exposed_ns: Int64
    """What of each no compute covers; where two overlap, both count it."""
    transfer_ns: Int64
    """The shortest duration over all ranks, over the devices of a process that is alone, or what
    the recorder tells; -1 when ranks are missing or don't match."""

    is_start: Mask
    """The half of an asynchronous one that starts it; the other half waits."""

    def __len__(self) -> int:
        """Number of rows: of halves, where collectives are in two."""
        return len(self.row)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self) - int(self.is_start.sum())

    @property
    def sizes_known(self) -> bool:
        """Whether bytes and ranks of all-reduces are known, but for a few.

        Those that were launched before the recording began have neither.
        """
        own = self.of("all-reduce")
        sized = own & (self.size_bytes >= 0) & (self.group_size >= 2)
        return bool(self.duration_ns[sized].sum() >= KNOWN_SHARE * self.duration_ns[own].sum())

    def of(self, *operations: str) -> Mask:
        """Which of them are of some operations; shape (n,)."""
        return self.operation.is_any_of(*operations)


def collective_rows_of(trace: Trace, device: int | None) -> NDArray[np.intp]:
    """Rows of the table of collectives that count for a worker: of its device, and of its host.

    Args:
        trace: The worker's trace, which may have several devices.
        device: The index of the one that stands for it; None on the CPU, where all count.
    """
    of_track = trace.tracks.device[trace.events.track[trace.collectives.row]]
    is_own = np.ones(len(of_track), dtype=bool) if device is None else of_track == device
    return np.flatnonzero(is_own | (of_track < 0))


def find_collectives(
    trace: Trace,
    device: int | None,
    exposed: Intervals,
    window_start_ns: int,
    window_end_ns: int,
    transfers: Mapping[int, int],
    world_size: int | None,
) -> Collectives:
    """The collectives of the used window.

    Args:
        trace: The worker's trace.
        device: Its busiest device; None on the CPU.
        exposed: Its exposed communication (attribution).
        window_start_ns: The used window.
        window_end_ns: Its end.
        transfers: Row to transfer time, from `Ranks.transfers_of`.
        world_size: Stands in for a group size that is not recorded.
    """
    table, events = trace.collectives, trace.events
    start, end = events.start_ns[table.row], events.end_ns[table.row]
    keep = collective_rows_of(trace, device)
    keep = keep[(end[keep] > window_start_ns) & (start[keep] < window_end_ns)]
    row = table.row[keep]
    # A group without a recorded size is taken for all ranks only where there is one group.
    has_groups = table.group.size > 0 and table.group.min() < table.group.max()
    fallback = world_size if world_size and not has_groups else -1
    group_size = table.group_size[keep].astype(np.int64)
    waiting = table.waiting_ns[keep]
    told = np.maximum(events.duration_ns[row] - waiting, 0)
    told = np.where(waiting >= 0, told, shortest_over_devices(trace)[keep])
    return Collectives(
        row=row,
        operation=TextColumn(trace.strings, table.operation[keep], "unknown"),
        group=TextColumn(trace.strings, table.group[keep]),
        size_bytes=table.size_bytes[keep],
        dtype=TextColumn(trace.strings, table.dtype[keep]),
        group_size=np.where(group_size > 0, group_size, fallback),
        duration_ns=events.duration_ns[row],
        exposed_ns=overlap_ns(exposed, start[keep], end[keep]),
        transfer_ns=_matched(row, transfers, told),
        is_start=_starts(trace, row),
    )


def _starts(trace: Trace, row: Int32) -> Mask:
    """Which of the rows only start a collective, as XLA names them: `all-gather-start.3`."""
    names = trace.events.name[row]
    starts = [one for one in distinct(names).tolist() if "-start" in trace.strings[one]]
    return is_in(names, starts)


def _matched(row: Int32, transfers: Mapping[int, int], told: Int64) -> Int64:
    """The transfer time of each collective: as all ranks tell together, else as it tells itself."""
    if not transfers:
        return told
    pairs = zip(row.tolist(), told.tolist(), strict=True)
    return np.array([transfers.get(one, own) for one, own in pairs], dtype=np.int64)


def exposed_part(trace: Trace, rows: Int32, exposed: Intervals) -> Intervals:
    """What of the exposed communication these collectives make up."""
    return intersect(exposed, union(trace.events.start_ns[rows], trace.events.end_ns[rows]))
