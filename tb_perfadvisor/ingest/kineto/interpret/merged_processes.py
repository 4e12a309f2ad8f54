"""Keeps the ranks apart whose traces were merged into one file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.ingest.merged_ranks import is_merged, rank_in
from tb_perfadvisor.trace.integer_groups import places_by_value

_OFFSET = 2**40
"""Correlation ids have at most 32 bits, and some tools add more."""


def ranks_of_events(collected: KinetoColumns) -> NDArray[np.int64]:
    """The rank of each event in a merged file, -1 if unknown; all 0 in any other file."""
    thread = collected.events["thread"]
    names = collected.process_names
    if not is_merged(names.values()):
        return np.zeros(len(thread), dtype=np.int64)
    ranks = (rank_in(names.get(pid, "")) for pid, _ in collected.threads)
    rank_of_thread = np.array([-1 if rank is None else rank for rank in ranks], dtype=np.int64)
    found: NDArray[np.int64] = rank_of_thread[thread]
    return found


def by_rank(ids: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids that differ between ranks, from ids that each rank counts by itself."""
    distinct_ids: NDArray[np.int64] = ids + _OFFSET * np.maximum(rank, 0)
    return distinct_ids


def rows_by_rank(rank: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """The rows of each rank."""
    for _, rows in places_by_value(rank):
        yield rows
