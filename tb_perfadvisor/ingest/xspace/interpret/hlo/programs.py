"""The programs of a profile: values, and planned memory.

The memory that XLA's compiler planned for a program: its buffer assignment.

Source: `BufferAllocationProto` in xla/service/hlo.proto.

GPU planes only name the operation of a kernel, and TPU planes do not say what is inside a fusion.
Both are in the program (`HloProto`, in `/host:metadata`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import nan, prod
from typing import Any, Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode.space import Plane
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import (
    FusedOperations,
    Transpositions,
    fused_operations,
    known_before_loop,
    table_lookups,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import (
    Operation,
    decoded,
    instruction_line,
    parse_operation,
    product_line,
    shape_text,
    source_line,
)
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.columns import TableLookup
from tb_perfadvisor.trace.hlo_text import Shape, parse_shapes
from tb_perfadvisor.trace.program import Loop, Program, ProgramMemory

_MOST_INSTRUCTIONS: Final = 100_000
_DEEPEST: Final = 200
"""Tuples, calls and loops inside one another."""
# These pass values on; what they pass on is found by `_Reader.values`.
_PASSES_ON: Final = frozenset(
    {
        *(b"tuple", b"get-tuple-element", b"fusion", b"call", b"while", b"conditional"),
        *(b"opt-barrier", b"async-start", b"async-update", b"async-done", b"copy-done"),
        *(b"slice-done", b"all-reduce-done", b"all-gather-done", b"collective-permute-done"),
        *(b"after-all", b"domain", b"add-dependency"),
    }
)
_SECOND_OF_START: Final = (b"all-gather-start", b"collective-permute-start", b"slice-start")
"""Their result is (what they read, what they write, …); that of copies begins with the latter."""
_OF_SLICES: Final = b"ConcatBitcast"
_PRODUCTS: Final = (b"dot", b"convolution")
_MOST_DEVICES: Final = 1 << 20
_REPLICATED: Final = 0
_TILED: Final = 3
_KNOWN_TRIPS: Final = regex(rb'"known_trip_count":\{"n":"(\d{1,9})"')


class _Key(Struct, frozen=True):
    """An instruction, by the ids of its computation and its own."""

    computation: int
    id: int


class _Reader:
    def __init__(self, module: Any) -> None:
        self._module = module
        self.entry = int(module.entry_computation_id)
        self._computations = {int(c.id): c for c in module.computations}
        self._by_key = {
            _Key(int(c.id), int(i.id)): i for c in module.computations for i in c.instructions
        }
        # How each computation is called, and how often it runs.
        self._caller: dict[int, _Key] = {}
        self.runs: dict[int, float] = {self.entry: 1.0}
        self.loops: list[Loop] = []
        self.loop: dict[int, int] = {self.entry: -1}
        """The innermost loop that a computation belongs to, by computation."""
        self.kernel: dict[int, bytes] = {}
        """The outermost fusion that a computation belongs to, by computation."""
        self._follow_calls()
        self._known: dict[tuple[_Key, tuple[int, ...]], tuple[_Key, ...]] = {}

    def _follow_calls(self) -> None:
        pending = [self.entry]
        while pending:
            number = pending.pop()
            for instruction in self._computations[number].instructions:
                opcode, called = instruction.opcode, list(instruction.called_computation_ids)
                if not called or opcode not in _PASSES_ON:
                    continue
                trips, loop = 1.0, self.loop[number]
                if opcode == b"while":
                    trips = self._trips(instruction)
                    self.loops.append(Loop(trips, loop))
                    loop = len(self.loops) - 1
                for id_ in map(int, called):
                    if id_ not in self._computations or id_ in self.runs:
                        continue
                    self._caller[id_] = _Key(number, int(instruction.id))
                    self.runs[id_] = self.runs[number] * trips
                    self.loop[id_] = loop
                    if number in self.kernel or opcode == b"fusion":
                        self.kernel[id_] = self.kernel.get(number, instruction.name)
                    pending.append(id_)

    def _trips(self, loop: Any) -> float:
        """How often a loop runs its body; NaN if unknown."""
        found = _KNOWN_TRIPS.search(loop.backend_config)
        if found:
            return float(found[1])
        for id_ in map(int, loop.called_computation_ids):
            condition = self._computations.get(id_)
            root = (
                None if condition is None else self._by_key.get(_Key(id_, int(condition.root_id)))
            )
            if root is not None and root.opcode == b"fusion":
                root = self._root_of(root)
            if root is None or root.opcode != b"compare" or condition is None:
                continue
            # Programs count from 0 to a constant, which is the only one of the condition.
            limits = [
                int(i.literal.s32s[0])
                for i in condition.instructions
                if i.opcode == b"constant" and len(i.literal.s32s) == 1
            ]
            if root.comparison_direction == b"LT" and len(limits) == 1 and limits[0] > 0:
                return float(limits[0])
        return nan

    def _root_of(self, fusion: Any) -> Any | None:
        """What computes the result of a fusion."""
        for id_ in map(int, fusion.called_computation_ids):
            computation = self._computations.get(id_)
            if computation is not None:
                return self._by_key.get(_Key(id_, int(computation.root_id)))
        return None

    def instructions(self) -> Iterator[tuple[_Key, Any]]:
        """The instructions that compute something or are arguments of the program."""
        for number in self.runs:
            for instruction in self._computations[number].instructions:
                is_inner = instruction.opcode == b"parameter" and number != self.entry
                is_moved = instruction.custom_call_target == _OF_SLICES
                if instruction.opcode not in _PASSES_ON and not is_inner and not is_moved:
                    yield _Key(number, int(instruction.id)), instruction

    def operand_values(self, key: _Key, instruction: Any) -> Iterator[tuple[int, _Key]]:
        """Position and key of what a value is computed from."""
        for slot, id_ in enumerate(instruction.operand_ids):
            for value in self.values(_Key(key.computation, int(id_))):
                yield slot, value

    def results(self) -> tuple[_Key, ...]:
        """What the program returns."""
        entry = self._computations[self.entry]
        root = _Key(self.entry, int(entry.root_id))
        instruction = self._by_key.get(root)
        if instruction is None:
            return ()
        if instruction.opcode != b"tuple":
            return self.values(root)
        keys = (_Key(self.entry, int(id_)) for id_ in instruction.operand_ids)
        return tuple(dict.fromkeys(value for key in keys for value in self.values(key)))

    def values(self, key: _Key, path: tuple[int, ...] = (), depth: int = 0) -> tuple[_Key, ...]:
        """What computes an instruction's result, or one element of it."""
        memo = key, path
        if memo not in self._known:
            if depth > _DEEPEST:
                return ()
            self._known[memo] = ()  # a loop that passes a value on to itself adds nothing
            found = dict.fromkeys(self._values(key, path, depth + 1))
            self._known[memo] = tuple(found)
        return self._known[memo]

    def _values(self, key: _Key, path: tuple[int, ...], depth: int) -> Iterator[_Key]:
        instruction = self._by_key.get(key)
        if instruction is None:
            return
        opcode = instruction.opcode
        operands = [_Key(key.computation, int(id_)) for id_ in instruction.operand_ids]
        called = [int(id_) for id_ in instruction.called_computation_ids]
        if opcode == b"tuple":
            index, *rest = path or (-1,)
            chosen = operands[index : index + 1] if index >= 0 else operands
            for operand in chosen:
                yield from self.values(operand, tuple(rest), depth)
        elif opcode == b"get-tuple-element" and operands:
            yield from self.values(operands[0], (int(instruction.tuple_index), *path), depth)
        elif opcode in (b"fusion", b"call", b"async-start", b"while", b"conditional") and called:
            bodies = called
            if opcode == b"while":
                bodies = [id_ for id_ in called if not self._is_condition(id_)]
            for id_ in bodies:
                computation = self._computations.get(id_)
                if computation is not None:
                    root = _Key(id_, int(computation.root_id))
                    yield from self.values(root, path if opcode != b"async-start" else (), depth)
        elif instruction.custom_call_target == _OF_SLICES and operands:
            # XLA prefetches an array in slices.
            for part in self.values(operands[0], (), depth):
                whole = self._by_key.get(part)
                for id_ in whole.operand_ids[:1] if whole is not None else ():
                    yield from self.values(_Key(part.computation, int(id_)), (), depth)
        elif opcode == b"parameter" and key.computation != self.entry:
            yield from self._argument(
                key.computation, int(instruction.parameter_number), path, depth
            )
        elif opcode in _PASSES_ON:
            for operand in operands[:1]:
                yield from self.values(operand, path if opcode == b"opt-barrier" else (), depth)
        else:
            yield key

    def _argument(
        self, computation: int, number: int, path: tuple[int, ...], depth: int
    ) -> Iterator[_Key]:
        """What a computation's argument is where it is called."""
        caller = self._caller.get(computation)
        outer = self._by_key.get(caller) if caller is not None else None
        if outer is None or caller is None:
            return
        operands = [int(id_) for id_ in outer.operand_ids]
        if outer.opcode == b"conditional":
            number = 1 + list(map(int, outer.called_computation_ids)).index(computation)
        if number < len(operands):
            yield from self.values(_Key(caller.computation, operands[number]), path, depth)
        if outer.opcode == b"while":
            for id_ in map(int, outer.called_computation_ids):
                if not self._is_condition(id_) and id_ in self._computations:
                    root = int(self._computations[id_].root_id)
                    yield from self.values(_Key(id_, root), path, depth)

    def _is_condition(self, computation: int) -> bool:
        found = self._computations.get(computation)
        root = None if found is None else self._by_key.get(_Key(computation, int(found.root_id)))
        shape = root.shape if root is not None else None
        return shape is not None and int(shape.element_type) == 1 and not shape.dimensions

    def text(self, key: _Key, instruction: Any) -> str:
        """HLO text of a product or a comparison, with the shapes of the operands."""
        operands = [
            self._by_key.get(_Key(key.computation, int(id_))) for id_ in instruction.operand_ids
        ]
        if instruction.opcode in _PRODUCTS:
            return product_line(instruction, operands)
        line = instruction_line(instruction, operands)
        return f"{line}, direction={decoded(instruction.comparison_direction)}"


