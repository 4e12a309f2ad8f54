"""Columns that a reader adds in chunks: unknown values, values that repeat, joining.

A file may have a hundred thousand threads, and each adds a chunk, so that each chunk has to be
cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, overload

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.errors import InvalidTraceError
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64, column_types, repeated

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
        values = np.asarray(value)
        array = values.astype(dtype, copy=False)
        is_cut = (
            array is not values
            and values.dtype.kind in "iu"
            and array.dtype.kind in "iu"
            and not np.can_cast(values.dtype, array.dtype)
            and bool((array != values).any())
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


class TableLookup(Struct, frozen=True):
    """An operation that reads rows of a table by their numbers."""

    module: str
    """Such as `jit_step(19)`."""
    operation: str
    """The instruction that runs it: the fusion, if it is inside one."""
    rows: int
    """Of the table."""
    width: int
    """Numbers in a row."""
    count: int
    """How many rows it reads."""


class TextColumn(Sequence[str]):
    """A categorical column: reads as a sequence of texts, computes with integer codes."""

    def __init__(self, strings: Sequence[str], index: Int32, unknown: str = "") -> None:
        """Look up the texts of rows.

        `index` has the string index of each row, -1 for none; shape (n,). Rows that have no text
        or an empty one get `unknown`.
        """
        used, inverse = unique_inverse(index)
        code_of: dict[str, int] = {}
        codes = [
            code_of.setdefault((strings[string] if string >= 0 else "") or unknown, len(code_of))
            for string in used.tolist()
        ]
        self.texts = tuple(code_of)
        """The distinct texts."""
        self.code: Int64 = np.array(codes, dtype=np.int64)[inverse]
        """The index into `texts` of each row; shape (n,)."""

    def is_any_of(self, *texts: str) -> NDArray[np.bool_]:
        """Which rows have one of the given texts; shape (n,)."""
        return np.array([text in texts for text in self.texts], dtype=bool)[self.code]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.code)

    def __iter__(self) -> Iterator[str]:
        """The text of each row."""
        return map(self.texts.__getitem__, self.code.tolist())

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...

    def __getitem__(self, row: Any) -> Any:
        """The text of a row, or the texts of a slice."""
        if isinstance(row, slice):
            return tuple(map(self.texts.__getitem__, self.code[row].tolist()))
        return self.texts[self.code[row]]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same text in every row."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


# A table lookup is one gather, where a binary search takes about twenty steps. Above these limits
# (entries in total, and entries per id) the table costs more than it saves.
_MAX_TABLE_SIZE: Final = 1 << 22
_MAX_ENTRIES_PER_ID: Final = 8


class IdIndex:
    """Maps ids to rows: the row of an id is its position among the sorted, distinct ids."""

    def __init__(self, ids: Int64) -> None:
        """Build the lookup table, if the ids (sorted and distinct) are dense enough for one."""
        self.ids = ids
        self._table: Int32 | None = None
        self._offset = 0
        if not ids.size:
            return
        least, greatest = int(ids[0]), int(ids[-1])
        # Most ids count up from about 0: then skip the subtraction on every lookup.
        if not 0 <= least <= _MAX_ENTRIES_PER_ID * ids.size:
            self._offset = least
        if greatest - self._offset <= max(_MAX_TABLE_SIZE, _MAX_ENTRIES_PER_ID * ids.size):
            # One more entry stands for all ids above the greatest.
            self._table = np.full(greatest - self._offset + 2, ids.size, dtype=np.int32)
            self._table[ids - self._offset] = np.arange(ids.size)

    def __len__(self) -> int:
        """Number of ids."""
        return int(self.ids.size)

    def rows(self, ids: Int32 | Int64) -> Int32:
        """The row of each id; `len(self)` for unknown ids."""
        if self._table is not None:
            entries = ids - np.int64(self._offset) if self._offset else ids
            # As unsigned numbers, negative entries are beyond the table.
            unsigned = entries.view(np.uint64 if entries.dtype == np.int64 else np.uint32)
            entries = np.minimum(unsigned, unsigned.dtype.type(self._table.size - 1))
            # `take` with indices of NumPy's own width takes half of the time of indexing.
            rows: Int32 = self._table.take(entries.astype(np.intp, copy=False))
            return rows
        if not len(self):
            return np.zeros(ids.shape, dtype=np.int32)
        slot = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[slot] == ids, slot, len(self)).astype(np.int32)
