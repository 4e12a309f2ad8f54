"""Matrix products and convolutions, with the dimensions that make up each of their sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from math import prod

from msgspec import Struct

from tb_perfadvisor.hardware.tpu_shape_costs import ShapeCosts, Work
from tb_perfadvisor.signals.tpu.padding import contracted_dimensions
from tb_perfadvisor.trace.hlo_text import Instruction, Shape

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
