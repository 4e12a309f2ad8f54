"""Parses the text of XLA operations: opcode, arrays with layouts and tiles, attributes.

An array's layout names the order of its dimensions from the fastest varying one, and its tile: in
`bf16[100,30]{1,0:T(8,128)(2,1)}`, dimension 1 varies fastest. Whole tiles of 8 by 128 elements are
stored, so 100 x 30 elements take the space of 104 x 128. Each further tile divides the one before
it: (2,1) packs two rows of 16-bit numbers into one row of 32-bit words, and (4,1) four rows of
8-bit numbers. It pads only if it does not divide that tile evenly. `S(n)` names the memory, and
`E(n)` the bits of an element if its type does not give them (source: OpenXLA, "Tiled layout" and
"Shapes and layout").
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from math import prod

from msgspec import Struct

from tb_perfadvisor.patterns import regex

_SHAPE = regex(
    r"\b(?P<dtype>pred|bf16|[suf]\d+[a-z0-9]*|c64|c128)\[(?P<dims>[0-9,<=]*)\]"
    r"(?P<layout>\{(?P<order>[0-9,]*)(?::(?P<rest>[^{}]*))?\})?"
)
# Kept as text because few programs need them; `re` caches compiled patterns.
_TILES = r"T((?:\([0-9,]+\))+)"
_SPACE = r"S\((\d{1,9})\)"
_ELEMENT_BITS = r"E\((\d{1,4})\)"
_DIM_LABELS = r"dim_labels=(\w+)_(\w+)->(\w+)"
_FEATURE_GROUPS = r"feature_group_count=(\d{1,18})"
_BATCH_GROUPS = r"batch_group_count=(\d{1,18})"
_OPERAND_PRECISION = r"operand_precision=\{([a-z,_]*)\}"
_OPERAND_NAME = r"%([\w.\-]+)"
_OPCODE = regex(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_CONTRACTING = regex(r"lhs_contracting_dims=\{([0-9,]+)\}")
_DTYPE_BITS = regex(r"(\d{1,4})")
_NUMBER = regex(r"\d{1,18}")
_PARENTHESIS = regex(r"[()]")
_HOST_MEMORY = 5


class Shape(Struct, frozen=True, dict=True):
    """An array as HLO text has it."""

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    """Each divides the tile before it; the fastest dimension is last. Empty if untiled."""
    memory_space: int = 0
    """0 is the device's main memory, 1 is on-chip memory, 5 is host memory."""
    stored_bits: int = 0
    """Bits of an element if the layout states them, else 0."""
    layout: str = ""
    """The text of the layout without the memory; empty if none is stated."""

    def __str__(self) -> str:
        """HLO text without the layout: `bf16[100,30]`."""
        return f"{self.dtype}[{','.join(str(dim) for dim in self.dims)}]"

    @property
    def tile(self) -> tuple[int, ...]:
        """The first tile, to which dimensions are rounded up; empty if untiled."""
        return self.tiles[0] if self.tiles else ()

    @property
    def elements(self) -> int:
        """Elements that carry data."""
        return prod(self.dims)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Dimensions rounded up to the tile, in the order of `dims`."""
        padded = list(self.dims)
        for size, dim in zip(reversed(self.tile), self.minor_to_major, strict=False):
            padded[dim] = round_up(padded[dim], size)
        return tuple(padded)

    @cached_property
    def padded_elements(self) -> int:
        """Elements that are stored with all tiles; the tile may have more dimensions."""
        # Order of memory: from the slowest dimension to the fastest.
        stored = [self.dims[dim] for dim in reversed(self.minor_to_major)]
        for tile in self.tiles:
            stored = [1] * (len(tile) - len(stored)) + stored
            whole, split = stored[: -len(tile)], stored[-len(tile) :]
            counts = (-(-size // unit) for size, unit in zip(split, tile, strict=True))
            stored = [*whole, *counts, *tile]
        return prod(stored)

    @property
    def padded_bytes(self) -> int:
        """Size in memory. Without `E(4)`, a 4-bit element takes a byte."""
        return self.padded_elements * (self.stored_bits or max(self.element_bits, 8)) // 8

    @property
    def is_on_host(self) -> bool:
        """Whether the array is in host memory."""
        return self.memory_space == _HOST_MEMORY

    @cached_property
    def element_bits(self) -> int:
        """Bits of an element; a predicate takes a byte."""
        digits = _DTYPE_BITS.search(self.dtype)
        return int(digits.group(1)) if digits else 8

    @property
    def misfits(self) -> tuple[tuple[int, int, int], ...]:
        """Dimensions that the tile pads: (dimension, size, multiple that needs no padding)."""
        return tuple(
            (dim, self.dims[dim], size)
            for size, dim in zip(reversed(self.tile), self.minor_to_major, strict=False)
            if self.dims[dim] % size
        )


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple that is at least `size`."""
    return -(-size // multiple) * multiple


class Instruction(Struct, frozen=True):
    """One HLO instruction: its result, its operands and what it contracts."""

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[Shape, ...]
    contracting: tuple[int, ...]
    """Dimensions of the first operand that a dot contracts."""
    labels: tuple[str, str, str] | None = None
    """Roles of a convolution's dimensions in operands and result: `("b01f", "01io", "b01f")`.

    b is the batch, f a feature, i and o are the kernel's input and output features, digits are
    spatial dimensions."""
    feature_groups: int = 1
    batch_groups: int = 1
    """Groups of a grouped convolution in its gradients: the batch is split, not the features."""
    operand_precision: tuple[str, ...] = ()
    """How precisely 32-bit operands are multiplied: default, high, highest; empty for default."""
    operand_names: tuple[str, ...] = ()
    attributes: str = ""
    """Text after the operands: `slice={[0:8], [0:30]}`, `kind=kLoop`, …"""


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """All array shapes in a piece of HLO text, in order."""
    return tuple(_shape(*parts) for parts in _SHAPE.findall(text))


# A program has thousands of operations and few different shapes.
@lru_cache(maxsize=4096)
def _shape(dtype: str, dims_text: str, layout: str, order_text: str, rest: str) -> Shape:
    dims, order = _numbers(dims_text), _numbers(order_text)
    if sorted(order) != list(range(len(dims))):  # not stated
        order = tuple(reversed(range(len(dims))))
    tiles = re.search(_TILES, rest)
    space, bits = re.search(_SPACE, rest), re.search(_ELEMENT_BITS, rest)
    return Shape(
        dtype=dtype,
        dims=dims,
        minor_to_major=order,
        tiles=_tiles(tiles[1]) if tiles else (),
        memory_space=int(space[1]) if space else 0,
        stored_bits=int(bits[1]) if bits else 0,
        layout=re.sub(_SPACE, "", layout).replace(":}", "}"),
    )


def _numbers(text: str) -> tuple[int, ...]:
    """The integers in `100,<=30`, with a limited number of digits."""
    return tuple(map(int, _NUMBER.findall(text)))


def _tiles(text: str) -> tuple[tuple[int, ...], ...]:
    """`(8,128)(2,1)` as numbers; tiles with a size of 0 are invalid and left out."""
    parts = text.strip("()").split(")(")
    tiles = map(_numbers, parts)
    return tuple(tile for tile in tiles if tile and all(tile))


@lru_cache(maxsize=16_384)
def parse_instruction(text: str) -> Instruction | None:
    """Parse `%name = shape opcode(shape %operand, …), …`; None for other text."""
    _, equals, body = text.partition(" = ")
    if not equals:
        return None
    # A tuple result also opens a parenthesis, but no opcode precedes it.
    opcode = _OPCODE.search(body)
    if opcode is None:
        return None
    results = body[: opcode.start(1)]
    arguments, attributes = _balanced(body[opcode.end() :])
    contracting = _CONTRACTING.search(attributes)
    labels, groups = re.search(_DIM_LABELS, attributes), re.search(_FEATURE_GROUPS, attributes)
    batch_groups = re.search(_BATCH_GROUPS, attributes)
    precision = re.search(_OPERAND_PRECISION, attributes)
    return Instruction(
        opcode=opcode.group(1),
        results=parse_shapes(results),
        operands=parse_shapes(arguments),
        contracting=_numbers(contracting.group(1)) if contracting else (),
        labels=(labels[1], labels[2], labels[3]) if labels else None,
        feature_groups=int(groups[1]) if groups else 1,
        batch_groups=int(batch_groups[1]) if batch_groups else 1,
        operand_precision=tuple(precision[1].split(",")) if precision else (),
        operand_names=tuple(re.findall(_OPERAND_NAME, arguments)),
        attributes=attributes,
    )


def _balanced(text: str) -> tuple[str, str]:
    """Split the text after an opening parenthesis at the closing one."""
    depth = 1
    for parenthesis in _PARENTHESIS.finditer(text):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return text[: parenthesis.start()], text[parenthesis.end() :]
    return text, ""
