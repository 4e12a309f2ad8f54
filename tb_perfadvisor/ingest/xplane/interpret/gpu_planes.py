"""Interprets GPU planes: streams are real work, all other lines are derived from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane.decode.planes import Line, Plane
from tb_perfadvisor.ingest.xplane.interpret.derived_lines import add_derived_line, is_derived
from tb_perfadvisor.ingest.xplane.interpret.detail_texts import (
    CopyDetails,
    LaunchDetails,
    copy_direction,
    parse_copy,
    parse_launch,
)
from tb_perfadvisor.ingest.xplane.interpret.hlo_operations import HloColumns, HloOperations
from tb_perfadvisor.ingest.xplane.interpret.kernel_names import KernelNames, classify_names
from tb_perfadvisor.trace import Assembler, CopyDirection, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64

_STREAM: Final = re.compile(r"Stream #(\d{1,18})")


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
        for line in plane.lines:
            direction = by_name[line.row]
            rows = np.flatnonzero(direction)
            if rows.size:
                correlations.append(line.numbers("correlation_id")[rows])
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
    is_known: bool = True,
) -> None:
    """Add the plane of a GPU or another accelerator with streams.

    Args:
        assembler: Receives the events.
        plane: The plane.
        device: The device's index.
        copies: The copies that host calls launched.
        table: Receives the XLA operations that kernels execute.
        is_known: False for an unknown device: all lines that are not known to be derived count as
            streams.
    """
    is_stream = [
        len(line) > 0 and bool(_STREAM.match(line.name) or not (is_known or is_derived(line.name)))
        for line in plane.lines
    ]
    ran = [
        distinct(line.row) for line, is_work in zip(plane.lines, is_stream, strict=True) if is_work
    ]
    kernel_names = (
        classify_names(plane.metadata.names, distinct(np.concatenate(ran))) if ran else None
    )
    for line, is_work in zip(plane.lines, is_stream, strict=True):
        if is_work and kernel_names is not None:
            _add_stream(assembler, line, device, kernel_names, copies, table)
        else:
            add_derived_line(assembler, line, device)


def has_streams(plane: Plane) -> bool:
    """Whether a plane has stream lines."""
    return any(_STREAM.match(line.name) for line in plane.lines)


def _is_copy_call(name: str) -> bool:
    return "memcpy" in name.lower()


def _add_stream(
    assembler: Assembler,
    line: Line,
    device: int,
    kernel_names: KernelNames,
    copies: ApiCopies,
    table: HloOperations,
) -> None:
    names = line.names
    # Copies have `memcpy_details`, memsets `memset_details`, whatever their name is.
    is_copy = kernel_names.is_copy[line.row] | line.has("memcpy_details")
    is_memset = kernel_names.is_memset[line.row] | line.has("memset_details")
    kind = np.full(len(line), EventKind.KERNEL, dtype=np.uint8)
    kind[kernel_names.is_collective[line.row]] = EventKind.COLLECTIVE
    kind[is_copy] = EventKind.COPY
    kind[is_memset] = EventKind.MEMSET
    correlation = line.numbers("correlation_id")
    match = _STREAM.match(line.name)
    track = assembler.add_track(
        TrackKind.DEVICE_STREAM,
        thread=int(match[1]) if match else line.id,
        device=device,
        label=line.name,
    )
    events = assembler.add_events(
        line.start_ns,
        line.duration_ns,
        kind=kind,
        name=assembler.intern_all(names)[line.row],
        track=track,
        correlation=correlation,
    )
    operation = table.rows_of(line)
    _add_kernels(assembler, line, events, kind, kernel_names, table.select(operation))
    _add_copies(assembler, line, events, kind, kernel_names, copies.look_up(correlation))
    _add_collectives(assembler, line, events, kind, kernel_names)
    linked = np.flatnonzero(operation >= 0)
    assembler.add_hlo_events(events[linked], operation[linked])


def _add_kernels(
    assembler: Assembler,
    line: Line,
    events: Int32,
    kind: NDArray[np.uint8],
    kernel_names: KernelNames,
    by_operation: HloColumns,
) -> None:
    rows = np.flatnonzero((kind == EventKind.KERNEL) | (kind == EventKind.COLLECTIVE))
    if not rows.size:
        return
    index, launches = _parsed(line, "kernel_details", parse_launch, LaunchDetails())
    index = index[rows]

    def column(name: str) -> NDArray[Any]:
        return np.array([getattr(launch, name) for launch in launches])[index]

    occupancy = column("occupancy_share")
    stated = line.floats("occupancy_pct")[rows] / 100
    is_stated = (stated > 0) & (stated <= 1)
    kernel = line.row[rows]
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
    line: Line,
    events: Int32,
    kind: NDArray[np.uint8],
    kernel_names: KernelNames,
) -> None:
    rows = np.flatnonzero(kind == EventKind.COLLECTIVE)
    if not rows.size:
        return
    named = line.row[rows]
    has_dtype = np.array([*map(bool, kernel_names.collective_dtype)], dtype=bool)[named]
    assembler.add_collectives(
        events[rows],
        operation=assembler.intern_all(kernel_names.collective)[named],
        dtype=np.where(has_dtype, assembler.intern_all(kernel_names.collective_dtype)[named], -1),
    )


def _first_known(first: Int64, second: Int64) -> Int64:
    """The first value, or the second if the first is 0 (`OTHER` or `UNKNOWN`)."""
    return np.where(first != 0, first, second)


def _add_copies(
    assembler: Assembler,
    line: Line,
    events: Int32,
    kind: NDArray[np.uint8],
    kernel_names: KernelNames,
    by_call: Int64,
) -> None:
    rows = np.flatnonzero(kind == EventKind.COPY)
    if not rows.size:
        return
    index, details = _parsed(line, "memcpy_details", parse_copy, CopyDetails())
    index = index[rows]
    by_name = kernel_names.direction[line.row[rows]]
    by_line = copy_direction(line.name)
    direction = np.array([int(detail.direction) for detail in details])[index]
    # In order of reliability; a stream's label only tells what most of its copies are.
    for source in (by_name, by_call[rows], np.full(rows.size, by_line)):
        direction = np.where(direction == CopyDirection.UNKNOWN, source, direction)
    assembler.add_copies(
        events[rows],
        direction=direction,
        size_bytes=np.array([detail.size_bytes for detail in details])[index],
        pageable=np.array([detail.pageable for detail in details])[index],
    )


def _parsed(
    line: Line, stat: str, parse: Callable[[str], Any], unknown: Any
) -> tuple[Int64, list[Any]]:
    """Parse each distinct text of a stat; events without the stat get the last entry."""
    index, texts = line.texts(stat)
    return index, [*(parse(text) for text in texts), unknown]
