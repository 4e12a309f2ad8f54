"""Collectives of several devices in one process: which are one, and what each takes by itself.

A collective's duration includes waiting for the others. The last device to arrive waits for none:
its is the shortest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.tables import Int64

LEFT_TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
"""Operations that nobody leaves before all have come. A broadcast's root may leave at once."""


def shortest_over_devices(trace: Trace) -> Int64:
    """The shortest duration of each collective over the devices of the process.

    Returns:
        For each row of the table of collectives; -1 where one device is alone, or other processes
        take part, or the devices' collectives do not match.
    """
    table = trace.collectives
    found = np.full(len(table.row), -1, dtype=np.int64)
    if not len(found) or (trace.source.world_size or 1) > 1:
        return found
    duration = trace.events.duration_ns[table.row]
    device = trace.tracks.device[trace.events.track[table.row]]
    # A program is the same on all devices, down to the names of its collectives.
    first, stream = group_rows(table.group, table.operation, trace.events.name[table.row])
    for index, row in enumerate(first.tolist()):
        if trace.text(int(table.operation[row])) not in LEFT_TOGETHER:
            continue
        own = np.flatnonzero(stream == index)
        together = _by_order(device[own], table.group_size[own])
        if together is None and (device[own] < 0).all() and trace.source.framework != "pytorch":
            together = _by_overlap(trace, own)
        if together is None:
            continue
        quickest = np.full(int(together.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(quickest, together, duration[own])
        found[own] = quickest[together]
    return found


def _by_order(device: NDArray[np.int32], group_size: NDArray[np.int32]) -> Int64 | None:
    """Number the collectives of a stream, each on its device; None where the devices differ."""
    devices, count = np.unique(device, return_counts=True)
    if len(devices) < 2 or devices[0] < 0 or len(distinct(count)) > 1:
        return None
    sizes = group_size[group_size >= 0]
    if len(sizes) and (sizes != len(devices)).any():
        return None
    number = np.empty(len(device), dtype=np.int64)
    for one in devices.tolist():
        number[device == one] = np.arange(count[0])
    return number


def _by_overlap(trace: Trace, places: NDArray[np.intp]) -> Int64 | None:
    """Number what overlaps, on threads that stand for devices; None where that is no rule.

    Collectives of XLA's CPU client run on whichever thread is free; all of one are in it at once.
    """
    row = trace.collectives.row[places]
    start, end = trace.events.start_ns[row], trace.events.end_ns[row]
    begins = np.ones(len(row), dtype=bool)
    begins[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    number = np.cumsum(begins) - 1
    count = np.bincount(number)
    return number if count[0] > 1 and len(distinct(count)) == 1 else None
