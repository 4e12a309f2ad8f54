"""Shapes of operators' inputs, which profiles store as JSON: `[[8,128],[128,64],[]]`."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

Shape = tuple[int, ...]
_MOST_ELEMENTS = 2**48
"""More elements than any machine's memory holds: such sizes are damaged, and products of them would
not fit into 64 bits."""


@lru_cache(maxsize=16_384)  # layers repeat, and so do steps
def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes of the inputs by position; the empty shape for inputs that are not arrays."""
    try:
        inputs = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(map(_shape, inputs)) if isinstance(inputs, list) else ()


def _shape(value: object) -> Shape:
    return tuple(value) if isinstance(value, list) and is_shape(value) else ()


def is_shape(sizes: list[Any]) -> bool:
    """Whether a list contains only sizes, of a tensor that can exist."""
    if not set(map(type, sizes)) <= {int} or min(sizes, default=0) < 0:
        return False
    return bool(prod(size or 1 for size in sizes) < _MOST_ELEMENTS)


def shapes_of(trace: Trace, operators: Int32) -> Int32:
    """Index of the string with each operator's shapes; -1 if they were not recorded."""
    table = trace.operators
    if not len(table.row):
        return np.full(len(operators), -1, dtype=np.int32)
    slot = np.minimum(np.searchsorted(table.row, operators), len(table.row) - 1)
    return np.where(table.row[slot] == operators, table.shapes[slot], np.int32(-1))


def largest_input(trace: Trace, operators: Int32) -> Int64:
    """Number of elements in each operator's largest input; 0 if unknown."""
    texts, inverse = unique_inverse(shapes_of(trace, operators))
    sizes = [
        max((prod(shape) for shape in parse_shapes(trace.text(text)) if shape), default=0)
        for text in texts.tolist()
    ]
    return np.array(sizes, dtype=np.int64)[inverse]
