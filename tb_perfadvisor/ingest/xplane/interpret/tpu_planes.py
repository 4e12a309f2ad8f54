"""Interprets TPU planes: the op line of a core is real work, all other lines cover it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane.decode.metadata import Metadata, Value
from tb_perfadvisor.ingest.xplane.decode.planes import Line, Plane
from tb_perfadvisor.ingest.xplane.interpret.derived_lines import add_derived_line, launch_numbers
from tb_perfadvisor.ingest.xplane.interpret.device_clock import on_device_clock
from tb_perfadvisor.ingest.xplane.interpret.hlo_text import Operation, parse_operation
from tb_perfadvisor.trace import Assembler, EventKind, TrackKind
from tb_perfadvisor.trace.id_index import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

# Stats of event kinds that describe operations.
_STATS: Final = ("hlo_category", "tf_op", "flops", "bytes_accessed", "source")
_PROGRAM: Final = re.compile(r".*\((\d{1,20})\)$")


class TpuOperations:
    """Parses each operation and adds it to the trace once; cores share operations."""

    def __init__(self, assembler: Assembler) -> None:
        """Create an empty collection.

        Args:
            assembler: Receives the operations.
        """
        self._assembler = assembler
        self._parsed: dict[tuple[Any, ...], tuple[Operation, _Facts]] = {}
        self._rows: dict[tuple[str, str], int] = {}

    def look_up(
        self, metadata: Metadata, rows: list[int], programs: dict[int, str]
    ) -> tuple[list[Operation], Int64]:
        """The operations of event kinds.

        Args:
            metadata: The event kinds of a plane.
            rows: The kinds to look up.
            programs: Names of modules by program id.

        Returns:
            The operations, and their rows in the trace's HLO table.
        """
        module = {
            row: programs.get(int(number) % 2**64, str(int(number) % 2**64))
            for row, number in metadata.values("program_id").items()
            if isinstance(number, int)
        }
        stats = [metadata.values(stat) for stat in _STATS]
        pairs = []
        for row in rows:
            # All cores of a program list the same operations.
            key = (
                _text_of(metadata, row),
                metadata.displays[row],
                module.get(row, ""),
                *(values.get(row) for values in stats),
            )
            known = self._parsed.get(key)
            if known is None:
                known = self._parsed[key] = _parse(key)
            pairs.append(known)
        operations, facts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return operations, self._rows_of(operations, facts)

    def _rows_of(self, operations: list[Operation], facts: list[_Facts]) -> Int64:
        keys = [
            (fact.module, fact.text or operation.name)
            for operation, fact in zip(operations, facts, strict=True)
        ]
        new = {
            key: (operation, fact)
            for key, operation, fact in zip(keys, operations, facts, strict=True)
            if key not in self._rows
        }
        if new:
            self._rows.update(zip(new, self._add(list(new.values())), strict=True))
        return np.array([self._rows[key] for key in keys], dtype=np.int64)

    def _add(self, new: list[tuple[Operation, _Facts]]) -> list[int]:
        operations, facts = zip(*new, strict=True)
        rows: list[int] = self._assembler.add_hlo(
            _interned(self._assembler, (operation.name for operation in operations)),
            category=_interned(self._assembler, (operation.category for operation in operations)),
            module=_interned(self._assembler, (fact.module for fact in facts)),
            text=_interned(self._assembler, (fact.text for fact in facts)),
            flop=[fact.flop for fact in facts],
            traffic_bytes=[fact.traffic_bytes for fact in facts],
            source_line=_interned(self._assembler, (fact.source for fact in facts)),
            path=_interned(self._assembler, (fact.path for fact in facts)),
        ).tolist()
        return rows


def _parse(key: tuple[Any, ...]) -> tuple[Operation, _Facts]:
    text, name, module, category, path, flop, traffic_bytes, source = key
    facts = _Facts(
        module=module,
        text=text if " = " in text else "",
        flop=_amount(flop),
        traffic_bytes=_amount(traffic_bytes),
        source=_text(source),
        path=_text(path),
    )
    return parse_operation(text, name=name, category=_text(category), path=_text(path)), facts


def add_tpu_plane(
    assembler: Assembler,
    plane: Plane,
    device: int,
    operations: TpuOperations,
    *,
    is_core: bool,
) -> bool:
    """Add the plane of a TPU.

    Args:
        assembler: Receives the events.
        plane: The plane.
        device: The device's index.
        operations: The operations of the planes added before.
        is_core: False for planes of a part of the chip (SparseCore), which overlap the core: they
            are shown but do not count as busy.

    Returns:
        Whether its times were replaced by those of the device's clock.
    """
    lines, is_moved = on_device_clock(plane)
    modules = next((line for line in lines if line.name == "XLA Modules"), None)
    for line in lines:
        if is_core and line.name == "XLA Ops" and len(line):
            _add_operations(assembler, line, modules, device, operations)
        else:
            add_derived_line(assembler, line, device)
    return is_moved


def has_operations(plane: Plane) -> bool:
    """Whether a plane has a line of XLA operations."""
    return any(line.name == "XLA Ops" and len(line) for line in plane.lines)


def _add_operations(
    assembler: Assembler, line: Line, modules: Line | None, device: int, known: TpuOperations
) -> None:
    used = distinct(line.row)
    inverse = IdIndex(used).rows(line.row)
    operations, hlo = known.look_up(line.metadata, used.tolist(), _program_names(modules))
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
        correlation=_launch_of_operations(line, modules),
    )
    _add_attributes(assembler, events, kind, inverse, operations)
    assembler.add_hlo_events(events, hlo[inverse])


class _Facts(Struct, frozen=True):
    """What the stats of an operation say."""

    module: str
    text: str
    flop: float
    traffic_bytes: float
    source: str
    path: str


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
        dtype=_interned(assembler, (operation.collective_dtype for operation in operations))[
            of_collective
        ],
        group_size=_column(operations, "group_size")[of_collective],
    )


def _column(operations: list[Operation], name: str, dtype: Any = np.int64) -> NDArray[Any]:
    """An attribute of each operation, in the type of the table's column to save memory."""
    return np.array([int(getattr(operation, name)) for operation in operations], dtype=dtype)


