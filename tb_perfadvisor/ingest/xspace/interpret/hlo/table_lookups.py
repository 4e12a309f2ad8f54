"""Finds the look-ups of a program: gathers of whole rows of an argument in its forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.xspace.interpret.hlo.instruction_text import decoded
from tb_perfadvisor.trace.table_lookup import TableLookup

_FLOATS: Final = (10, 11, 12, 16)
"""F16, F32, F64 and BF16 of `PrimitiveType` in xla_data.proto."""
_NOT_FORWARD: Final = ("transpose(", "rematted_computation")
"""In the names of what JAX derives, and of what it computes again."""
_SAME_ROWS: Final = (b"bitcast", b"copy", b"copy-start", b"copy-done", b"convert", b"reshape")
_MOST_HOPS: Final = 20


def table_lookups(module: str, message: Any) -> Iterator[TableLookup]:
    """The look-ups of a program.

    Args:
        module: Its name.
        message: Its `HloProto`.
    """
    gathers = [
        (int(computation.id), instruction)
        for computation in message.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode == b"gather" and instruction.operand_ids
    ]
    forward = [gather for gather in gathers if _is_forward(gather[1])]
    if not forward:
        return  # most programs have none, and need no index of their instructions
    places = _Places(message)
    for computation, instruction in forward:
        place = _Place(computation, int(instruction.operand_ids[0]))
        table, result = places.find(place), list(instruction.shape.dimensions)
        if table is None or len(table.shape.dimensions) != 2:
            continue
        rows, width = map(int, table.shape.dimensions)
        is_of_rows = width > 1 and bool(result) and result[-1] == width
        if is_of_rows and table.shape.element_type in _FLOATS and places.is_argument(place):
            fusion = places.fusions.get(computation)
            name = instruction.name if fusion is None else fusion[1].name
            yield TableLookup(module, decoded(name), rows, width, prod(result) // width)


def _is_forward(gather: Any) -> bool:
    path = decoded(gather.metadata.op_name)
    return path.endswith("/gather") and not any(part in path for part in _NOT_FORWARD)


class _Place(Struct, frozen=True):
    """An instruction, by the ids of its computation and its own."""

    computation: int
    id: int


class _Places:
    """The instructions of a program by id."""

    def __init__(self, message: Any) -> None:
        module = message.hlo_module
        self._entry = int(module.entry_computation_id)
        self._by_id = {
            (int(computation.id), int(instruction.id)): instruction
            for computation in module.computations
            for instruction in computation.instructions
        }
        self.fusions = {
            int(id_): (int(computation.id), instruction)
            for computation in module.computations
            for instruction in computation.instructions
            if instruction.opcode == b"fusion"
            for id_ in instruction.called_computation_ids
        }
        """The computation that runs each fusion's body, and the fusion."""

    def find(self, place: _Place) -> Any | None:
        """The instruction at a place; None if there is none."""
        return self._by_id.get((place.computation, place.id))

    def is_argument(self, place: _Place) -> bool:
        """Whether an array is an argument of the program, perhaps in another format."""
        for _ in range(_MOST_HOPS):
            instruction = self.find(place)
            if instruction is None:
                return False
            operands = list(instruction.operand_ids)
            if instruction.opcode == b"parameter":
                if place.computation == self._entry:
                    return True
                outer = self.fusions.get(place.computation)
                number = int(instruction.parameter_number)
                if outer is None or not 0 <= number < len(outer[1].operand_ids):
                    return False
                place = _Place(outer[0], int(outer[1].operand_ids[number]))
            elif operands and (
                instruction.opcode in _SAME_ROWS
                or (instruction.opcode == b"fusion" and len(operands) == 1)
            ):
                place = _Place(place.computation, int(operands[0]))
            else:
                return False
        return False
