"""Planes of TPUs, and the operations of their programs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Events, Line
from tb_perfadvisor.ingest.xspace.decode.space import Plane
from tb_perfadvisor.ingest.xspace.decode.stats import Metadata, Value
from tb_perfadvisor.ingest.xspace.interpret.devices import add_derived_line, on_device_clock
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import (
    FusedOperations,
    device_memory_bytes,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import Operation, parse_operation
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import ITEMS_OF_OPERATION, Programs
from tb_perfadvisor.ingest.xspace.interpret.run_links import HostRuns
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind, KernelFamily, Precision, TrackKind
from tb_perfadvisor.trace.columns import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

# Stats of event kinds that describe operations.
_STATS: Final = (
    *("hlo_category", "tf_op", "flops", "bytes_accessed", "source"),
    "memory_access_breakdown",
)
# Look into the operations that take this share of a core's time, the costliest first. The others
# are too many and too short to matter to any advice.
_INSPECTED_SHARE: Final = 0.99
_MAX_INSPECTED: Final = 500


# No operation on single elements computes as many FLOP for each byte.
_PRODUCT_INTENSITY: Final = 32
_LAST_OPERAND: Final = regex(r"%([\w.\-]+)\)(?:,|$)")


class _Facts(Struct, frozen=True):
    """What the stats of an operation say, and its program."""

    module: str
    text: str
    flop: float
    traffic_bytes: float
    source: str
    path: str
    inside: FusedOperations | None = None
    is_transposed: bool | None = None
    is_known_before_loop: bool | None = None


class TpuOperations:
    """Parses each operation and adds it to the trace once; cores share operations."""

    def __init__(self, assembler: Assembler, programs: Programs) -> None:
        """Create an empty collection; the profile's programs show what is inside fusions."""
        self._assembler = assembler
        self._programs = programs
        self._parsed: dict[tuple[Any, ...], tuple[Operation, _Facts]] = {}
        self._rows: dict[tuple[str, str], int] = {}

    def look_up(
        self, metadata: Metadata, rows: list[int], time_ns: Int64, programs: dict[int, str]
    ) -> tuple[list[Operation], Int64]:
        """The operations of event kinds.

        `rows` are the kinds to look up, and `time_ns` is what each of them takes in the plane.
        `programs` has names of modules by program id. Returns the operations, and their rows in the
        trace's HLO table.
        """
        module = {
            row: programs.get(int(number) % 2**64, str(int(number) % 2**64))
            for row, number in metadata.values("program_id").items()
            if isinstance(number, int)
        }
        keys = zip(
            [_text_of(metadata, row) for row in rows],
            [metadata.displays[row] for row in rows],
            [module.get(row, "") for row in rows],
            *(map(metadata.values(stat).get, rows) for stat in _STATS),
            strict=True,
        )
        pairs = []
        # All cores of a program list the same operations.
        for key, is_costly in zip(keys, _is_costly(time_ns).tolist(), strict=True):
            known = self._parsed.get(key)
            if known is None:
                known = self._parsed[key] = self._parse(key, is_costly=is_costly)
            pairs.append(known)
        operations, facts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return _with_groups_of_starts(operations, facts), self._rows_of(operations, facts)

    def _parse(self, key: tuple[Any, ...], *, is_costly: bool) -> tuple[Operation, _Facts]:
        self._programs.budget.keep(ITEMS_OF_OPERATION)
        text, name, module, category, path, flop, traffic_bytes, source, accesses = key
        facts = _Facts(
            module=module,
            text=text if " = " in text else "",
            flop=_amount(flop),
            traffic_bytes=_amount(traffic_bytes),
            source=_text(source),
            path=_text(path),
        )
        operation = parse_operation(text, name=name, category=_text(category), path=_text(path))
        in_memory = device_memory_bytes(accesses) if isinstance(accesses, bytes) else None
        if in_memory is not None:
            facts = replace(facts, traffic_bytes=float(in_memory))
        elif operation.memory_bytes >= 0:
            # Stated bytes include those of arrays on the chip.
            facts = replace(facts, traffic_bytes=min(facts.traffic_bytes, operation.memory_bytes))
        if is_costly and operation.opcode == "fusion":
            facts = replace(facts, inside=self._programs.look_inside(module, operation.name))
        if is_costly and operation.opcode == "copy":
            is_transposed = self._programs.is_transposed(module, operation.name)
            facts = replace(facts, is_transposed=is_transposed)
        if is_costly:
            is_known = self._programs.is_known_before_loop(module, operation.name)
            facts = replace(facts, is_known_before_loop=is_known)
        return replace(
            operation, precision=_precision(operation, facts), family=_family(operation, facts)
        ), facts

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
        insides = [fact.inside for fact in facts]
        rows: list[int] = self._assembler.add_hlo(
            interned(self._assembler, (operation.name for operation in operations)),
            category=interned(self._assembler, (operation.category for operation in operations)),
            module=interned(self._assembler, (fact.module for fact in facts)),
            text=interned(self._assembler, (fact.text for fact in facts)),
            flop=[fact.flop for fact in facts],
            traffic_bytes=[fact.traffic_bytes for fact in facts],
            source_line=interned(self._assembler, (fact.source for fact in facts)),
            path=interned(self._assembler, (fact.path for fact in facts)),
            inside_opcodes=interned(self._assembler, (i.opcodes if i else "" for i in insides)),
            inside_paths=interned(self._assembler, (i.paths if i else "" for i in insides)),
            product=interned(self._assembler, (i.product if i else "" for i in insides)),
            inside_elements=[i.elements if i else -1 for i in insides],
            transposed=[_answer(fact.is_transposed) for fact in facts],
            before_loop=[_answer(fact.is_known_before_loop) for fact in facts],
        ).tolist()
        return rows


