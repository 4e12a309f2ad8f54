"""Work that XLA operations on a TPU waste on padding to whole tiles.

A matrix product computes with the padded sizes of its result and of its contracted dimensions. Any
other operation moves the padded bytes of its arrays. Each array's layout gives its tiles.
"""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction

_LARGE_BATCH = 128
"""From this size on, a few more rows are little of the batch."""
_FEWEST_TERMS = 8
"""Fewer may be a scaling and an activation."""
_OTHER_FLOP_SHARE = 0.01
"""FLOP of a fused product may exceed those of the product by this share, for additions, scaling
and activations."""


class Padding(Struct, frozen=True):
    """The work of an operation with and without padding."""

    is_product: bool
    """Whether work is counted in multiplications, not in bytes."""
    useful: int
    """Work without padding."""
    padded: int
    """Work with padding."""
    worst_array: Shape
    """The array with the most bytes of padding; for a product its result, if that is padded."""
    padding_bytes: int
    """Bytes of padding in the arrays that one execution moves."""
    bytes_share: float
    """Share of the bytes of these arrays that is padding."""

    @property
    def most_share(self) -> float:
        """Share of the work or of the bytes, whichever is more.

        A fusion of several products shows the padding of those inside only by its arrays.
        """
        return max(self.share, self.bytes_share)

    @property
    def share(self) -> float:
        """Share of the work that is padding."""
        return 1 - self.useful / self.padded


class OperationPadding(Struct, frozen=True):
    """An operation of the used window with tiled arrays."""

    op: int
    """Row of the `HloTable`."""
    count: int
    total_ns: int
    padding: Padding
    batch: tuple[int, int] | None
    """Batch size per core, without and with padding; None if unknown."""

    @property
    def wasted_ns(self) -> float:
        """Time that padding takes."""
        return self.total_ns * self.padding.share


@memoized
def operation_paddings(signals: Signals) -> tuple[OperationPadding, ...]:
    """Every operation with tiled arrays, most wasted time first."""
    trace, totals = signals.trace, signals.hlo
    operations = []
    columns = (totals.op, totals.count, totals.total_ns)
    for op, count, total_ns in zip(*(column.tolist() for column in columns), strict=True):
        instruction = parse_instruction(trace.text(int(trace.hlo.text[op])))
        if instruction is None:
            continue
        padding = padding_of(instruction, float(trace.hlo.flop[op]))
        if padding is not None:
            batch = batch_of(instruction, float(trace.hlo.flop[op]))
            operations.append(OperationPadding(op, count, total_ns, padding, batch))
    return tuple(sorted(operations, key=lambda operation: -operation.wasted_ns))


def padding_of(instruction: Instruction, flop: float = np.nan) -> Padding | None:
    """The padding of an operation; None if none of its arrays is tiled.

    `flop` of one execution reveals what a fusion contracts; NaN if unknown.
    """
    shapes = [shape for shape in moved_arrays(instruction) if shape.tiles and shape.elements]
    if not shapes:
        return None
    worst_array = max(shapes, key=lambda shape: shape.padded_bytes - _true_bytes(shape))
    useful = sum(_true_bytes(shape) for shape in shapes)
    padded = sum(shape.padded_bytes for shape in shapes)
    product = _product(instruction, flop)
    if product is not None:
        # Padding of the result costs more than its bytes: every contracted term is computed for it.
        result = instruction.results[0]
        shown = result if result.misfits else worst_array
        return Padding(True, *product, shown, padded - useful, 1 - useful / padded)
    return Padding(False, useful, padded, worst_array, padded - useful, 1 - useful / padded)


