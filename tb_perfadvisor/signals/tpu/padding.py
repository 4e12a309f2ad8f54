"""What XLA's operations on a TPU compute and move for nothing: padding up to whole tiles.

A matrix product works on the padded sizes of its result and of what it contracts; every other
operation moves the padded bytes of its arrays. The tiles are those of the arrays' own layouts.
"""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.hlo import Instruction, Shape, parse_instruction
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals

_CLOSE = 0.01
"""A fusion's FLOP hold a little more than its product: what is added, scaled, activated."""


class Padding(Struct, frozen=True):
    """One operation's work with and without padding."""

    is_product: bool
    """Whether the amounts are multiplications; else they are bytes."""
    useful: int
    done: int
    worst: Shape
    """The array that is padded by most bytes; of a product its result, if that is padded."""

    @property
    def share(self) -> float:
        """Of the work, what is padding."""
        return 1 - self.useful / self.done


class OperationPadding(Struct, frozen=True):
    """An operation of the used window that has tiled arrays."""

    op: int
    """Row of the `HloTable`."""
    count: int
    total_ns: int
    padding: Padding
    batch: tuple[int, int] | None
    """Its batch on this core, and the room that this takes; None where it does not say."""

    @property
    def wasted_ns(self) -> float:
        """Of its time, what its padding takes."""
        return self.total_ns * self.padding.share


@memoized
def operation_paddings(signals: Signals) -> tuple[OperationPadding, ...]:
    """Every operation with tiled arrays, the most wasted time first."""
    trace, totals = signals.trace, signals.hlo
    found = []
    columns = (totals.op, totals.count, totals.total_ns)
    for op, count, total_ns in zip(*(column.tolist() for column in columns), strict=True):
        instruction = parse_instruction(trace.text(int(trace.hlo.text[op])))
        if instruction is None:
            continue
        padding = padding_of(instruction, float(trace.hlo.flop[op]))
        if padding is not None:
            batch = batch_of(instruction)
            found.append(OperationPadding(op, count, total_ns, padding, batch))
    return tuple(sorted(found, key=lambda one: -one.wasted_ns))


def padding_of(instruction: Instruction, flop: float = np.nan) -> Padding | None:
    """An operation's padding; None where no array of it has a tile.

    Args:
        instruction: The operation.
        flop: Of one execution, NaN when unknown: from it follows what a fusion contracts.
    """
    shapes = [shape for shape in _moved(instruction) if shape.tiles and shape.elements]
    if not shapes:
        return None
    worst = max(shapes, key=lambda shape: shape.padded_bytes - _true_bytes(shape))
    product = _product(instruction, flop)
    if product is not None:
        # The result's dimensions are multiplied with all others: they tell more than bytes.
        result = instruction.results[0]
        return Padding(True, *product, result if result.misfits else worst)
    useful = sum(_true_bytes(shape) for shape in shapes)
    return Padding(False, useful, sum(shape.padded_bytes for shape in shapes), worst)


def batch_of(instruction: Instruction) -> tuple[int, int] | None:
    """The batch of a convolution, true and padded; None of others.

    A TPU's matrix products are convolutions as well, without space.
    """
    if instruction.labels is None or not instruction.operands:
        return None
    left, place = instruction.operands[0], instruction.labels[0].find("b")
    if not 0 <= place < len(left.dims):
        return None
    return left.dims[place], left.padded_dims[place]


def _true_bytes(shape: Shape) -> int:
    return shape.elements * (shape.stored_bits or max(shape.element_bits, 8)) // 8


def _moved(instruction: Instruction) -> tuple[Shape, ...]:
    """The arrays that an operation reads or writes as a whole."""
    results, operands = instruction.results, instruction.operands
    if instruction.opcode in ("slice", "dynamic-slice", "gather"):
        return results
    if instruction.opcode == "dynamic-update-slice":
        return operands[1:2]
    if instruction.opcode == "scatter":
        return operands[2:3]
    if instruction.opcode.endswith(("-start", "-done")):
        return results[:1]
    return (*results, *operands)


def _product(instruction: Instruction, flop: float) -> tuple[int, int] | None:
    """Multiplications with and without padding; None of what is no matrix product."""
    if not instruction.results or len(instruction.operands) < 2:
        return None
    left, right = instruction.operands[:2]
    if instruction.opcode == "dot":
        result = instruction.results[0]
        contracted = [(left, dim) for dim in instruction.contracting]
    elif instruction.opcode == "convolution" and instruction.labels is not None:
        result = instruction.results[0]
        contracted = _convolved(instruction, left, right)
    elif instruction.opcode == "fusion" and flop > 0:
        result = max(instruction.results, key=lambda shape: shape.elements)
        contracted = _told_by_flop(instruction, result, flop)
        if not contracted:
            return None
    else:
        return None
    if any(not 0 <= dim < len(shape.dims) for shape, dim in contracted):
        return None
    useful = result.elements * prod(shape.dims[dim] for shape, dim in contracted)
    done = result.padded_elements * prod(shape.padded_dims[dim] for shape, dim in contracted)
    return (useful, done) if useful else None


def _convolved(instruction: Instruction, left: Shape, right: Shape) -> list[tuple[Shape, int]]:
    """The features that a convolution sums over; its window is as large with padding as without."""
    assert instruction.labels is not None
    of_left, of_right, _ = instruction.labels
    if instruction.feature_groups > 1:
        return [(right, of_right.find("i"))]
    return [(left, of_left.find("f"))]


def _told_by_flop(instruction: Instruction, result: Shape, flop: float) -> list[tuple[Shape, int]]:
    """What a fused product contracts: the dimension that its FLOP are a multiple of."""
    if not instruction.attributes.startswith(", kind=kOutput"):
        return []
    summed = flop / 2 / max(result.elements, 1)
    matching = [
        (shape, dim)
        for shape in instruction.operands
        for dim, size in enumerate(shape.dims)
        if size > 1 and 0 <= summed / size - 1 <= _CLOSE
    ]
    # Of several the least padded: rather too little than too much.
    matching.sort(key=lambda one: one[0].padded_dims[one[1]])
    return matching[:1]