def _number(literal: Any) -> float | None:
    """What a constant is if it is one number of a usual type, else None."""
    whole = literal.preds or literal.s32s
    if len(whole) == 1:
        return float(whole[0])
    if len(literal.f32s) == 4:
        return float(np.frombuffer(literal.f32s, "<f4")[0])
    if len(literal.bf16s) == 2:
        return float(np.frombuffer(b"\0\0" + literal.bf16s, "<f4")[0])
    return None


def program_values(module: str, message: Any) -> Program | None:
    """The values of a program.

    `message` is its `HloProto`. None if it has no program, or one of more than a hundred thousand
    instructions.
    """
    hlo = message.hlo_module
    count = sum(len(computation.instructions) for computation in hlo.computations)
    if not 0 < count <= _MOST_INSTRUCTIONS:
        return None
    if all(int(c.id) != int(hlo.entry_computation_id) for c in hlo.computations):
        return None
    reader = _Reader(hlo)
    keys, instructions = [], []
    for key, instruction in reader.instructions():
        keys.append(key)
        instructions.append(instruction)
    row_of = {key: row for row, key in enumerate(keys)}
    names = [decoded(i.opcode) for i in instructions]
    opcodes, opcode = _numbered(names)
    shapes, shape = _numbered([_shape_of(i) for i in instructions])
    outer = [
        reader.kernel.get(k.computation, i.name) for k, i in zip(keys, instructions, strict=True)
    ]
    kernels, kernel = _numbered([decoded(name) for name in outer])
    edges = [
        (row_of[value], row, slot)
        for row, (key, instruction) in enumerate(zip(keys, instructions, strict=True))
        for slot, value in reader.operand_values(key, instruction)
        if value in row_of
    ]
    columns = np.array(edges, dtype=np.int32).reshape(-1, 3).T
    aliased = {int(entry.parameter_number) for entry in hlo.input_output_alias.entries}
    is_argument = [i.opcode == b"parameter" for i in instructions]
    argument = [
        min(max(int(i.parameter_number), 0), _MOST_INSTRUCTIONS) if p else -1
        for i, p in zip(instructions, is_argument, strict=True)
    ]
    is_result = np.zeros(len(keys), dtype=bool)
    is_result[[row_of[key] for key in reader.results() if key in row_of]] = True
    return Program(
        module=module,
        devices=_devices(hlo),
        opcodes=opcodes,
        opcode=opcode,
        shapes=shapes,
        shape=shape,
        kernels=kernels,
        kernel=kernel,
        runs=np.array([reader.runs[key.computation] for key in keys]),
        loops=tuple(reader.loops),
        loop=np.array([reader.loop[key.computation] for key in keys], dtype=np.int32),
        argument=np.array(argument, dtype=np.int32),
        parts=np.array([_parts(hlo, i) for i in instructions], dtype=np.int32),
        is_aliased=np.array([number in aliased for number in argument]),
        is_result=is_result,
        sources=columns[0],
        targets=columns[1],
        slots=columns[2],
        texts={
            row: reader.text(key, i)
            for row, (key, i) in enumerate(zip(keys, instructions, strict=True))
            if i.opcode == b"compare" or i.opcode in _PRODUCTS
        },
        numbers={
            row: number
            for row, i in enumerate(instructions)
            if i.opcode == b"constant" and (number := _number(i.literal)) is not None
        },
        dimensions={
            row: tuple(min(int(dim), _MOST_DEVICES) for dim in i.dimensions)
            for row, i in enumerate(instructions)
            if i.opcode in (b"broadcast", b"transpose", b"iota")
        },
        groups=_group_sizes(instructions, _devices(hlo)),
        paths={
            row: decoded(i.metadata.op_name)
            for row, i in enumerate(instructions)
            if i.metadata.op_name
        },
        lines={row: line for row, i in enumerate(instructions) if (line := source_line(hlo, i))},
    )


