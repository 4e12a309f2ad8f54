"""Programs that a trace embeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.tables import Float64, Int32


class Loop(Struct, frozen=True):
    """A loop of a program."""

    trips: float
    """NaN if unknown."""
    parent: int
    """The loop that it is in, by index; -1 if it is in none."""


class Program(Struct, frozen=True, dict=True):
    """The values of a program, one row each; columns of shape (n,).

    What only passes values on is left out: tuples and their elements, the arguments of fusions and
    loops. So a value's operands are what computes them, wherever that is. The value that a loop
    passes from trip to trip has two sources: before the loop, and in the trip before.
    """

    module: str
    """Such as `jit_step(19)`."""
    devices: int
    """On how many devices it runs together."""
    opcodes: tuple[str, ...]
    opcode: Int32
    """Index into `opcodes`."""
    shapes: tuple[Shape, ...]
    shape: Int32
    """Index into `shapes`; of several results, the first."""
    kernels: tuple[str, ...]
    kernel: Int32
    """The operation that computes it at run time: the outermost fusion. Index into `kernels`."""
    runs: Float64
    """How often a run of the program computes it; NaN if trips of a loop are unknown."""
    loops: tuple[Loop, ...]
    loop: Int32
    """The innermost loop that computes it; -1 if none does. Index into `loops`."""
    argument: Int32
    """The number of the argument that it is; -1 for others."""
    parts: Int32
    """In how many parts an argument is split over the devices; 0 if unknown, and for others."""
    is_aliased: NDArray[np.bool_]
    """Whether it is an argument whose memory a result takes."""
    is_result: NDArray[np.bool_]
    """Whether the program returns it."""
    sources: Int32
    """Of each edge: the row of the operand. Edges are sorted by target, then slot. Shape (m,)."""
    targets: Int32
    """Of each edge: the row of the value that is computed from it. Shape (m,)."""
    slots: Int32
    """Of each edge: the position among the target's operands. Shape (m,)."""
    texts: dict[int, str]
    """HLO text of matrix products, convolutions and comparisons, by row."""
    numbers: dict[int, float]
    """Constants that are one number, by row."""
    dimensions: dict[int, tuple[int, ...]]
    """By row: the dimensions of a broadcast's operand in its result, of a transpose's result in its
    operand, and the one that an iota counts."""
    groups: dict[int, int]
    """How many devices exchange an array together, or pass it on, by row of each collective."""
    paths: dict[int, str]
    """The framework's names, such as `jit(step)/dot_general`, by row of those that have one."""
    lines: dict[int, str]
    """Source lines, such as `train.py:37`, by row of those that have one."""

    def __len__(self) -> int:
        return len(self.opcode)

    def name_of(self, row: int) -> str:
        """The opcode of a value."""
        return self.opcodes[int(self.opcode[row])]

    def shape_of(self, row: int) -> Shape:
        """The shape of a value."""
        return self.shapes[int(self.shape[row])]

    def kernel_of(self, row: int) -> str:
        """The operation that computes a value."""
        return self.kernels[int(self.kernel[row])]

    def rows_of(self, opcodes: Sequence[str]) -> list[int]:
        """The values that any of some opcodes computes, in order."""
        wanted = [index for index, name in enumerate(self.opcodes) if name in opcodes]
        return [int(row) for row in np.flatnonzero(np.isin(self.opcode, wanted))]

    def operands(self, row: int, slot: int | None = None) -> list[int]:
        """The values that a value is computed from, or only those of one position."""
        begin, end = np.searchsorted(self.targets, (row, row + 1))
        edges = slice(int(begin), int(end))
        found = self.sources[edges]
        operands: list[int] = (found if slot is None else found[self.slots[edges] == slot]).tolist()
        return operands

    def users(self, row: int) -> list[int]:
        """The values that are computed from a value."""
        sources, targets = self._by_source
        begin, end = np.searchsorted(sources, (row, row + 1))
        users: list[int] = targets[int(begin) : int(end)].tolist()
        return users

    @cached_property
    def largest_argument(self) -> tuple[int, ...]:
        """Elements of the largest argument on which each value depends; 0 if it is on none."""
        elements = [self.shapes[shape].elements for shape in self.shape.tolist()]
        is_argument = (self.argument >= 0).tolist()
        largest = [size * known for size, known in zip(elements, is_argument, strict=True)]
        edges = list(zip(self.sources.tolist(), self.targets.tolist(), strict=True))
        # Operands come first, but for what a loop passes from trip to trip.
        while True:
            before = sum(largest)
            for source, target in edges:
                largest[target] = max(largest[target], largest[source])
            if sum(largest) == before:
                return tuple(largest)

    @cached_property
    def _by_source(self) -> tuple[Int32, Int32]:
        order = np.argsort(self.sources, kind="stable")
        return self.sources[order], self.targets[order]


class ProgramMemory(Struct, frozen=True):
    """What a program keeps in a device's memory while it runs."""

    module: str
    """Such as `jit_step(19)`."""
    arguments: tuple[tuple[str, int], ...]
    """Names and bytes. Arrays in one argument have names such as `state.params['kernel']`; the name
    is empty if it is unknown."""
    result_bytes: int
    """Of the results that do not take the place of an argument."""
    temporary_bytes: int
    """Of all other arrays. Those that are not needed at the same time share their memory."""
    constant_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        arguments = sum(size for _, size in self.arguments)
        return arguments + self.result_bytes + self.temporary_bytes + self.constant_bytes
