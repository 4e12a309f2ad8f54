"""Interprets TPU planes: the op line of a core is real work, all other lines cover it."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Line
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.ingest.xspace.interpret.derived_lines import add_derived_line
from tb_perfadvisor.ingest.xspace.interpret.device_clock import on_device_clock
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import Operation
from tb_perfadvisor.ingest.xspace.interpret.run_links import HostRuns
from tb_perfadvisor.ingest.xspace.interpret.tpu_operations import TpuOperations, interned
from tb_perfadvisor.trace import Assembler, EventKind, TrackKind
from tb_perfadvisor.trace.id_index import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

_PROGRAM: Final = re.compile(r".*\((\d{1,20})\)$")


def add_tpu_plane(
    assembler: Assembler,
    plane: Plane,
    device: int,
    operations: TpuOperations,
    runs: HostRuns,
    *,
    is_core: bool,
) -> ClockChanges:
    """Add the plane of a TPU.

    Args:
        assembler: Receives the events.
        plane: The plane.
        device: The device's index.
        operations: The operations of the planes added before.
        runs: Launches of runs by the host.
        is_core: False for planes of a part of the chip (SparseCore), which overlap the core: they
            are shown but do not count as busy.

    Returns:
        How its times were changed.
    """
    lines, is_moved = on_device_clock(plane)
    modules = next((line for line in lines if line.name == "XLA Modules" and len(line)), None)
    launches: Int64 = np.empty(0, dtype=np.int64)
    shift_ns = 0
    if modules is not None:
        launches = runs.launch_numbers(modules, device)
        shift_ns = runs.clock_shift_ns(modules, launches)
        if shift_ns:
            lines = tuple(replace(line, start_ns=line.start_ns + shift_ns) for line in lines)
            modules = next(line for line in lines if line.name == "XLA Modules" and len(line))
    for line in lines:
        if is_core and line.name == "XLA Ops" and len(line):
            _add_operations(assembler, line, modules, launches, device, operations)
        else:
            add_derived_line(assembler, line, device, launches if line is modules else -1)
    return ClockChanges(is_moved, shift_ns)


class ClockChanges(Struct, frozen=True):
    """How the times of a device were changed."""

    is_by_counter: bool
    """Whether they were replaced by those of the device's counter."""
    shift_ns: int
    """By how much all were moved to agree with the host."""


def has_operations(plane: Plane) -> bool:
    """Whether a plane has a line of XLA operations."""
    return any(line.name == "XLA Ops" and len(line) for line in plane.lines)


def _add_operations(
    assembler: Assembler,
    line: Line,
    modules: Line | None,
    launches: Int64,
    device: int,
    known: TpuOperations,
) -> None:
    used = distinct(line.row)
    inverse = IdIndex(used).rows(line.row)
    time_ns = np.bincount(inverse, weights=line.duration_ns).astype(np.int64)
    operations, hlo = known.look_up(line.metadata, used.tolist(), time_ns, _program_names(modules))
    kind = np.array([operation.kind for operation in operations], dtype=np.uint8)[inverse]
    is_container = np.array([operation.is_container for operation in operations])[inverse]
    # The body of a loop is recorded inside it. Counting the loop as busy would hide waits inside.
    if is_container.any():
        kind[is_container & _encloses_next(line)] = EventKind.DEVICE_ANNOTATION
    names = [operation.name for operation in operations]
    track = assembler.add_track(
        TrackKind.DEVICE_STREAM, thread=line.id, device=device, label=line.name
    )
    events = assembler.add_events(
        line.start_ns,
        line.duration_ns,
        kind=kind,
        name=assembler.intern_all(names)[inverse],
        track=track,
        correlation=_launch_of_operations(line, modules, launches),
    )
    _add_attributes(assembler, events, kind, inverse, operations)
    assembler.add_hlo_events(events, hlo[inverse])


def _add_attributes(
    assembler: Assembler,
    events: Int32,
    kind: NDArray[np.uint8],
    inverse: Int32,
    operations: list[Operation],
) -> None:
    is_kernel = kind == EventKind.KERNEL
    of_kernel = inverse[is_kernel]
    assembler.add_kernels(
        events[is_kernel],
        family=_column(operations, "family", np.uint8)[of_kernel],
        precision=_column(operations, "precision", np.uint8)[of_kernel],
    )
    is_copy = kind == EventKind.COPY
    of_copy = inverse[is_copy]
    assembler.add_copies(
        events[is_copy],
        direction=_column(operations, "copy_direction", np.uint8)[of_copy],
        size_bytes=_column(operations, "copy_bytes")[of_copy],
    )
    is_collective = kind == EventKind.COLLECTIVE
    of_collective = inverse[is_collective]
    assembler.add_collectives(
        events[is_collective],
        operation=assembler.intern_all(
            [operation.collective or "unknown" for operation in operations]
        )[of_collective],
        size_bytes=_column(operations, "collective_bytes")[of_collective],
        dtype=interned(assembler, (operation.collective_dtype for operation in operations))[
            of_collective
        ],
        group_size=_column(operations, "group_size")[of_collective],
        neighbors=_column(operations, "neighbors")[of_collective],
        description=interned(assembler, (operation.group_names for operation in operations))[
            of_collective
        ],
        ranks=interned(assembler, (operation.group_members for operation in operations))[
            of_collective
        ],
    )


def _column(operations: list[Operation], name: str, dtype: Any = np.int64) -> NDArray[Any]:
    """An attribute of each operation, in the type of the table's column to save memory."""
    return np.array([int(getattr(operation, name)) for operation in operations], dtype=dtype)


def _program_names(modules: Line | None) -> dict[int, str]:
    """The names of modules (`jit_f(12190760917235803885)`) by program id."""
    if modules is None:
        return {}
    used = {modules.names[row] for row in distinct(modules.row).tolist()}
    return {int(match[1]): name for name in used if (match := _PROGRAM.match(name))}


def _launch_of_operations(line: Line, modules: Line | None, launches: Int64) -> Int64:
    """The launch of each operation: the call that launched its module."""
    if modules is None or not len(modules):
        return np.full(len(line), -1, dtype=np.int64)
    order = np.argsort(modules.start_ns, kind="stable")
    start = modules.start_ns[order]
    end = (modules.start_ns + modules.duration_ns)[order]
    slot = last_before(start, line.start_ns)
    is_inside = (slot >= 0) & (line.start_ns <= end[np.maximum(slot, 0)])
    return np.where(is_inside, launches[order][np.maximum(slot, 0)], -1)


def _encloses_next(line: Line) -> NDArray[np.bool_]:
    """Which events enclose the next event."""
    end = line.start_ns + line.duration_ns
    order = np.lexsort((-line.duration_ns, line.start_ns))
    encloses = np.zeros(len(line), dtype=bool)
    before, after = order[:-1], order[1:]
    encloses[before] = (line.start_ns[after] < end[before]) & (end[after] <= end[before])
    return encloses
