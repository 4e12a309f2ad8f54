"""Collectives, also of several devices in one process: which rows are one, and its transfer.

A collective's duration includes waiting for the other devices. The last device to arrive waits for
nobody, so the shortest duration is the transfer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.columns import TextColumn
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, rows_by_group, stable_order
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

LEFT_TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
"""Operations that no rank leaves before all have arrived. A broadcast's root may leave at once."""


def shortest_over_devices(trace: Trace) -> Int64:
    """The shortest duration of each collective over the devices of the process.

    It is -1 if there is only one device, if other processes take part, or if the devices'
    collectives do not match.
    """
    table = trace.collectives
    shortest = np.full(len(table.row), -1, dtype=np.int64)
    if not len(shortest) or (trace.source.world_size or 1) > 1:
        return shortest
    duration = trace.events.duration_ns[table.row]
    device = trace.tracks.device[trace.events.track[table.row]]
    # All devices run the same program, so that names of collectives match as well.
    first, stream = group_rows(table.group, table.operation, trace.events.name[table.row])
    for row, members in zip(first.tolist(), rows_by_group(stream, len(first)), strict=True):
        if trace.text(int(table.operation[row])) not in LEFT_TOGETHER:
            continue
        number = _by_order(device[members], table.group_size[members])
        if number is None and (device[members] < 0).all() and trace.source.framework != "pytorch":
            number = _by_overlap(trace, members)
        if number is None:
            continue
        shortest_of_number = np.full(int(number.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest_of_number, number, duration[members])
        shortest[members] = shortest_of_number[number]
    return shortest


def _by_order(device: NDArray[np.int32], group_size: NDArray[np.int32]) -> Int64 | None:
    """Number a stream's collectives on each device; None if the devices have unequal counts."""
    devices = distinct(device)
    if len(devices) < 2 or devices[0] < 0:
        return None
    count = np.bincount(device)[devices]
    if (count != count[0]).any():
        return None
    sizes = group_size[group_size >= 0]
    if len(sizes) and (sizes != len(devices)).any():
        return None
    number = np.empty(len(device), dtype=np.int64)
    number[stable_order(device)] = np.tile(np.arange(count[0]), len(devices))
    return number


def _by_overlap(trace: Trace, rows: NDArray[np.intp]) -> Int64 | None:
    """Number collectives by what overlaps; None if the overlaps have unequal sizes.

    XLA's CPU client runs collectives on any free thread; all threads of one collective are in it at
    the same time.
    """
    events = trace.collectives.row[rows]
    start, end = trace.events.start_ns[events], trace.events.end_ns[events]
    begins = np.ones(len(events), dtype=bool)
    begins[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    number = np.cumsum(begins) - 1
    count = np.bincount(number)
    return number if count[0] > 1 and len(distinct(count)) == 1 else None


Mask = NDArray[np.bool_]
_32_BITS = frozenset({"float", "float32", "f32"})
_16_BITS = frozenset({"half", "bfloat16", "float16", "c10::half", "c10::bfloat16", "f16", "bf16"})
"""Names of types: PyTorch's, C++'s and XLA's, in lower case."""
KNOWN_SHARE = 0.9
"""Share of the time of all-reduces whose sizes must be known."""


class Collectives(Struct, frozen=True):
    """Collectives in order of start, usually those of the used window; columns of shape (n,).

    If the process has several devices, these are the collectives of the device that stands for it.
    """

    row: Int32
    operation: TextColumn
    group: TextColumn
    size_bytes: Int64
    dtype: TextColumn
    group_size: Int64
    """-1 when unknown."""
    neighbors: Int32
    """Members next to each in a torus; -1 when unknown."""
    duration_ns: Int64
    exposed_ns: Int64
    """The part of each that no compute covers; where two overlap, both count it."""
    transfer_ns: Int64
    """The shortest duration over all ranks, or over the devices of a single process, or the
    duration without the waiting that was recorded; -1 when ranks are missing or don't match."""
    is_start: Mask
    """Whether the row only starts an asynchronous collective; another row waits for its end."""

    def __len__(self) -> int:
        """Number of rows: two for an asynchronous collective."""
        return len(self.row)

    @property
    def without_waiting_ns(self) -> Int64:
        """The time of each, without waiting for other ranks where that is known; shape (n,)."""
        return np.where(self.transfer_ns >= 0, self.transfer_ns, self.duration_ns)

    @property
    def count(self) -> int:
        """Number of collectives."""
        return len(self) - int(self.is_start.sum())

    @property
    def sizes_known(self) -> bool:
        """Whether the bytes and ranks of nearly all all-reduces are known.

        All-reduces that were launched before the recording began have neither.
        """
        all_reduces = self.of("all-reduce")
        sized = all_reduces & (self.size_bytes >= 0) & (self.group_size >= 2)
        return bool(
            self.duration_ns[sized].sum() >= KNOWN_SHARE * self.duration_ns[all_reduces].sum()
        )

    @property
    def is_32_bit(self) -> Mask:
        """Which send 32-bit floating-point numbers; shape (n,)."""
        return self._has_type(_32_BITS)

    @property
    def is_16_bit(self) -> Mask:
        """Which send 16-bit floating-point numbers; shape (n,)."""
        return self._has_type(_16_BITS)

    def _has_type(self, types: frozenset[str]) -> Mask:
        return self.dtype.is_any_of(*(text for text in self.dtype.texts if text.lower() in types))

    def of(self, *operations: str) -> Mask:
        """Mask of the collectives that are one of some operations; shape (n,)."""
        return self.operation.is_any_of(*operations)


def collective_rows_of(trace: Trace, device: int | None) -> NDArray[np.intp]:
    """Rows of the table of collectives that count for a rank: its device's and its host's.

    The trace may have several devices; `device` stands for the rank. On the CPU it is None, and all
    rows count.
    """
    device_of_row = trace.tracks.device[trace.events.track[trace.collectives.row]]
    is_on_device = (
        np.ones(len(device_of_row), dtype=bool) if device is None else device_of_row == device
    )
    return np.flatnonzero(is_on_device | (device_of_row < 0))


def describe_collectives(
    trace: Trace,
    keep: NDArray[np.intp],
    exposed: Intervals,
    transfers: Mapping[int, int],
    shortest_ns: Int64,
) -> Collectives:
    """Some collectives, with what the other ranks tell of them.

    `keep` has rows of the table of collectives, ascending, and `exposed` is the rank's exposed
    communication. `transfers` are transfer times by row, from `Ranks.transfers_of`, and
    `shortest_ns` those within the process, from `shortest_over_devices`.
    """
    table, events = trace.collectives, trace.events
    row = table.row[keep]
    world_size = trace.source.world_size
    # With a single group, a group without a recorded size has all ranks.
    has_groups = table.group.size > 0 and table.group.min() < table.group.max()
    fallback = world_size if world_size and not has_groups else -1
    group_size = table.group_size[keep].astype(np.int64)
    waiting = table.waiting_ns[keep]
    recorded_transfer = np.maximum(events.duration_ns[row] - waiting, 0)
    recorded_transfer = np.where(waiting >= 0, recorded_transfer, shortest_ns[keep])
    return Collectives(
        row=row,
        operation=TextColumn(trace.strings, table.operation[keep], "unknown"),
        group=TextColumn(trace.strings, table.group[keep]),
        size_bytes=table.size_bytes[keep],
        dtype=TextColumn(trace.strings, table.dtype[keep]),
        group_size=np.where(group_size > 0, group_size, fallback),
        neighbors=table.neighbors[keep],
        duration_ns=events.duration_ns[row],
        exposed_ns=overlap_ns(exposed, events.start_ns[row], events.end_ns[row]),
        transfer_ns=_transfer_ns(row, transfers, recorded_transfer),
        is_start=_starts(trace, row),
    )


def _starts(trace: Trace, row: Int32) -> Mask:
    """Which rows only start a collective, by XLA's names: `all-gather-start.3`."""
    return named(trace, row, re.compile("-start"))


def _transfer_ns(row: Int32, transfers: Mapping[int, int], recorded: Int64) -> Int64:
    """Transfer time of each collective: from all ranks if known, else from its own recording."""
    if not transfers:
        return recorded
    pairs = zip(row.tolist(), recorded.tolist(), strict=True)
    return np.array([transfers.get(key, fallback) for key, fallback in pairs], dtype=np.int64)


def exposed_part(trace: Trace, rows: Int32, exposed: Intervals) -> Intervals:
    """The part of the exposed communication in which these collectives run."""
    return intersect(exposed, trace.events.spans(rows))