def _numbered(values: list[Any]) -> tuple[tuple[Any, ...], Any]:
    """Distinct values, and the index of each."""
    index: dict[Any, int] = {}
    numbers = np.array([index.setdefault(value, len(index)) for value in values], dtype=np.int32)
    return tuple(index), numbers


def _shape_of(instruction: Any) -> Shape:
    """The shape of a result; of several, that of the first array, or of the one that is moved."""
    shape, opcode = instruction.shape, instruction.opcode
    place = 1 if opcode in _SECOND_OF_START else 0
    for _ in range(_DEEPEST):
        if not shape.tuple_shapes:
            break
        shape = shape.tuple_shapes[min(place, len(shape.tuple_shapes) - 1)]
    found = parse_shapes(shape_text(shape))
    return found[0] if found else Shape("", (), ())


def _parts(module: Any, instruction: Any) -> int:
    """In how many parts an argument is split over the devices; 0 if unknown, and for others."""
    if instruction.opcode != b"parameter":
        return 0
    number, all_of = int(instruction.parameter_number), module.spmd_parameters_shardings
    if number < len(all_of):
        sharding = all_of[number]
    elif instruction.HasField("sharding"):
        sharding = instruction.sharding
    else:
        return 0
    if int(sharding.type) == _REPLICATED:
        return 1
    if int(sharding.type) != _TILED:
        return 0
    dims = list(map(int, sharding.tile_assignment_dimensions))
    replicated = len(sharding.last_tile_dims) or int(sharding.replicate_on_last_tile_dim)
    return min(max(prod(dims[: len(dims) - replicated]), 0), _MOST_DEVICES)


