"""Shapes, layouts and tiles of XLA operations, read from their HLO text.

An array's layout names the order of its dimensions from the fastest varying one, and its tile:
`bf16[100,30]{1,0:T(8,128)(2,1)}` keeps dimension 1 fastest and stores whole tiles of 8 by 128
elements, so 100 x 30 take the room of 104 x 128. The first tile decides the padding; further
ones, like (2,1), only reorder elements within it (source: XLA documentation, "Tiled layout").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod

import numpy as np

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.tables import Int32, Int64

_SHAPE = re.compile(
    r"\b(?P<dtype>pred|bf16|[suf]\d+[a-z0-9]*|c64|c128)\[(?P<dims>[0-9,<=]*)\]"
    r"(?:\{(?P<order>[0-9,]*)(?::(?P<layout>[^{}]*))?\})?"
)
_TILE = re.compile(r"T\(([0-9,]+)\)")
_OPCODE = re.compile(r"\s([a-z][a-z0-9\-]*)\(")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([0-9,]+)\}")
_DTYPE_BITS = re.compile(r"(\d+)")
_PARENTHESIS = re.compile(r"[()]")


@dataclass(frozen=True)
class Shape:
    """An array as HLO text has it; what follows from it is worked out once."""

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tile: tuple[int, ...]
    """The first tile, the fastest dimension last; empty when the text has none."""

    @cached_property
    def elements(self) -> int:
        """Elements that carry data."""
        return prod(self.dims)

    @cached_property
    def padded_dims(self) -> tuple[int, ...]:
        """Dimensions rounded up to the tile, in the order of `dims`."""
        padded = list(self.dims)
        for size, dim in zip(reversed(self.tile), self.minor_to_major, strict=False):
            padded[dim] = ceil(padded[dim] / size) * size
        return tuple(padded)

    @cached_property
    def padded_elements(self) -> int:
        """Elements that are stored: also of an array with fewer dimensions than its tile."""
        extra = self.tile[: max(len(self.tile) - len(self.dims), 0)]
        return prod(self.padded_dims) * prod(extra)

    @cached_property
    def element_bits(self) -> int:
        """Width of an element; a predicate takes a byte."""
        digits = _DTYPE_BITS.search(self.dtype)
        return int(digits.group(1)) if digits else 8

    @property
    def misfits(self) -> tuple[tuple[int, int, int], ...]:
        """Dimensions that miss their tile: (dimension, its size, the multiple it needs)."""
        return tuple(
            (dim, self.dims[dim], size)
            for size, dim in zip(reversed(self.tile), self.minor_to_major, strict=False)
            if self.dims[dim] % size
        )


@dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction: its result, its operands and what it contracts."""

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[Shape, ...]
    contracting: tuple[int, ...]
    """Dimensions of the first operand that a dot contracts."""


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Every array shape in a piece of HLO text, in order."""
    return tuple(_shape(*parts) for parts in _SHAPE.findall(text))


# A program has thousands of operations and few different shapes.
@lru_cache(maxsize=4096)
def _shape(dtype: str, dims_text: str, order_text: str, layout: str) -> Shape:
    dims = tuple(int(d.lstrip("<=")) for d in dims_text.split(",") if d.lstrip("<="))
    order = tuple(int(d) for d in order_text.split(",") if d)
    tile = _TILE.search(layout)
    return Shape(
        dtype=dtype,
        dims=dims,
        minor_to_major=order if len(order) == len(dims) else tuple(reversed(range(len(dims)))),
        tile=tuple(int(d) for d in tile.group(1).split(",") if d) if tile else (),
    )


def parse_instruction(text: str) -> Instruction | None:
    """An instruction from its text `%name = shape opcode(shape %operand, …), …`; else None."""
    _, equals, body = text.partition(" = ")
    if not equals:
        return None
    # A tuple result opens with a parenthesis of its own, which no opcode precedes.
    opcode = _OPCODE.search(" " + body)
    if opcode is None:
        return None
    results = body[: max(opcode.start() - 1, 0)]
    arguments, attributes = _balanced(body[opcode.end() - 1 :])
    contracting = _CONTRACTING.search(attributes)
    return Instruction(
        opcode=opcode.group(1),
        results=parse_shapes(results),
        operands=parse_shapes(arguments),
        contracting=(tuple(int(d) for d in contracting.group(1).split(",")) if contracting else ()),
    )


def _balanced(text: str) -> tuple[str, str]:
    """Split what follows an opening parenthesis at the one that closes it."""
    depth = 1
    for found in _PARENTHESIS.finditer(text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return text[: found.start()], text[found.end() :]
    return text, ""


@dataclass(frozen=True, slots=True)
class HloTotals:
    """Executions of each XLA operation in the used window; columns of shape (ops,)."""

    op: Int32
    """Row of the `HloTable`."""
    count: Int64
    total_ns: Int64
    """Summed durations of the executions that start in the window."""


def hlo_totals(
    trace: Trace, device_rows: Int32, window_start_ns: int, window_end_ns: int
) -> HloTotals:
    """Time by XLA operation on one device, the costliest first."""
    events, table = trace.events, trace.hlo_events
    on_device = np.zeros(len(events), dtype=bool)
    on_device[device_rows] = True
    start = events.start_ns[table.row]
    keep = on_device[table.row] & (start >= window_start_ns) & (start < window_end_ns)
    ops, inverse, count = np.unique(table.op[keep], return_inverse=True, return_counts=True)
    duration = events.duration_ns[table.row[keep]]
    total = np.bincount(inverse, weights=duration, minlength=len(ops)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return HloTotals(ops[order], count[order].astype(np.int64), total[order])
