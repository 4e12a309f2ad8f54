"""Masks that a program computes from positions: how much they let through.

A mask such as `(i - j >= 0) & (i - j < 256)` depends on nothing but the positions, so it is known.
It is computed here for a sample of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, origin
from tb_perfadvisor.trace.program import Program

_SAMPLES: Final = 1 << 16
_DEEPEST: Final = 40
_COMPUTED: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "negate": np.negative,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs": np.abs,
}
_COMPARED: Final[Mapping[str, Callable[..., Any]]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def true_share(program: Program, select: int, value: int) -> float | None:
    """The share of a value's elements that a choice by position takes.

    Args:
        program: The program.
        select: The row of the choice.
        value: The row of one of its operands.

    Returns:
        None if the mask depends on more than positions, or the other operand is no constant.
    """
    is_first = value in program.operands(select, 1)
    others = program.operands(select, 2 if is_first else 1)
    sources = [origin(program, row, (*SAME_ELEMENTS, "broadcast")) for row in others]
    masks = program.operands(select, 0)
    if len(masks) != 1 or any(program.name_of(row) != "constant" for row in sources):
        return None
    mask = origin(program, masks[0], (*SAME_ELEMENTS, "broadcast"))
    dims = program.shape_of(mask).dims
    if not dims or 0 in dims:
        return None
    most = max(int(_SAMPLES ** (1 / len(dims))), 2)
    places = [np.linspace(0, size - 1, min(size, most)).astype(np.int64) for size in dims]
    found = _values(program, mask, places, 0)
    if found is None:
        return None
    share = float(np.broadcast_to(found, [len(at) for at in places]).mean())
    return share if is_first else 1 - share


def _values(
    program: Program, row: int, places: list[NDArray[np.int64]], depth: int
) -> NDArray[Any] | None:
    """A value at some positions along each dimension; None if it depends on more than those."""
    name = program.name_of(row)
    if depth > _DEEPEST:
        return None
    if name == "constant":
        return np.array(program.numbers[row]) if row in program.numbers else None
    dims = program.dimensions.get(row, ())
    if name == "iota" and len(dims) == 1 and dims[0] < len(places):
        shape = [1] * len(places)
        shape[dims[0]] = -1
        return places[dims[0]].reshape(shape)
    operands = [program.operands(row, slot) for slot in (0, 1)]
    if any(len(found) > 1 for found in operands):
        return None
    rows = [found[0] for found in operands if found]
    if name == "broadcast" and rows and all(dim < len(places) for dim in dims):
        inner = _values(program, rows[0], [places[dim] for dim in dims], depth + 1)
        if inner is None or not dims:
            return inner
        if list(dims) != sorted(dims):
            return None
        kept = np.broadcast_to(inner, [len(places[dim]) for dim in dims])
        return kept.reshape([len(at) if dim in dims else 1 for dim, at in enumerate(places)])
    if name in ("convert", "copy", "copy-start") and rows:
        return _values(program, rows[0], places, depth + 1)
    text = program.texts.get(row, "") if name == "compare" else ""
    function = _COMPARED.get(text.rpartition("direction=")[2][:2]) or _COMPUTED.get(name)
    if function is None or not rows:
        return None
    values = [_values(program, of, places, depth + 1) for of in rows]
    return None if any(value is None for value in values) else function(*values)
