"""Finds the rows of ids, which profilers count up and damaged files choose at will."""

from __future__ import annotations

from typing import Final

import numpy as np

from tb_perfadvisor.trace.tables import Int32, Int64

# A table lookup is one gather, where a binary search takes about twenty steps. Above these limits
# (entries in total, and entries per id) the table costs more than it saves.
_MAX_TABLE_SIZE: Final = 1 << 22
_MAX_ENTRIES_PER_ID: Final = 8


class IdIndex:
    """Maps ids to rows: the row of an id is its position among the sorted, distinct ids."""

    def __init__(self, ids: Int64) -> None:
        """Build the lookup table, if the ids are dense enough for one.

        Args:
            ids: Shape (n,), sorted and distinct.
        """
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
            rows: Int32 = self._table[
                np.minimum(unsigned, unsigned.dtype.type(self._table.size - 1))
            ]
            return rows
        if not len(self):
            return np.zeros(ids.shape, dtype=np.int32)
        slot = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[slot] == ids, slot, len(self)).astype(np.int32)