def _group_sizes(instructions: list[Any], devices: int) -> dict[int, int]:
    """How many devices a collective spans, by row; all of them if it names no groups."""
    sizes = {}
    for row, instruction in enumerate(instructions):
        if instruction.source_target_pairs:
            sizes[row] = _chain(instruction.source_target_pairs)
            continue
        if not instruction.opcode.startswith((b"all-", b"reduce-scatter")):
            continue
        grouped = instruction.collective_device_list
        listed = instruction.replica_groups or grouped.replica_groups
        dims = [int(axis.size) for axis in instruction.mesh_groups.mesh.axes]
        chosen = [int(axis.mesh_axis_index) for axis in instruction.mesh_groups.axes]
        if listed:
            sizes[row] = len(listed[0].replica_ids)
        elif grouped.iota_replica_group_list.num_devices_per_group:
            sizes[row] = int(grouped.iota_replica_group_list.num_devices_per_group)
        elif dims:
            sizes[row] = prod(dims[number] for number in chosen if number < len(dims))
        else:
            sizes[row] = devices
    return sizes


def _chain(pairs: Iterable[Any]) -> int:
    """How many devices pass an array on from one to the next."""
    targets = {int(pair.source): int(pair.target) for pair in pairs}
    begins = targets.keys() - targets.values()
    device = min(begins or targets)
    seen = {device}
    while (device := targets.get(device, device)) not in seen:
        seen.add(device)
    return len(seen)


