"""Planes of GPUs: kernels, copies and allocations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kernels.collective_names import (
    collective_dtype,
    collective_operation,
    is_collective,
)
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels
from tb_perfadvisor.ingest.xspace.decode.events import Events, Line, Lines
from tb_perfadvisor.ingest.xspace.decode.space import Plane
from tb_perfadvisor.ingest.xspace.interpret.detail_texts import (
    CopyDetails,
    LaunchDetails,
    copy_direction,
    parse_copy,
    parse_launch,
)
from tb_perfadvisor.ingest.xspace.interpret.devices import add_derived_line, is_derived
from tb_perfadvisor.ingest.xspace.interpret.tpu_planes import HloColumns, HloOperations
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, CopyDirection, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.tables import Int32, Int64


class KernelNames(Struct, frozen=True):
    """Attributes of names; shape (n,) each."""

    family: NDArray[np.int64]
    precision: NDArray[np.int64]
    tensor_cores: NDArray[np.int64]
    is_collective: NDArray[np.bool_]
    collective: list[str]
    """The operation of each collective."""
    collective_dtype: list[str]
    is_copy: NDArray[np.bool_]
    is_memset: NDArray[np.bool_]
    direction: NDArray[np.int64]
    """The direction of a copy."""


_COPY: Final = regex(r"(?i)memcpy|__amd_rocclr_copy")
_MEMSET: Final = regex(r"(?i)memset|__amd_rocclr_fill")


def classify_names(names: list[str], ran: Int64) -> KernelNames:
    """Classify kernels by name.

    `names` are of all event kinds. `ran` has the rows of the kinds on streams; others are not
    kernels.
    """
    kernels = [names[row] for row in ran.tolist()]
    classes = classify_kernels(kernels)
    communicates = np.array([is_collective(name) for name in kernels], dtype=bool)
    collective, dtype_of = ["unknown"] * len(names), [""] * len(names)
    for row in ran[communicates].tolist():
        collective[row] = collective_operation(names[row])
        dtype_of[row] = collective_dtype(names[row])

    def column(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
        expanded = np.zeros(len(names), dtype=dtype)
        expanded[ran] = values
        return expanded

    return KernelNames(
        family=column(classes.family, np.int64),
        precision=column(classes.precision, np.int64),
        tensor_cores=column(classes.tensor_cores, np.int64),
        is_collective=column(communicates, bool),
        collective=collective,
        collective_dtype=dtype_of,
        is_copy=column(np.array([bool(_COPY.match(name)) for name in kernels]), bool),
        is_memset=column(np.array([bool(_MEMSET.match(name)) for name in kernels]), bool),
        direction=column(np.array([int(copy_direction(name)) for name in kernels]), np.int64),
    )


_STREAM: Final = regex(r"Stream #(\d{1,18})")


class StreamNames(Struct, frozen=True):
    """What the names of the event kinds of a plane say; shape (kinds,) each."""

    kernels: KernelNames
    string: Int32
    """Indices from `Assembler.intern`."""
    collective: Int32
    collective_dtype: Int32
    """-1 if unknown."""

    @classmethod
    def of(cls, assembler: Assembler, names: list[str], ran: Int64) -> StreamNames:
        """Classify the names of all event kinds; `ran` has the rows of those on streams."""
        kernels = classify_names(names, ran)
        has_dtype = np.array([*map(bool, kernels.collective_dtype)], dtype=bool)
        dtypes = assembler.intern_all(kernels.collective_dtype)
        return cls(
            kernels=kernels,
            string=assembler.intern_all(names),
            collective=assembler.intern_all(kernels.collective),
            collective_dtype=np.where(has_dtype, dtypes, np.int32(-1)),
        )


class ApiCopies:
    """The directions of the copies that host calls launched, by correlation."""

    def __init__(self) -> None:
        self._correlation = np.empty(0, dtype=np.int64)
        self._direction = np.empty(0, dtype=np.int64)

    def add(self, plane: Plane) -> None:
        """Add the copy calls of a host plane."""
        names = plane.metadata.names
        by_name = np.array([copy_direction(n) if _is_copy_call(n) else 0 for n in names])
        if not by_name.any():
            return
        correlations, directions = [self._correlation], [self._direction]
        for batch in plane.events.in_batches(plane.lines):
            direction = by_name[batch.row]
            rows = np.flatnonzero(direction)
            if rows.size:
                correlations.append(batch.numbers("correlation_id")[rows])
                directions.append(direction[rows])
        correlation, direction = np.concatenate(correlations), np.concatenate(directions)
        order = np.argsort(correlation, kind="stable")
        known = order[correlation[order] >= 0]
        self._correlation, self._direction = correlation[known], direction[known]

    def look_up(self, correlation: Int64) -> Int64:
        """The direction of each copy; 0 if unknown."""
        if not self._correlation.size:
            return np.zeros(correlation.shape, dtype=np.int64)
        slot = np.searchsorted(self._correlation, correlation)
        slot = np.minimum(slot, self._correlation.size - 1)
        is_known = self._correlation[slot] == correlation
        return np.where(is_known, self._direction[slot], CopyDirection.UNKNOWN)


def add_gpu_plane(
    assembler: Assembler,
    plane: Plane,
    device: int,
    copies: ApiCopies,
    table: HloOperations,
    *,
    is_known: bool,
) -> None:
    """Add the plane of a GPU or another accelerator with streams.

    `copies` has those that host calls launched. `table` receives the XLA operations that kernels
    execute. On an unknown device, all lines that are not known to be derived count as streams.
    """
    is_stream = [
        len(line) > 0 and bool(_STREAM.match(line.name) or not (is_known or is_derived(line.name)))
        for line in plane.lines
    ]
    names: StreamNames | None = None
    for is_work, group in groupby(zip(is_stream, plane.lines, strict=True), itemgetter(0)):
        lines = [line for _, line in group]
        if not is_work:
            for line in lines:
                add_derived_line(assembler, line, device)
            continue
        if names is None:
            ran = plane.events.row[plane.events.of_lines(is_stream)]
            names = StreamNames.of(assembler, plane.metadata.names, distinct(ran))
        for streams in plane.events.in_batches(lines):
            _add_streams(assembler, streams, device, names, copies, table)


def has_streams(plane: Plane) -> bool:
    """Whether a plane has stream lines."""
    return any(_STREAM.match(line.name) for line in plane.lines)


def _is_copy_call(name: str) -> bool:
    return "memcpy" in name.lower()


def _add_streams(
    assembler: Assembler,
    streams: Lines,
    device: int,
    names: StreamNames,
    copies: ApiCopies,
    table: HloOperations,
) -> None:
    kernels = names.kernels
    # Copies have `memcpy_details`, memsets `memset_details`, whatever their name is.
    is_copy = kernels.is_copy[streams.row] | streams.has("memcpy_details")
    is_memset = kernels.is_memset[streams.row] | streams.has("memset_details")
    kind = np.full(len(streams), EventKind.KERNEL, dtype=np.uint8)
    kind[kernels.is_collective[streams.row]] = EventKind.COLLECTIVE
    kind[is_copy] = EventKind.COPY
    kind[is_memset] = EventKind.MEMSET
    correlation = streams.numbers("correlation_id")
    tracks = [_track(assembler, line, device) for line in streams.lines]
    events = assembler.add_events(
        streams.start_ns,
        streams.duration_ns,
        kind=kind,
        name=names.string[streams.row],
        track=streams.of_lines(tracks),
        correlation=correlation,
    )
    operation = table.rows_of(streams)
    _add_kernels(assembler, streams, events, kind, kernels, table.select(operation))
    _add_copies(assembler, streams, events, kind, kernels, copies.look_up(correlation))
    _add_collectives(assembler, streams, events, kind, names)
    linked = np.flatnonzero(operation >= 0)
    assembler.add_hlo_events(events[linked], operation[linked])


def _track(assembler: Assembler, line: Line, device: int) -> int:
    match = _STREAM.match(line.name)
    return assembler.add_track(
        TrackKind.DEVICE_STREAM,
        thread=int(match[1]) if match else line.id,
        device=device,
        label=line.name,
    )


def _add_kernels(
    assembler: Assembler,
    streams: Lines,
    events: Int32,
    kind: NDArray[np.uint8],
    kernel_names: KernelNames,
    by_operation: HloColumns,
) -> None:
    rows = np.flatnonzero((kind == EventKind.KERNEL) | (kind == EventKind.COLLECTIVE))
    if not rows.size:
        return
    index, launches = _parsed(streams, "kernel_details", parse_launch, LaunchDetails())
    index = index[rows]

    def column(name: str) -> NDArray[Any]:
        return np.array([getattr(launch, name) for launch in launches])[index]

    occupancy = column("occupancy_share")
    stated = streams.floats("occupancy_pct")[rows] / 100
    is_stated = (stated > 0) & (stated <= 1)
    kernel = streams.row[rows]
    assembler.add_kernels(
        events[rows],
        # The kernel's name is more reliable than the operation, of which it may be a part.
        family=_first_known(kernel_names.family[kernel], by_operation.family[rows]),
        precision=_first_known(kernel_names.precision[kernel], by_operation.precision[rows]),
        tensor_cores=kernel_names.tensor_cores[kernel],
        grid_blocks=column("grid_blocks"),
        block_threads=column("block_threads"),
        registers=column("registers"),
        shared_memory_bytes=column("shared_memory_bytes"),
        occupancy_share=np.where(is_stated, stated, occupancy),
    )


def _add_collectives(
    assembler: Assembler,
    streams: Lines,
    events: Int32,
    kind: NDArray[np.uint8],
    names: StreamNames,
) -> None:
    rows = np.flatnonzero(kind == EventKind.COLLECTIVE)
    if not rows.size:
        return
    named = streams.row[rows]
    assembler.add_collectives(
        events[rows], operation=names.collective[named], dtype=names.collective_dtype[named]
    )


def _first_known(first: Int64, second: Int64) -> Int64:
    """The first value, or the second if the first is 0 (`OTHER` or `UNKNOWN`)."""
    return np.where(first != 0, first, second)


def _add_copies(
    assembler: Assembler,
    streams: Lines,
    events: Int32,
    kind: NDArray[np.uint8],
    kernel_names: KernelNames,
    by_call: Int64,
) -> None:
    rows = np.flatnonzero(kind == EventKind.COPY)
    if not rows.size:
        return
    index, details = _parsed(streams, "memcpy_details", parse_copy, CopyDetails())
    index = index[rows]
    by_name = kernel_names.direction[streams.row[rows]]
    by_line = streams.of_lines([copy_direction(line.name) for line in streams.lines])
    direction = np.array([int(detail.direction) for detail in details])[index]
    # In order of reliability; a stream's label only tells what most of its copies are.
    for source in (by_name, by_call[rows], by_line[rows]):
        direction = np.where(direction == CopyDirection.UNKNOWN, source, direction)
    assembler.add_copies(
        events[rows],
        direction=direction,
        size_bytes=np.array([detail.size_bytes for detail in details])[index],
        pageable=np.array([detail.pageable for detail in details])[index],
    )


def _parsed(
    streams: Lines, stat: str, parse: Callable[[str], Any], unknown: Any
) -> tuple[Int64, list[Any]]:
    """Parse each distinct text of a stat; events without the stat get the last entry."""
    index, texts = streams.texts(stat)
    return index, [*(parse(text) for text in texts), unknown]


_EVENT: Final = regex(r"Memory(Allocation|Deallocation)$")
_DEVICE_ALLOCATOR: Final = regex(r"(?:GPU|TPU|gpu|tpu)_(\d{1,9})_")
_HOST_ALLOCATOR: Final = regex(r"(?i).*(host|cpu|mkl)")


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

    `limits` receives the largest limit of the allocators of each device, in bytes. Allocators that
    do not name a device are of `first_device`, -1 for the host. `thread_of_line` has the actual
    (thread, label) of a line's events, by line id.
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