def _with_groups_of_starts(operations: list[Operation], facts: list[_Facts]) -> list[Operation]:
    """Give each done half of a collective the group of its start, which alone has it."""
    starts = {
        (fact.module, operation.name): operation
        for operation, fact in zip(operations, facts, strict=True)
        if operation.collective and operation.group_size > 0
    }
    found = []
    for operation, fact in zip(operations, facts, strict=True):
        names = _LAST_OPERAND.search(fact.text) if operation.opcode.endswith("-done") else None
        start = starts.get((fact.module, names[1])) if names else None
        if operation.collective and operation.group_size < 0 and start is not None:
            found.append(
                replace(
                    operation,
                    group_size=start.group_size,
                    neighbors=start.neighbors,
                    group_names=start.group_names,
                    group_members=start.group_members,
                )
            )
        else:
            found.append(operation)
    return found


def interned(assembler: Assembler, texts: Iterable[str]) -> NDArray[np.int32]:
    """String indices; -1 for empty strings."""
    return np.array([assembler.intern(text) if text else -1 for text in texts], dtype=np.int32)


def _answer(is_true: bool | None) -> int:
    """1, 0, or -1 if unknown."""
    return -1 if is_true is None else int(is_true)


def _is_costly(time_ns: Int64) -> NDArray[np.bool_]:
    """Which operations are the costliest, by the time that each takes."""
    order = np.argsort(-time_ns, kind="stable")
    before_ns = np.cumsum(time_ns[order]) - time_ns[order]
    chosen = order[before_ns < _INSPECTED_SHARE * time_ns.sum()][:_MAX_INSPECTED]
    is_costly = np.zeros(len(time_ns), dtype=bool)
    is_costly[chosen] = True
    return is_costly


def _precision(operation: Operation, facts: _Facts) -> Precision:
    """The type that an operation computes in, by the product inside it.

    By default, a TPU rounds 32-bit factors to bfloat16 and multiplies once. `precision=high` and
    `highest` multiply three and six times, which reaches 32 bits (source: JAX documentation,
    "jax.lax.Precision").
    """
    inside = facts.inside
    product = inside.product if inside is not None else ""
    precision = parse_operation(product).precision if product else operation.precision
    is_product = bool(product) or operation.opcode in ("dot", "convolution")
    if precision != Precision.BITS_32 or not (is_product or "convolution" in operation.category):
        return precision
    if not is_product:
        return Precision.UNKNOWN
    is_default = "operand_precision={" not in (product or facts.text)
    return Precision.BITS_16 if is_default else precision


