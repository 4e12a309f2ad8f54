"""What depends on positions alone: masks that a program makes of `iota` and constants.

Such a value is known before the program runs. A mask that is false for whole blocks of an array,
such as a causal or a banded one, says which blocks nobody needs.

A value is computed where it is asked for: its positions are one array of indices per dimension, and
these broadcast, so that a mask of rows by columns is made of a few rows and a few columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.program.graph import origin
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program

_BLOCK = 512
"""Rows and columns of blocks that could be left out: with smaller ones, each of the many products
would leave the matrix unit partly empty."""
_SAMPLES = 4
"""Rows of a block that are looked at."""
_MOST_SAMPLES = 1 << 22
_MOST_VALUES = 200
_COPIES = ("copy", "copy-start", "convert")

_Positions = tuple[NDArray[Any], ...]


def _divide(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers are rounded toward zero, as in XLA."""
    is_whole = left.dtype.kind == right.dtype.kind == "i"
    quotient: NDArray[Any] = left / right
    return np.trunc(quotient).astype(np.int64) if is_whole else quotient


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"abs": np.abs, "add": np.add, "and": np.bitwise_and, "floor": np.floor, "not": np.invert},
    **{"maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply, "sign": np.sign},
    **{"negate": np.negative, "or": np.bitwise_or, "remainder": np.fmod, "select": np.where},
    **{
        "subtract": np.subtract,
        "xor": np.bitwise_xor,
        "divide": _divide,
    },
    **{"shift-left": np.left_shift, "shift-right-logical": np.right_shift},
    "shift-right-arithmetic": np.right_shift,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    **{"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal},
    **{"GT": np.greater, "GE": np.greater_equal},
}


def kept_share(program: Program, mask: int, *, where: bool = True) -> float:
    """The share of an array in the blocks where a mask is true anywhere, or false.

    It is 1 if more than positions decide it.
    """
    mask = origin(program, mask, ("broadcast", *_COPIES))
    dims = program.shape_of(mask).dims
    if not dims or program.largest_argument[mask]:
        return 1.0
    samples = [_samples(size, is_last=place == len(dims) - 1) for place, size in enumerate(dims)]
    if prod(map(len, samples)) > _MOST_SAMPLES:
        return 1.0
    with np.errstate(all="ignore"):
        known = _Known(program).at(mask, np.ix_(*samples))
    if known is None:
        return 1.0
    kept = np.broadcast_to(known.astype(bool) == where, tuple(map(len, samples)))
    for axis, found in enumerate(samples):
        kept = np.logical_or.reduceat(
            kept, np.flatnonzero(np.diff(found // _BLOCK, prepend=-1)), axis
        )
    return float(kept.mean()) if kept.any() else 1.0


def masks_rows(program: Program, mask: int) -> bool:
    """Whether a mask is the same for all elements of a row, the last dimension."""
    spread = origin(program, mask, _COPIES)
    rank = len(program.shape_of(spread).dims)
    is_spread = program.name_of(spread) == "broadcast"
    return is_spread and rank - 1 not in program.dimensions.get(spread, (rank - 1,))


def _samples(size: int, *, is_last: bool) -> NDArray[Any]:
    """The positions along one dimension at which a mask is computed: all along the last."""
    if is_last:
        return np.arange(size)
    starts = np.arange(0, size, _BLOCK)
    within = np.linspace(0, _BLOCK - 1, _SAMPLES).astype(np.int64)
    found = np.minimum(starts[:, None] + within, size - 1)
    return np.unique(found)


class _Known:
    """The values of a program that depend on positions alone."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._found: dict[tuple[int, tuple[int, ...]], tuple[_Positions, NDArray[Any] | None]] = {}

    def at(self, row: int, positions: _Positions) -> NDArray[Any] | None:
        """A value at some positions; None if it depends on more."""
        key = row, tuple(map(id, positions))
        if key not in self._found:
            if len(self._found) > _MOST_VALUES:
                return None
            self._found[key] = positions, None  # a value of a loop that depends on itself
            self._found[key] = positions, self._at(row, positions)
        return self._found[key][1]

    def _at(self, row: int, positions: _Positions) -> NDArray[Any] | None:
        program, name = self._program, self._program.name_of(row)
        dims = program.dimensions.get(row, ())
        if row in program.numbers:
            is_whole = program.shape_of(row).dtype[:1] in ("s", "u", "p")
            return np.array(program.numbers[row], dtype=np.int64 if is_whole else np.float64)
        if name == "iota":
            return positions[dims[0]] if dims else None
        slots = [program.operands(row, slot) for slot in range(3)]
        operands = [found[0] for found in slots if len(found) == 1]
        if not operands or len(operands) != sum(map(bool, slots)):
            return None
        if name == "broadcast":
            of = tuple(positions[dim] for dim in dims)
            return self.at(operands[0], of)
        if name == "transpose":
            of = tuple(positions[dims.index(dim)] for dim in range(len(dims)))
            return self.at(operands[0], of)
        if name in ("bitcast", "reshape"):
            kept = _same_dims(program.shape_of(operands[0]), program.shape_of(row))
            if kept is None:
                return None
            return self.at(operands[0], tuple(_ZERO if k < 0 else positions[k] for k in kept))
        if name in ("copy", "copy-start"):
            return self.at(operands[0], positions)
        values = [self.at(operand, positions) for operand in operands]
        known = [value for value in values if value is not None]
        if len(known) != len(values):
            return None
        return self._computed(row, name, known)

    def _computed(self, row: int, name: str, known: list[NDArray[Any]]) -> NDArray[Any] | None:
        is_mask = self._program.shape_of(row).dtype == "pred"
        if name == "compare":
            direction = self._program.texts.get(row, "").rpartition("direction=")[2][:2]
            compare = _COMPARISONS.get(direction)
            return compare(*known) if compare is not None and len(known) == 2 else None
        if name == "convert":
            is_float = "f" in self._program.shape_of(row).dtype
            return known[0].astype(np.float64 if is_float else bool if is_mask else np.int64)
        if is_mask:
            known = [value.astype(bool) for value in known]
        elif name == "select":
            known[0] = known[0].astype(bool)
        function = _FUNCTIONS.get(name)
        return None if function is None else np.asarray(function(*known))


_ZERO = np.zeros((), dtype=np.int64)


def _same_dims(operand: Shape, result: Shape) -> list[int] | None:
    """Which dimension of a result each one of its operand is; -1 for those of one element.

    None if the two differ by more than such dimensions.
    """
    large = [place for place, size in enumerate(result.dims) if size > 1]
    if [size for size in operand.dims if size > 1] != [result.dims[place] for place in large]:
        return None
    if len(large) > 1 and _order(operand) != _order(result):
        return None
    places = iter(large)
    return [next(places) if size > 1 else -1 for size in operand.dims]


def _order(shape: Shape) -> list[int]:
    """The large dimensions from the fastest varying one, numbered among themselves."""
    large = [place for place, size in enumerate(shape.dims) if size > 1]
    return [large.index(place) for place in shape.minor_to_major if place in large]
