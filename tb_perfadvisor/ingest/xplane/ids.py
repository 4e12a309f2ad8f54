"""Finds the rows of ids, which profilers number from 1 and damaged files at will."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

# A table is a gather where a search is twenty steps; beyond this it costs more than it saves.
_LARGEST_IN_TABLE: Final = 1 << 22


class Ids:
    """Sorted ids without repetition; the row of an id is its place among them."""

    def __init__(self, ids: Int64s) -> None:
        """Prepare to find rows.

        Args:
            ids: Shape (n,), sorted, each once.
        """
        self.ids = ids
        self._table: Int32s | None = None
        if ids.size and ids[0] >= 0 and ids[-1] <= _LARGEST_IN_TABLE:
            # One entry more, for ids above all.
            self._table = np.full(int(ids[-1]) + 2, ids.size, dtype=np.int32)
            self._table[ids] = np.arange(ids.size)

    def __len__(self) -> int:
        """Number of ids."""
        return int(self.ids.size)

    def rows(self, ids: Int32s | Int64s) -> Int32s:
        """The row of each id; `len(self)` where there is none."""
        if self._table is not None:
            # Negative ids become large ones.
            wrapped = ids.view(np.uint64 if ids.dtype == np.int64 else np.uint32)
            found: Int32s = self._table[
                np.minimum(wrapped, wrapped.dtype.type(self._table.size - 1))
            ]
            return found
        if not len(self):
            return np.zeros(ids.shape, dtype=np.int32)
        slot = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[slot] == ids, slot, len(self)).astype(np.int32)