def _family(operation: Operation, facts: _Facts) -> KernelFamily:
    """What an operation computes, by its work where its text does not tell.

    A megacore fusion splits other fusions over the two cores of a chip.
    """
    if operation.category != "megacore fusion" or operation.kind != EventKind.KERNEL:
        return operation.family
    is_product = facts.flop > _PRODUCT_INTENSITY * facts.traffic_bytes
    return KernelFamily.MATMUL if is_product else operation.family


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


_PROGRAM: Final = regex(r".*\((\d{1,20})\)$")


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

    `operations` has those of the planes added before, and `runs` the launches of runs by the host.
    `is_core` is False for planes of a part of the chip (SparseCore), which overlap the core: they
    are shown but do not count as busy. Returns how its times were changed.
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
    return np.array(list(map(attrgetter(name), operations)), dtype=dtype)


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


class HloColumns(Struct, frozen=True):
    """Attributes of the operation of each event; 0 if it has none. Shape (n,) each."""

    family: Int64
    precision: Int64


class HloOperations:
    """Adds each operation that events name once; devices share the rows."""

    def __init__(self, assembler: Assembler, programs: Programs) -> None:
        self._assembler = assembler
        self._programs = programs
        self._rows: dict[tuple[str, str], int] = {}
        self._family: dict[int, KernelFamily] = {}
        self._precision: dict[int, Precision] = {}

    def rows_of(self, events: Events, *, with_inside: bool = False) -> Int64:
        """The row of the HLO table that each event executes; -1 for none.

        `with_inside` tells what is inside of fusions, too.
        """
        op_index, ops = events.texts("hlo_op")
        module_index, modules = events.texts("hlo_module")
        row_of_event = np.full(len(events), -1, dtype=np.int64)
        known = np.flatnonzero((op_index >= 0) & (module_index >= 0))
        if not known.size:
            return row_of_event
        op, module = op_index[known], module_index[known]
        program = events.numbers("program_id")[known]
        first, operation = group_rows(op, module, program)
        rows = []
        for at in first.tolist():
            label, number = modules[module[at]], int(program[at])
            if number != -1:  # as the `XLA Modules` line and the program itself name it
                label = f"{label}({number % 2**64})"
            rows.append(self._row(ops[op[at]], label, with_inside))
        row_of_event[known] = np.array(rows, dtype=np.int64)[operation]
        return row_of_event

    def select(self, rows: Int64) -> HloColumns:
        """The attributes of the operations in the given rows."""
        used = distinct(rows)
        slot = np.searchsorted(used, rows)
        family = np.array([self._family.get(row, 0) for row in used.tolist()], dtype=np.int64)
        precision = np.array([self._precision.get(row, 0) for row in used.tolist()], dtype=np.int64)
        return HloColumns(family[slot], precision[slot])

    def _row(self, op: str, module: str, with_inside: bool) -> int:
        key = (op, module)
        if key in self._rows:
            return self._rows[key]
        self._programs.budget.keep(ITEMS_OF_OPERATION)
        intern = self._assembler.intern
        known = self._programs.look_up(module, op)
        category = known.operation.category if known else ""
        inside = self._programs.look_inside(module, op) if with_inside else None
        added = self._assembler.add_hlo(
            intern(op),
            module=intern(module),
            category=intern(category) if category else -1,
            text=intern(known.text) if known else -1,
            source_line=intern(known.source) if known and known.source else -1,
            path=intern(known.path) if known and known.path else -1,
            inside_opcodes=intern(inside.opcodes) if inside else -1,
            inside_paths=intern(inside.paths) if inside else -1,
            product=intern(inside.product) if inside else -1,
            inside_elements=inside.elements if inside else -1,
        )
        row = self._rows[key] = int(added[0])
        if known:
            self._family[row] = known.operation.family
            self._precision[row] = known.operation.precision
        return row
