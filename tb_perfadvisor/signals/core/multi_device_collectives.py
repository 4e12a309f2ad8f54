"""Collectives of several devices in one process: which rows are one collective, and its transfer.

A collective's duration includes waiting for the other devices. The last device to arrive waits for
nobody, so the shortest duration is the transfer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, rows_by_group
from tb_perfadvisor.trace.tables import Int64

LEFT_TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
"""Operations that no rank leaves before all have arrived. A broadcast's root may leave at once."""


def shortest_over_devices(trace: Trace) -> Int64:
    """The shortest duration of each collective over the devices of the process.

    Returns:
        Shape (rows of the table of collectives,); -1 if there is only one device, if other
        processes take part, or if the devices' collectives do not match.
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
    devices, count = np.unique(device, return_counts=True)
    if len(devices) < 2 or devices[0] < 0 or (count != count[0]).any():
        return None
    sizes = group_size[group_size >= 0]
    if len(sizes) and (sizes != len(devices)).any():
        return None
    number = np.empty(len(device), dtype=np.int64)
    number[np.argsort(device, kind="stable")] = np.tile(np.arange(count[0]), len(devices))
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
