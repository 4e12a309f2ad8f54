"""Columns that a reader adds in chunks: unknown values, values that repeat, joining.

A file may have a hundred thousand threads, and each adds a chunk, so that each chunk has to be
cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.errors import InvalidTraceError
from tb_perfadvisor.trace.tables import column_types, repeated

# Values of optional columns that a reader leaves out; all others are -1.
_UNKNOWN: dict[str, Any] = {
    **{"family": 0, "precision": 0, "direction": 0, "bytes": 0},
    # Any 64-bit number except 0 may identify an iterator.
    **{"iterator": 0, "parent": 0, "run": 0},
}


def column_of(name: str, value: ArrayLike, count: int, dtype: Any) -> NDArray[Any]:
    """A column of values, or of one value that applies to all rows.

    Raises:
        InvalidTraceError: If a number is too large for the column.
    """
    try:
        array = np.asarray(value, dtype)
        is_cut = (
            isinstance(value, np.ndarray)
            and value.dtype.kind in "iu"
            and array.dtype.kind in "iu"
            and not np.can_cast(value.dtype, array.dtype)
            and bool((array != value).any())
        )
    except OverflowError:
        is_cut = True
    if is_cut:
        bits = 8 * np.dtype(dtype).itemsize
        raise InvalidTraceError(
            f"the {name} of one of its events does not fit into {bits} bits.",
            hint="The file is damaged: record it again.",
        )
    if array.ndim == 0:
        return repeated(array, count, dtype)
    return array.view() if array.shape == (count,) else np.broadcast_to(array, (count,))


@cache
def unknown_values(table: type[Struct]) -> Mapping[str, NDArray[Any]]:
    """What the columns of a table hold where nothing is known."""
    return {
        name: np.asarray(
            np.nan if np.issubdtype(dtype, np.floating) else _UNKNOWN.get(name, -1), dtype
        )
        for name, dtype in column_types(table).items()
    }


def joined(
    chunks: list[dict[str, NDArray[Any]]], types: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """The columns of all chunks. Empties the chunks, to free memory while joining."""
    if not chunks:
        return {name: np.empty(0, dtype=dtype) for name, dtype in types.items()}
    joined = {}
    for name in types:
        parts = [chunk.pop(name) for chunk in chunks]
        joined[name] = _concatenated(parts) if len(parts) > 1 else parts[0]
    chunks.clear()
    return joined


def _concatenated(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts as one column, which stays a repeated value if all parts repeat the same one."""
    filled = [part for part in parts if part.size]
    if filled and all(part.strides == (0,) for part in filled):
        values = np.concatenate([part[:1] for part in filled])
        if (values == values[0]).all() or (values != values).all():  # not a number
            return repeated(values[0], sum(map(len, parts)), values.dtype)
    return np.concatenate(parts)
