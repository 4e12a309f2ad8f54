"""Bytes that a fusion moves from and to main memory.

Of an operand that it only slices, and of a result that it updates in place, a fusion moves those
parts. Both may happen in a fusion inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from tb_perfadvisor.tpu_compiler.hlo_instruction import HloInstruction
from tb_perfadvisor.trace.hlo_text import Shape

PARTIAL_READS = ("slice", "dynamic-slice", "gather")
_IN_PLACE = {"dynamic-update-slice": (1, 1), "scatter": (2, 2)}
"""The operand that these write, and how often it moves: a scatter also reads what it adds to."""
_OFF_CHIP = (0, 5)
"""Memory spaces that are not on the chip: main memory, and the host's. On-chip memory is 1, on v4
also 3."""


class _Member(NamedTuple):
    """An instruction inside a fusion; names are unique in a module."""

    instruction: HloInstruction
    computation: str


class FusedTraffic:
    """Counts the bytes of the fusions of a module."""

    def __init__(self, computations: Mapping[str, Sequence[HloInstruction]]) -> None:
        """Remember the computations of a module by name."""
        self._computations = computations
        self._by_name: dict[str, dict[str, HloInstruction]] = {}

    def size_bytes(self, fusion: HloInstruction) -> int:
        """Bytes with all tiles, without arrays on the chip."""
        total, updates = 0, set[str]()
        for shape, output in zip_longest(fusion.parsed.results, self._outputs(fusion.called)):
            if shape is None:
                continue
            opcode = "" if output is None else output.instruction.opcode
            if output is not None and opcode in _IN_PLACE:
                updates.add(output.instruction.name)
                place, times = _IN_PLACE[opcode]
                parts = output.instruction.parsed.operands[place : place + 1]
                total += times * sum(part.padded_bytes for part in parts) * is_off_chip(shape)
            else:
                total += off_chip_bytes(shape)
        for position, shape in enumerate(fusion.parsed.operands):
            read = self._read_bytes(fusion.called, position, updates) if is_off_chip(shape) else 0
            total += off_chip_bytes(shape) if read is None else min(read, off_chip_bytes(shape))
        return total

    def _outputs(self, computation: str) -> Iterator[_Member | None]:
        """What computes each result of a computation; None for what is passed through."""
        members = self._computations[computation]
        root = next((member for member in members if member.is_root), members[-1])
        names = root.parsed.operand_names if root.opcode == "tuple" else (root.name,)
        for name in names:
            found = self._members(computation).get(self._origin(computation, name))
            if found is not None and found.opcode == "fusion" and len(found.parsed.results) == 1:
                yield next(self._outputs(found.called))
            else:
                yield None if found is None else _Member(found, computation)

    def _read_bytes(self, computation: str, position: int, updates: set[str]) -> int | None:
        """Bytes that a computation reads of a parameter; None if it reads all of it.

        Args:
            computation: Its name.
            position: The parameter's.
            updates: Updates in place, which read nothing of the array that they change.
        """
        text = f" parameter({position})"
        members = self._computations[computation]
        name = next((m.name for m in members if m.opcode == "parameter" and text in m.line), None)
        total, is_read = 0, False
        for member in members:
            if member.opcode in ("bitcast", "tuple"):
                continue
            names = [self._origin(computation, of) for of in member.parsed.operand_names]
            places = [place for place, of in enumerate(names) if of == name]
            if not places:
                continue
            is_read = True
            if member.opcode == "fusion":
                parts = [self._read_bytes(member.called, place, updates) for place in places]
                if any(part is None for part in parts):
                    return None
                total += sum(part for part in parts if part is not None)
            elif places != [0]:
                return None
            elif member.opcode in PARTIAL_READS:
                total += sum(shape.padded_bytes for shape in member.parsed.results)
            elif member.name not in updates:
                return None
        return total if is_read else None

    def _origin(self, computation: str, name: str) -> str:
        """The array that bitcasts only rename."""
        by_name = self._members(computation)
        while name in by_name and by_name[name].opcode == "bitcast":
            name = by_name[name].parsed.operand_names[0]
        return name

    def _members(self, computation: str) -> dict[str, HloInstruction]:
        if computation not in self._by_name:
            members = self._computations[computation]
            self._by_name[computation] = {member.name: member for member in members}
        return self._by_name[computation]


def is_off_chip(shape: Shape) -> bool:
    """Whether an array is in main memory, or in the host's."""
    return shape.memory_space in _OFF_CHIP


def off_chip_bytes(shape: Shape) -> int:
    """Bytes of an array with all tiles; 0 if it is on the chip."""
    return shape.padded_bytes if is_off_chip(shape) else 0