def batch_of(instruction: Instruction, flop: float = np.nan) -> tuple[int, int] | None:
    """Batch size of a matrix product, without and with padding; None for other operations.

    On a TPU, matrix products are convolutions without spatial dimensions, often fused. A fusion
    does not name its batch: it is a small size in both the result and an operand, along the second
    of the tiled dimensions.

    `flop` is that of one execution; NaN if unknown.
    """
    if not instruction.operands or not instruction.results:
        return None
    if instruction.labels is not None:
        left, dim = instruction.operands[0], instruction.labels[0].find("b")
        if not 0 <= dim < len(left.dims):
            return None
        return left.dims[dim], left.padded_dims[dim]
    if not _is_fused_product(instruction, flop):
        return None
    result = _product_result(instruction)
    if len(result.dims) < 2 or len(result.tile) < 2:
        return None
    dim = result.minor_to_major[1]
    size = result.dims[dim]
    is_shared = any(size in operand.dims for operand in instruction.operands)
    return (size, result.padded_dims[dim]) if is_shared and size < _LARGE_BATCH else None


def _is_fused_product(instruction: Instruction, flop: float) -> bool:
    """Whether a fusion multiplies matrices: it has several terms for each element of its result."""
    is_output_fusion = instruction.attributes.startswith(", kind=kOutput")
    if instruction.opcode != "fusion" or not is_output_fusion or not instruction.results:
        return False
    return flop >= 2 * _FEWEST_TERMS * _product_result(instruction).elements


def _true_bytes(shape: Shape) -> int:
    return shape.elements * (shape.stored_bits or max(shape.element_bits, 8)) // 8


def moved_arrays(instruction: Instruction) -> tuple[Shape, ...]:
    """The arrays that an operation reads or writes completely."""
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
    """Multiplications without and with padding; None if it is not a matrix product."""
    contracted = contracted_dimensions(instruction, flop)
    if not contracted and not _is_fused_product(instruction, flop):
        return None
    # A fusion of several products does not tell what it contracts: only its result counts.
    result = _product_result(instruction)
    useful = result.elements * prod(shape.dims[dim] for shape, dim in contracted)
    padded = result.padded_elements * prod(shape.padded_dims[dim] for shape, dim in contracted)
    return (useful, padded) if useful else None


def _product_result(instruction: Instruction) -> Shape:
    if instruction.opcode == "fusion":
        return max(instruction.results, key=lambda shape: shape.elements)
    return instruction.results[0]


def contracted_dimensions(instruction: Instruction, flop: float) -> list[tuple[Shape, int]]:
    """The dimensions that a matrix product sums over, each of an operand; empty if it is none.

    `flop` of one execution reveals what a fusion contracts; NaN if unknown.
    """
    if not instruction.results or len(instruction.operands) < 2:
        return []
    left, right = instruction.operands[:2]
    if instruction.opcode == "dot":
        contracted = [(left, dim) for dim in instruction.contracting]
    elif instruction.opcode == "convolution" and instruction.labels is not None:
        contracted = _convolution_features(instruction, left, right)
    elif instruction.opcode == "fusion" and flop > 0:
        contracted = _contracted_by_flop(instruction, _product_result(instruction), flop)
    else:
        return []
    is_known = all(0 <= dim < len(shape.dims) for shape, dim in contracted)
    return contracted if is_known else []


def _convolution_features(
    instruction: Instruction, left: Shape, right: Shape
) -> list[tuple[Shape, int]]:
    """The features that a convolution sums over. Its window is never padded."""
    assert instruction.labels is not None
    left_labels, right_labels, _ = instruction.labels
    if instruction.feature_groups > 1:
        return [(right, right_labels.find("i"))]
    return [(left, left_labels.find("f"))]


def _contracted_by_flop(
    instruction: Instruction, result: Shape, flop: float
) -> list[tuple[Shape, int]]:
    """The dimension that a fused product contracts: the one that its FLOP are a multiple of."""
    if not instruction.attributes.startswith(", kind=kOutput"):
        return []
    terms = flop / 2 / max(result.elements, 1)
    matching = [
        (shape, dim)
        for shape in instruction.operands
        for dim, size in enumerate(shape.dims)
        if size > 1 and 0 <= terms / size - 1 <= _OTHER_FLOP_SHARE
    ]
    # If several dimensions match, take the least padded one, so as not to overstate the waste.
    matching.sort(key=lambda match: match[0].padded_dims[match[1]])
    return matching[:1]
