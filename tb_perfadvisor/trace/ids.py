"""Finds the rows of ids, which profilers count up and damaged files choose at will."""

from __future__ import annotations

from typing import Final

import numpy as np

from tb_perfadvisor.trace.tables import Int32, Int64

# A table is a gather where a search is twenty steps; beyond this, or so many places for each id,
# it costs more than it saves.
_LARGEST_IN_TABLE: Final = 1 << 22
_PLACES_PER_ID: Final = 8


class Ids:
    """Sorted ids without repetition; the row of an id is its place among them."""

    def __init__(self, ids: Int64) -> None:
        """Prepare to find rows.

        Args:
            ids: Shape (n,), sorted, each once.
        """
        self.ids = ids
        self._table: Int32 | None = None
        self._least = 0
        if not ids.size:
            return
        least, most = int(ids[0]), int(ids[-1])
        # Most count up from about 0, and need not be moved there to be looked up.
        if not 0 <= least <= _PLACES_PER_ID * ids.size:
            self._least = least
        if most - self._least <= max(_LARGEST_IN_TABLE, _PLACES_PER_ID * ids.size):
            # One entry more, for ids above all.
            self._table = np.full(most - self._least + 2, ids.size, dtype=np.int32)
            self._table[ids - self._least] = np.arange(ids.size)

    def __len__(self) -> int:
        """Number of ids."""
        return int(self.ids.size)

    def rows(self, ids: Int32 | Int64) -> Int32:
        """The row of each id; `len(self)` where there is none."""
        if self._table is not None:
            places = ids - np.int64(self._least) if self._least else ids
            # What is less than the least becomes large.
            wrapped = places.view(np.uint64 if places.dtype == np.int64 else np.uint32)
            found: Int32 = self._table[
                np.minimum(wrapped, wrapped.dtype.type(self._table.size - 1))
            ]
            return found
        if not len(self):
            return np.zeros(ids.shape, dtype=np.int32)
        slot = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[slot] == ids, slot, len(self)).astype(np.int32)