def _interned(assembler: Assembler, texts: Iterable[str]) -> NDArray[np.int32]:
    """String indices; -1 for empty strings."""
    return np.array([assembler.intern(text) if text else -1 for text in texts], dtype=np.int32)


def _program_names(modules: Line | None) -> dict[int, str]:
    """The names of modules (`jit_f(12190760917235803885)`) by program id."""
    if modules is None:
        return {}
    used = {modules.names[row] for row in distinct(modules.row).tolist()}
    return {int(match[1]): name for name in used if (match := _PROGRAM.match(name))}


def _launch_of_operations(line: Line, modules: Line | None) -> Int64:
    """The launch of each operation: the call that launched its module."""
    if modules is None or not len(modules):
        return np.full(len(line), -1, dtype=np.int64)
    order = np.argsort(modules.start_ns, kind="stable")
    start = modules.start_ns[order]
    end = (modules.start_ns + modules.duration_ns)[order]
    slot = last_before(start, line.start_ns)
    is_inside = (slot >= 0) & (line.start_ns <= end[np.maximum(slot, 0)])
    return np.where(is_inside, launch_numbers(modules)[order][np.maximum(slot, 0)], -1)


def _encloses_next(line: Line) -> NDArray[np.bool_]:
    """Which events enclose the next event."""
    end = line.start_ns + line.duration_ns
    order = np.lexsort((-line.duration_ns, line.start_ns))
    encloses = np.zeros(len(line), dtype=bool)
    before, after = order[:-1], order[1:]
    encloses[before] = (line.start_ns[after] < end[before]) & (end[after] <= end[before])
    return encloses


def _text_of(metadata: Metadata, row: int) -> str:
    name = metadata.names[row]
    if " = " in name:
        return name
    long_name = _text(metadata.values("long_name").get(row))
    if " = " in long_name:
        return long_name
    shape = _text(metadata.values("shape_with_layout").get(row))
    return f"%{name} = {shape}" if shape else name


def _text(value: Value | None) -> str:
    return value if isinstance(value, str) else ""


def _amount(value: Value | None) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 2**63 else np.nan
