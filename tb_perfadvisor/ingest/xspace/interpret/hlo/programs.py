"""Looks up XLA operations in the programs of a profile.

GPU planes only name the operation of a kernel, and TPU planes do not say what is inside a fusion.
Both are in the program (`HloProto`, in `/host:metadata`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import (
    FusedOperations,
    fused_operations,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.instruction_text import decoded, instruction_line
from tb_perfadvisor.ingest.xspace.interpret.hlo.loop_dependences import known_before_loop
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import Operation, parse_operation
from tb_perfadvisor.ingest.xspace.interpret.hlo.planned_memory import planned_memory
from tb_perfadvisor.ingest.xspace.interpret.hlo.program_values import program_values
from tb_perfadvisor.ingest.xspace.interpret.hlo.source_lines import source_line
from tb_perfadvisor.ingest.xspace.interpret.hlo.table_lookups import table_lookups
from tb_perfadvisor.ingest.xspace.interpret.hlo.transpositions import Transpositions
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.trace.program_memory import ProgramMemory
from tb_perfadvisor.trace.table_lookup import TableLookup

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
        """Create an empty collection.

        Args:
            budget: Of the file.
        """
        self.budget = budget
        self._bytes: dict[str, bytes] = {}
        self._decoded: dict[str, _Program] = {}

    def add(self, plane: Plane) -> None:
        """Add the programs of `/host:metadata` without decoding them."""
        names = plane.metadata.names
        for row, proto in plane.metadata.values("Hlo Proto").items():
            if isinstance(proto, bytes):
                self._bytes[names[row]] = proto

    def look_up(self, module: str, operation: str) -> ProgramOperation | None:
        """An operation of a module (`jit_f(19)`); None if the profile does not contain it."""
        return self._program(module).look_up(operation)

    def look_inside(self, module: str, operation: str) -> FusedOperations | None:
        """What a fusion of a module contains; None if the profile does not tell."""
        return self._program(module).look_inside(operation)

    def is_transposed(self, module: str, copy: str) -> bool | None:
        """Whether a copy moves an argument or result of the program that it transposes.

        None if the profile does not contain the program.
        """
        return self._program(module).is_transposed(copy)

    def is_known_before_loop(self, module: str, operation: str) -> bool | None:
        """Whether an operation in a loop could run before it; None outside of loops."""
        return self._program(module).is_known_before_loop(operation)

    def memory(self) -> tuple[ProgramMemory, ...]:
        """The memory of the programs of which operations were looked up."""
        planned = [program.memory(module) for module, program in self._decoded.items()]
        return tuple(memory for memory in planned if memory is not None)

    def lookups(self) -> tuple[TableLookup, ...]:
        """The look-ups in tables of these programs."""
        return tuple(
            lookup
            for module, program in self._decoded.items()
            for lookup in program.lookups(module)
        )

    def values(self) -> tuple[Program, ...]:
        """What the programs compute of which operations were looked up."""
        found = (program.values(module) for module, program in self._decoded.items())
        return tuple(program for program in found if program is not None)

    def _program(self, module: str) -> _Program:
        if module not in self._decoded:
            self._decoded[module] = _Program(self._bytes.pop(module, b""), self.budget)
        return self._decoded[module]


class _Program:
    """A program with its instructions by name, interpreted on access."""

    def __init__(self, proto: bytes, budget: Budget) -> None:
        # Imported on use, because building the messages takes as long as reading a small profile.
        from tb_perfadvisor.ingest.xspace.decode.hlo_proto import decode_program

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
