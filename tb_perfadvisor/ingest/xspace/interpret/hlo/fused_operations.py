"""What an XLA fusion contains: the operations inside, where they come from, and its product.

The text of a fusion only names it. The operations inside are in the program that the profile
embeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import prod
from typing import Any, Final

from msgspec import Struct

from tb_perfadvisor.ingest.xspace.interpret.hlo.instruction_text import decoded, product_line

# Operations that move nothing and compute nothing.
_PLUMBING: Final = frozenset(
    {b"parameter", b"constant", b"tuple", b"get-tuple-element", b"bitcast"}
)
_PRODUCTS: Final = (b"dot", b"convolution")
# Operations whose result has the same elements as their operand, in another form.
_SAME_ELEMENTS: Final = frozenset(
    {b"bitcast", b"broadcast", b"convert", b"copy", b"reshape", b"transpose"}
)
# A fusion contains a few others, and comes from a few lines of the program.
_MAX_COMPUTATIONS: Final = 50
_MAX_PATHS: Final = 40
_MAX_CHAIN: Final = 16


class FusedOperations(Struct, frozen=True):
    """The operations inside a fusion."""

    opcodes: str
    """Distinct opcodes in alphabetical order, separated by spaces."""
    paths: str
    """Distinct framework names, such as `jit(step)/dense/dot_general`, separated by newlines."""
    product: str
    """HLO text of the largest matrix product or convolution; empty if there is none."""
    elements: int
    """Elements of the largest array that is computed inside."""
    is_one_hot: bool
    """Whether an operand of the product is a one-hot matrix: indices compared with an iota."""


class _Place(Struct, frozen=True):
    """An instruction, and the others of its computation by id."""

    instruction: Any
    by_id: Mapping[int, Any]

    @classmethod
    def of(cls, instruction: Any, computation: Any) -> _Place:
        return cls(instruction, {int(other.id): other for other in computation.instructions})

    def operands(self) -> list[Any]:
        return [self.by_id.get(int(id_)) for id_ in self.instruction.operand_ids]

    def operand(self, index: int) -> _Place | None:
        ids = self.instruction.operand_ids
        found = self.by_id.get(int(ids[index])) if index < len(ids) else None
        return None if found is None else _Place(found, self.by_id)


def fused_operations(fusion: Any, computations: Mapping[int, Any]) -> FusedOperations:
    """Look inside a fusion.

    Args:
        fusion: Its instruction in an `HloProto`.
        computations: All computations of the program by id.
    """
    opcodes: set[bytes] = set()
    paths: dict[bytes, None] = {}
    product: _Place | None = None
    product_elements = elements = 0
    for computation in _inside(fusion, computations):
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in _PLUMBING:
                continue
            opcodes.add(opcode)
            paths[instruction.metadata.op_name] = None
            size = prod(instruction.shape.dimensions)
            elements = max(elements, size)
            if opcode in _PRODUCTS and size > product_elements:
                product, product_elements = _Place.of(instruction, computation), size
    named = [decoded(path) for path in islice(filter(None, paths), _MAX_PATHS)]
    return FusedOperations(
        opcodes=" ".join(sorted(map(decoded, opcodes))),
        paths="\n".join(named),
        product=product_line(product.instruction, product.operands()) if product else "",
        elements=elements,
        is_one_hot=product is not None
        and any(_is_one_hot(product.operand(index), computations) for index in (0, 1)),
    )


def _inside(fusion: Any, computations: Mapping[int, Any]) -> Iterator[Any]:
    """The computations of a fusion, those of fusions inside it included."""
    pending, seen = [int(id_) for id_ in fusion.called_computation_ids], set[int]()
    while pending and len(seen) < _MAX_COMPUTATIONS:
        number = pending.pop()
        computation = computations.get(number)
        if computation is None or number in seen:
            continue
        seen.add(number)
        yield computation
        for instruction in computation.instructions:
            if instruction.opcode == b"fusion":
                pending += [int(id_) for id_ in instruction.called_computation_ids]


def _is_one_hot(place: _Place | None, computations: Mapping[int, Any]) -> bool:
    """Whether a factor holds 1 where an index equals its position, and else 0."""
    place = _origin(place, computations)
    if place is not None and place.instruction.opcode == b"select":
        choices = [_origin(place.operand(index), computations) for index in (1, 2)]
        if any(choice is None or choice.instruction.opcode != b"constant" for choice in choices):
            return False
        place = _origin(place.operand(0), computations)
    if place is None or place.instruction.opcode != b"compare":
        return False
    # Two iotas make an identity matrix, and other comparisons make masks.
    sides = [_origin(place.operand(index), computations) for index in (0, 1)]
    iotas = [side is not None and side.instruction.opcode == b"iota" for side in sides]
    return place.instruction.comparison_direction == b"EQ" and iotas.count(True) == 1


def _origin(place: _Place | None, computations: Mapping[int, Any]) -> _Place | None:
    """The operation that computes the elements of an array."""
    for _ in range(_MAX_CHAIN):
        if place is None:
            return None
        if place.instruction.opcode == b"fusion":
            place = _root(place.instruction, computations)
        elif place.instruction.opcode in _SAME_ELEMENTS:
            place = place.operand(0)
        else:
            return place
    return None


def _root(fusion: Any, computations: Mapping[int, Any]) -> _Place | None:
    """The operation inside a fusion that computes its result."""
    ids = fusion.called_computation_ids
    computation = computations.get(int(ids[0])) if ids else None
    if computation is None:
        return None
    root_id = computation.root_id
    root = next((found for found in computation.instructions if found.id == root_id), None)
    return None if root is None else _Place.of(root, computation)