def _devices(module: Any) -> int:
    """On how many devices a program runs together; 1 if it does not say."""
    assigned = module.device_assignment
    count = max(int(assigned.replica_count), 1) * max(int(assigned.computation_count), 1)
    return min(count, _MOST_DEVICES)


_DEVICE_MEMORY: Final = 0
"""Other colors are memory on the chip or on the host."""
_LARGEST: Final = 2**50
"""Larger than the memory of any device: the file is damaged."""


def planned_memory(module: str, message: Any) -> ProgramMemory | None:
    """The memory of a program.

    `message` is its `HloProto`. None if it has no buffer assignment.
    """
    names: dict[int, str] | None = None
    arguments: list[tuple[str, int]] = []
    result = temporary = constant = 0
    for allocation in message.buffer_assignment.buffer_allocations:
        size = int(allocation.size)
        if allocation.is_thread_local or allocation.color != _DEVICE_MEMORY:
            continue
        if not 0 <= size < _LARGEST:
            return None
        if allocation.is_argument:
            names = _argument_names(message) if names is None else names
            arguments.append((names.get(int(allocation.argument_number), ""), size))
        elif allocation.is_constant:
            constant += size
        elif allocation.maybe_live_out:
            result += size
        else:
            temporary += size
    memory = ProgramMemory(module, tuple(arguments), result, temporary, constant)
    return memory if memory.total_bytes else None


def _argument_names(message: Any) -> dict[int, str]:
    """The framework's names of a program's arguments, by number."""
    entry = int(message.hlo_module.entry_computation_id)
    return {
        int(instruction.parameter_number): decoded(instruction.metadata.op_name)
        for computation in message.hlo_module.computations
        if int(computation.id) == entry
        for instruction in computation.instructions
        if instruction.opcode == b"parameter"
    }


ITEMS_OF_OPERATION: Final = 16
"""An operation that was looked up, with its text and its row in the trace."""
_FUSIONS: Final = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}


class ProgramOperation(Struct, frozen=True):
    """An instruction of a program."""

    text: str
    source: str
    """Such as `file.py:37`; empty if unknown."""
    path: str
    """Such as `jit(step)/layer/dot_general`; empty if unknown."""
    operation: Operation


