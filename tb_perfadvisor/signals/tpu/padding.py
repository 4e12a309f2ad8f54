"""Work that XLA operations on a TPU waste on padding to whole tiles.

A matrix product computes with the padded sizes of its result and of its contracted dimensions. Any
other operation moves the padded bytes of its arrays. Each array's layout gives its tiles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from math import prod

import numpy as np
from msgspec import Struct

from tb_perfadvisor.hardware.tpu_shape_costs import ShapeCosts, Work
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction

_LARGEST_WINDOW = 11
"""Larger windows are those of weight gradients, which slide one image over another."""
# Compiled on first use; `re` caches it.
_WINDOW_SIZE = r"window=\{[^{}]*size=([\dx]{1,40})"
_OTHER_WINDOWS = r"window=\{[^{}]*(?:dilate|stride)="


class Product(Struct, frozen=True):
    """A matrix product, with the dimensions that make up each of its sizes."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    contracted: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def named(self) -> Mapping[str, tuple[int, ...]]:
        """The dimensions whose size the program chooses, by name."""
        return {"rows": self.rows, "contracted": self.contracted, "columns": self.columns}

    @property
    def kind(self) -> str:
        """The kind of operation in the model."""
        return "product" if prod(self.batch) == 1 else "batched-product"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its sizes in the model: rows, contracted and columns, after a batch if it has one."""
        dims = (self.batch, self.rows, self.contracted, self.columns)
        sizes = tuple(prod(part) for part in dims)
        return sizes if self.kind == "batched-product" else sizes[1:]

    def resized(self, size: int, fits: int) -> Product:
        """The product with another size in place of one."""
        changed = (
            tuple(fits if dim == size else dim for dim in dims)
            for dims in (self.rows, self.contracted, self.columns)
        )
        return Product(self.batch, *changed)

    def in_tiles(self, result: Shape) -> Product:
        """The product with its rows and columns as the layout of the result pads them.

        Rows or columns of several dimensions are not padded together, but each by itself: 4 x 513
        columns are 4 x 640 if the second dimension fills the lanes.
        """
        padded = dict(zip(result.dims, result.padded_dims, strict=True))
        rows, columns = (
            tuple(padded.get(dim, dim) for dim in dims) if len(dims) > 1 else dims
            for dims in (self.rows, self.columns)
        )
        return Product(self.batch, rows, self.contracted, columns)

    def work(self, costs: ShapeCosts) -> tuple[str, Work] | None:
        """The kind of operation in the model and its work; None if the model does not know it."""
        if costs.knows(self.kind):
            return self.kind, costs.work(self.kind, self.sizes)
        if not costs.knows("product"):
            return None
        batch, work = prod(self.batch), costs.work("product", self.sizes[-3:])
        return "product", work._replace(
            matrix_cycles=batch * work.matrix_cycles, ragged_cycles=batch * work.ragged_cycles
        )


class Convolution(Struct, frozen=True):
    """A convolution of images with a square window that moves by one."""

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    window: int

    @property
    def kind(self) -> str:
        """The kind of operation in the model."""
        return "convolution"

    @property
    def named(self) -> Mapping[str, tuple[int, ...]]:
        """The dimensions whose size the program chooses, by name."""
        return {
            "batch": (self.batch,),
            "input features": (self.inputs,),
            "output features": (self.outputs,),
        }

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its sizes in the model."""
        return self.batch, self.height, self.width, self.inputs, self.outputs, self.window

    def resized(self, size: int, fits: int) -> Convolution:
        """The convolution with another size in place of one."""

        def other(now: int) -> int:
            return fits if now == size else now

        return Convolution(
            other(self.batch),
            self.height,
            self.width,
            other(self.inputs),
            other(self.outputs),
            self.window,
        )

    def in_tiles(self, result: Shape) -> Convolution:
        """The same: the model knows how a convolution's dimensions are padded."""
        return self

    def work(self, costs: ShapeCosts) -> tuple[str, Work] | None:
        """The kind of operation in the model and its work; None if the model does not know it."""
        if not costs.knows(self.kind):
            return None
        return self.kind, costs.work(self.kind, self.sizes)


Multiplication = Product | Convolution


def multiplication_of(
    instruction: Instruction, flop: float, inside: Instruction | None = None
) -> Multiplication | None:
    """The product or convolution of an operation; None for other operations.

    `flop` of one execution reveals what a fusion contracts; NaN if unknown. `inside` is the
    product or convolution inside of a fusion, if the profile has it.
    """
    for known in (inside, instruction):
        if known is not None:
            found = convolution_of(known) or product_of(known, flop)
            if found is not None:
                return found
    return None


def convolution_of(instruction: Instruction) -> Convolution | None:
    """The sizes of a convolution of images; None for other operations.

    Convolutions without a window are matrix products.
    """
    labels = instruction.labels
    window = re.search(_WINDOW_SIZE, instruction.attributes)
    if instruction.opcode != "convolution" or labels is None or window is None:
        return None
    sides = [int(side) for side in window[1].split("x") if side]
    is_plain = len(sides) == 2 and sides[0] == sides[1] and sides[0] <= _LARGEST_WINDOW
    groups = instruction.feature_groups * instruction.batch_groups
    if not is_plain or groups > 1 or re.search(_OTHER_WINDOWS, instruction.attributes):
        return None
    (left, right), (result,) = instruction.operands[:2], instruction.results[:1]
    image, kernel, _ = labels
    if sorted(image) != ["0", "1", "b", "f"] or sorted(kernel) != ["0", "1", "i", "o"]:
        return None
    if not len(left.dims) == len(right.dims) == len(result.dims) == 4:
        return None
    size = dict(zip(image, left.dims, strict=True))
    features = dict(zip(kernel, right.dims, strict=True))
    return Convolution(size["b"], size["0"], size["1"], features["i"], features["o"], sides[0])


def product_of(instruction: Instruction, flop: float) -> Product | None:
    """The sizes of a matrix product; None for other operations, and for windows on images.

    `flop` of one execution reveals what a fusion contracts; NaN if unknown.
    """
    contracted = contracted_dimensions(instruction, flop)
    if not contracted:
        return None
    terms = prod(shape.dims[dim] for shape, dim in contracted)
    result = max(instruction.results, key=lambda shape: shape.elements)
    rests = []
    for operand in instruction.operands:
        rest = Counter(operand.dims)
        rest[terms] -= 1
        if rest[terms] >= 0:
            rests.append(rest)
    # The largest operands are listed first or last; statistics of rows are small.
    pairs = [pair for left, right in combinations(rests, 2) if (pair := _pair(result, left, right))]
    if not pairs:
        return None
    batch, rows, columns = max(pairs, key=lambda pair: prod(pair[0]))
    return Product(batch, rows, (terms,), columns)


def _pair(
    result: Shape, left: Counter[int], right: Counter[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Batch, rows and columns of a product of two operands; None if they do not give the result.

    `left` and `right` are the sizes of the operands without the contracted one, by how often they
    occur.
    """
    sizes = Counter(result.dims)
    columns, rows = sizes - left, sizes - right
    batch = left - rows
    _drop_ones(columns, rows, batch)
    others = right - columns
    _drop_ones(others)
    if columns - right or rows - left or batch != others:
        return None
    found = tuple(batch.elements()), tuple(rows.elements()), tuple(columns.elements())
    is_whole = prod(prod(part) for part in found) == result.elements
    return found if is_whole else None


def _drop_ones(*sizes: Counter[int]) -> None:
    for part in sizes:
        part.pop(1, None)


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
