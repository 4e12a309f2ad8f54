"""Adds the allocations that TensorFlow's and XLA's allocators trace on host threads."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Events
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace import Assembler, TrackKind
from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.tables import Int32, Int64

_EVENT: Final = re.compile(r"Memory(Allocation|Deallocation)$")
_DEVICE_ALLOCATOR: Final = re.compile(r"(?:GPU|TPU|gpu|tpu)_(\d{1,9})_")
_HOST_ALLOCATOR: Final = re.compile(r"(?i).*(host|cpu|mkl)")


def add_memory(
    assembler: Assembler,
    plane: Plane,
    limits: dict[int, int],
    first_device: int,
    thread_of_line: dict[int, tuple[int, str]],
) -> None:
    """Add the allocations of all threads to the memory table.

    Each event has the state after the change: bytes_allocated (in use on the heap), bytes_reserved
    (outside the heap, such as the stack of a TPU program; *not* a pool like PyTorch's reserved
    memory) and bytes_available (the limit minus both). Memory in use is the sum of the first two;
    the file does not have the size of the pool.

    Args:
        assembler: Receives the rows.
        plane: A host plane.
        limits: Receives the largest limit of the allocators of each device, in bytes.
        first_device: The device of allocators that do not name one, -1 for the host.
        thread_of_line: The actual (thread, label) of a line's events, by line id.
    """
    names = plane.metadata.names
    is_event = np.array([bool(_EVENT.match(name)) for name in names])
    if not is_event.any():
        return
    frees = np.array([name == "MemoryDeallocation" for name in names])
    for batch in plane.events.in_batches(plane.lines):
        rows = np.flatnonzero(is_event[batch.row])
        if rows.size:
            tracks = np.full(len(batch), -1, dtype=np.int32)
            for line, place in batch.with_any(is_event[batch.row]):
                thread, label = thread_of_line.get(line.id, (line.id, line.name))
                tracks[place] = assembler.add_track(
                    TrackKind.HOST_THREAD, thread=thread, label=label
                )
            _add(assembler, batch, rows, frees[batch.row], first_device, limits, tracks)


def _add(
    assembler: Assembler,
    events: Events,
    rows: Int64,
    frees: NDArray[np.bool_],
    first_device: int,
    limits: dict[int, int],
    track: Int32,
) -> None:
    device = _devices(events, first_device)[rows]
    allocated = events.numbers("bytes_allocated")[rows]
    reserved = np.maximum(events.numbers("bytes_reserved")[rows], 0)
    available = events.numbers("bytes_available")[rows]
    size = np.maximum(events.numbers("allocation_bytes")[rows], 0)
    in_use = np.where(allocated >= 0, allocated + reserved, -1)
    is_limited = (allocated >= 0) & (available >= 0) & (in_use >= 0)
    limit = (in_use + available)[is_limited]
    for index, places in places_by_value(device[is_limited]):
        limits[index] = max(limits.get(index, 0), int(limit[places].max()))
    assembler.add_memory(
        events.start_ns[rows],
        device=device,
        allocated_bytes=in_use,
        bytes=np.where(frees[rows], -size, size),
        address=events.numbers("addr")[rows],
        track=track[rows],
    )


def _devices(events: Events, first_device: int) -> Int64:
    """The device of each event, from the allocator's name or the device index on the host."""
    index, names = events.texts("allocator_name")
    by_name = np.full(len(names) + 1, first_device, dtype=np.int64)
    for slot, name in enumerate(names):
        match = _DEVICE_ALLOCATOR.match(name)
        if match:
            by_name[slot] = int(match[1])
        elif _HOST_ALLOCATOR.match(name):
            by_name[slot] = -1
    on_host = events.numbers("index_on_host")
    is_numbered = (index < 0) & (on_host >= 0) & (on_host < 2**31)
    return np.where(is_numbered, on_host, by_name[index])