class Programs:
    """The programs of a profile, decoded on access."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._bytes: dict[str, bytes] = {}
        self._decoded: dict[str, _Program | None] = {}

    def add(self, plane: Plane) -> None:
        """Add the programs of `/host:metadata` without decoding them."""
        names = plane.metadata.names
        for row, proto in plane.metadata.values("Hlo Proto").items():
            if isinstance(proto, bytes):
                self._bytes[names[row]] = proto

    def look_up(self, module: str, operation: str) -> ProgramOperation | None:
        """An operation of a module (`jit_f(19)`); None if the profile does not contain it."""
        program = self._program(module)
        return program.look_up(operation) if program is not None else None

    def look_inside(self, module: str, operation: str) -> FusedOperations | None:
        """What a fusion of a module contains; None if the profile does not tell."""
        program = self._program(module)
        return program.look_inside(operation) if program is not None else None

    def is_transposed(self, module: str, copy: str) -> bool | None:
        """Whether a copy moves an argument or result of the program that it transposes.

        None if the profile does not contain the program.
        """
        program = self._program(module)
        return program.is_transposed(copy) if program is not None else None

    def is_known_before_loop(self, module: str, operation: str) -> bool | None:
        """Whether an operation in a loop could run before it; None outside of loops."""
        program = self._program(module)
        return program.is_known_before_loop(operation) if program is not None else None

    def memory(self) -> tuple[ProgramMemory, ...]:
        """The memory of the programs of which operations were looked up."""
        planned = [program.memory(module) for module, program in self._known()]
        return tuple(memory for memory in planned if memory is not None)

    def lookups(self) -> tuple[TableLookup, ...]:
        """The look-ups in tables of these programs."""
        return tuple(
            lookup for module, program in self._known() for lookup in program.lookups(module)
        )

    def values(self) -> tuple[Program, ...]:
        """What the programs compute of which operations were looked up."""
        found = (program.values(module) for module, program in self._known())
        return tuple(program for program in found if program is not None)

    def _program(self, module: str) -> _Program | None:
        if module not in self._decoded:
            proto = self._bytes.pop(module, None)
            self._decoded[module] = None if proto is None else _Program(proto, self.budget)
        return self._decoded[module]

    def _known(self) -> Iterator[tuple[str, _Program]]:
        return ((name, program) for name, program in self._decoded.items() if program is not None)


class _Program:
    """A program with its instructions by name, interpreted on access."""

    def __init__(self, proto: bytes, budget: Budget) -> None:
        # Imported on use, because building the messages takes as long as reading a small profile.
        from tb_perfadvisor.ingest.xspace.decode.messages import decode_program

        self._message = decode_program(proto, budget)
        computations = self._message.hlo_module.computations
        # Names are unique in a module.
        self._place = {
            instruction.name: (number, place)
            for number, computation in enumerate(computations)
            for place, instruction in enumerate(computation.instructions)
        }
        self._computations = {int(computation.id): computation for computation in computations}
        self._by_id: dict[int, dict[int, Any]] = {}
        self._contracts: dict[int, bool] | None = None
        self._transpositions: Transpositions | None = None
        self._loop_bodies: set[int] | None = None
        self._known_before: dict[int, frozenset[bytes]] = {}

    def lookups(self, module: str) -> Iterator[TableLookup]:
        return table_lookups(module, self._message)

    def values(self, module: str) -> Program | None:
        return program_values(module, self._message)

    def memory(self, module: str) -> ProgramMemory | None:
        return planned_memory(module, self._message)

    def look_up(self, name: str) -> ProgramOperation | None:
        number, place = self._place.get(name.encode(), (-1, -1))
        if number < 0:
            return None
        instructions = self._message.hlo_module.computations[number].instructions
        if number not in self._by_id:
            self._by_id[number] = {other.id: other for other in instructions}
        by_id, instruction = self._by_id[number], instructions[place]
        text = instruction_line(instruction, [by_id.get(id_) for id_ in instruction.operand_ids])
        path = decoded(instruction.metadata.op_name)
        return ProgramOperation(
            text=text,
            source=source_line(self._message.hlo_module, instruction),
            path=path,
            operation=parse_operation(
                text,
                name=name,
                category=_category(instruction, self._contracting()),
                path=path,
            ),
        )

    def look_inside(self, name: str) -> FusedOperations | None:
        number, place = self._place.get(name.encode(), (-1, -1))
        if number < 0:
            return None
        instruction = self._message.hlo_module.computations[number].instructions[place]
        if instruction.opcode != b"fusion":
            return None
        return fused_operations(instruction, self._computations)

    def is_transposed(self, name: str) -> bool | None:
        entry = self._computations.get(int(self._message.hlo_module.entry_computation_id))
        if name.encode() not in self._place or entry is None:
            return None
        if self._transpositions is None:
            self._transpositions = Transpositions(entry, self._computations)
        return self._transpositions.explain(name)

    def is_known_before_loop(self, name: str) -> bool | None:
        number, _ = self._place.get(name.encode(), (-1, -1))
        if number < 0 or number not in self._bodies():
            return None
        if number not in self._known_before:
            body = self._message.hlo_module.computations[number]
            self._known_before[number] = known_before_loop(body)
        return name.encode() in self._known_before[number]

    def _bodies(self) -> set[int]:
        """The computations that loops call."""
        if self._loop_bodies is None:
            computations = self._message.hlo_module.computations
            called = {
                int(id_)
                for computation in computations
                for instruction in computation.instructions
                if instruction.opcode == b"while"
                for id_ in instruction.called_computation_ids
            }
            self._loop_bodies = {n for n, c in enumerate(computations) if int(c.id) in called}
        return self._loop_bodies

    def _contracting(self) -> dict[int, bool]:
        """Whether each computation, by id, contains a matrix product or convolution."""
        if self._contracts is None:
            self._contracts = {
                number: any(
                    instruction.opcode in (b"dot", b"convolution")
                    for instruction in computation.instructions
                )
                for number, computation in self._computations.items()
            }
        return self._contracts


def _category(instruction: Any, contracts: dict[int, bool]) -> str:
    """XProf's category: a fusion that contains a contraction is a `convolution fusion`."""
    opcode = decoded(instruction.opcode)
    if opcode != "fusion":
        return opcode
    if any(contracts.get(int(id_)) for id_ in instruction.called_computation_ids):
        return "convolution fusion"
    return _FUSIONS.get(decoded(instruction.fusion_kind), "fusion")
