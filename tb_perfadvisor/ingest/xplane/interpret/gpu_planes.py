"""GPU planes: stream lines are real work; everything else is derived from them."""

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
from tb_perfadvisor.ingest.xplane.interpret.kernel_names import KernelNames, judge_names
from tb_perfadvisor.trace import Assembler, CopyDirection, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64

_STREAM: Final = re.compile(r"Stream #(\d{1,18})")


class ApiCopies:
    """The copies that host calls asked for: their direction by correlation."""

    def __init__(self) -> None:
        """Start empty."""
        self._correlation = np.empty(0, dtype=np.int64)
        self._direction = np.empty(0, dtype=np.int64)

    def add(self, plane: Plane) -> None:
        """Collect the copy calls of a host plane."""
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
        """The direction of each copy; 0 is unknown."""
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
    """Add a GPU's plane, or that of another accelerator with streams.

    Args:
        assembler: Receives the events.
        plane: The plane.
        device: The device's index.
        copies: What the host's calls tell of copies.
        table: Receives the XLA operations that kernels carry out.
        is_known: False for a device whose lines nobody has described: those that are not known
            to be derived are taken for streams.
    """
    is_stream = [
        len(line) > 0 and bool(_STREAM.match(line.name) or not (is_known or is_derived(line.name)))
        for line in plane.lines
    ]
    ran = [distinct(line.row) for line, works in zip(plane.lines, is_stream, strict=True) if works]
    judged = judge_names(plane.metadata.names, distinct(np.concatenate(ran))) if ran else None
    for line, works in zip(plane.lines, is_stream, strict=True):
        if works and judged is not None:
            _add_stream(assembler, line, device, judged, copies, table)
        else:
            add_derived_line(assembler, line, device)


def has_streams(plane: Plane) -> bool:
    """Whether a plane has lines that are called streams."""
    return any(_STREAM.match(line.name) for line in plane.lines)


def _is_copy_call(name: str) -> bool:
    return "memcpy" in name.lower()


def _add_stream(
    assembler: Assembler,
    line: Line,
    device: int,
    judged: KernelNames,
    copies: ApiCopies,
    table: HloOperations,
) -> None:
    names = line.names
    # Copies carry `memcpy_details` whatever their name is, memsets `memset_details`.
    is_copy = judged.is_copy[line.row] | line.has("memcpy_details")
    is_memset = judged.is_memset[line.row] | line.has("memset_details")
    kind = np.full(len(line), EventKind.KERNEL, dtype=np.uint8)
    kind[judged.is_collective[line.row]] = EventKind.COLLECTIVE
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
    _add_kernels(assembler, line, events, kind, judged, table.select(operation))
    _add_copies(assembler, line, events, kind, judged, copies.look_up(correlation))
    is_collective = kind == EventKind.COLLECTIVE
    named = line.row[is_collective]
    has_dtype = np.array([*map(bool, judged.collective_dtype)], dtype=bool)[named]
    assembler.add_collectives(
        events[is_collective],
        operation=assembler.intern_all(judged.collective)[named],
        dtype=np.where(has_dtype, assembler.intern_all(judged.collective_dtype)[named], -1),
    )
    linked = np.flatnonzero(operation >= 0)
    assembler.add_hlo_events(events[linked], operation[linked])


def _add_kernels(
    assembler: Assembler,
    line: Line,
    events: Int32,
    kind: NDArray[np.uint8],
    judged: KernelNames,
    by_operation: HloColumns,
) -> None:
    rows = np.flatnonzero((kind == EventKind.KERNEL) | (kind == EventKind.COLLECTIVE))
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
        # A kernel's own name is surer than the operation, of which it may be a part.
        family=_first_known(judged.family[kernel], by_operation.family[rows]),
        precision=_first_known(judged.precision[kernel], by_operation.precision[rows]),
        tensor_cores=judged.tensor_cores[kernel],
        grid_blocks=column("grid_blocks"),
        block_threads=column("block_threads"),
        registers=column("registers"),
        shared_memory_bytes=column("shared_memory_bytes"),
        occupancy_share=np.where(is_stated, stated, occupancy),
    )


def _first_known(first: Int64, second: Int64) -> Int64:
    """0 is `OTHER` or `UNKNOWN`."""
    return np.where(first != 0, first, second)


def _add_copies(
    assembler: Assembler,
    line: Line,
    events: Int32,
    kind: NDArray[np.uint8],
    judged: KernelNames,
    by_call: Int64,
) -> None:
    rows = np.flatnonzero(kind == EventKind.COPY)
    if not rows.size:
        return
    index, details = _parsed(line, "memcpy_details", parse_copy, CopyDetails())
    index = index[rows]
    by_name = judged.direction[line.row[rows]]
    by_line = copy_direction(line.name)
    direction = np.array([int(detail.direction) for detail in details])[index]
    # From the surest to the vaguest; a stream's label names only what most of it is.
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
    """A text stat parsed once per distinct text; events without one get the last entry."""
    index, texts = line.texts(stat)
    return index, [*(parse(text) for text in texts), unknown]
