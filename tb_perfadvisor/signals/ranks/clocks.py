"""Clocks of ranks, aligned on the ends of their common collectives.

Ranks enter a collective at different times but leave it together, up to the latency of the last
hop. Differences between the ends are differences between the clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

_ENDS_PER_RANK = 128
"""Enough for a median that a single outlier does not move."""
_ROUNDS = 32
_SETTLED_NS = 100.0


class Clocks(Struct, frozen=True):
    """When each worker's trace began, on the clock of the first aligned one."""

    begin_ns: Int64
    """Shape (workers,): add it to a worker's times to compare them with other workers' times."""
    is_aligned: NDArray[np.bool_]
    """Shape (workers,): whether collectives align it; if not, its wall clock is used."""
    skew_ns: Int64
    """Shape (workers,): how far its wall clock is ahead of the median clock; 0 if unknown."""
    skew_is_known: bool
    """Whether the aligned workers recorded their wall clocks."""


def align_clocks(
    sources: Sequence[Source], rank: Int32, collective: Int32, end_ns: Int64
) -> Clocks:
    """Align the workers' clocks.

    Args:
        sources: Sources of the workers; their wall clocks at time 0 are the initial values.
        rank: The worker of each end; shape (ends,).
        collective: The collective of each end, ascending; shape (ends,).
        end_ns: The end on the worker's own clock; shape (ends,).
    """
    count = len(sources)
    origins = [source.origin_unix_ns for source in sources]
    base = next((origin for origin in origins if origin is not None), 0)
    wall_clock = np.array([0 if at is None else at - base for at in origins], dtype=np.int64)
    rank, collective, end_ns = _sample(rank, collective, end_ns, count)
    correction = _corrections(
        rank, collective, (end_ns + wall_clock[rank]).astype(np.float64), count
    )
    is_aligned = np.bincount(rank, minlength=count) > 0
    begin = wall_clock - np.rint(correction).astype(np.int64)
    has_clock = is_aligned & np.array([origin is not None for origin in origins], dtype=bool)
    skew = np.zeros(count, dtype=np.int64)
    if has_clock.sum() >= 2:
        offset = correction[has_clock]
        skew[has_clock] = np.rint(offset - np.median(offset)).astype(np.int64)
    return Clocks(begin, is_aligned, skew, bool(has_clock.sum() >= 2))


def _sample(
    rank: Int32, collective: Int32, end_ns: Int64, count: int
) -> tuple[Int32, Int32, Int64]:
    """Evenly spaced collectives with all their ends: about `_ENDS_PER_RANK` per worker."""
    if len(rank) == 0:
        return rank, collective, end_ns
    stride = max(len(rank) // (_ENDS_PER_RANK * count), 1)
    keep = collective % stride == 0
    _, renumbered = unique_inverse(collective[keep])
    return rank[keep], renumbered.reshape(-1).astype(np.int32), end_ns[keep]


def _corrections(
    rank: Int32, collective: Int32, end: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """How far each worker's clock is ahead, such that the ends of each collective agree.

    Alternates between means over collectives and medians over workers. One group of all ranks is
    exact after the first round. Overlapping groups (tensor and data parallel) take more rounds,
    until the correction has passed from group to group.
    """
    offset = np.zeros(count)
    if len(rank) == 0:
        return offset
    members = np.bincount(collective)
    order = np.argsort(rank, kind="stable")
    for _ in range(_ROUNDS):
        corrected = end - offset[rank]
        middle = np.bincount(collective, weights=corrected) / members
        change = _medians(rank[order], (corrected - middle[collective])[order], count)
        offset += change
        if np.abs(change).max() < _SETTLED_NS:
            break
    return offset


def _medians(rank: Int32, value: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The median of each worker's values, or 0 without any; `rank` is sorted."""
    ordered = value[np.lexsort((value, rank))]
    low = np.searchsorted(rank, np.arange(count))
    size = np.bincount(rank, minlength=count)
    median = np.zeros(count)
    has = size > 0
    lower = low[has] + (size[has] - 1) // 2
    upper = low[has] + size[has] // 2
    median[has] = (ordered[lower] + ordered[upper]) / 2
    return median
