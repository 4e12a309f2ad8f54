"""Lanes: where the events of a track are drawn, so that none covers another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.nesting import depths
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_LANES = 1_024
"""Per track: as deep as calls in a trace are nested. Of more events at the same moment, which only
asynchronous spans are, the last lane has the rest."""
_TOLERANCE = 10
"""Clocks are rounded: neighbors may overlap by a tenth of the shorter one."""


def find_lanes(start_ns: Int64, end_ns: Int64, parent: Int32, track: Int32) -> Int32:
    """The lane of each event on its track: below all events around it.

    Events that overlap without one inside the other, such as asynchronous spans, get lanes of their
    own on their track.

    Args:
        start_ns: Sorted, longest first on ties; shape (n,).
        end_ns: Shape (n,).
        parent: The event that encloses each one on its track; -1 for none.
        track: Shape (n,).

    Returns:
        Shape (n,), from 0.
    """
    lane: Int32 = depths(parent)
    order = np.lexsort((start_ns, lane, track))
    before, after = order[:-1], order[1:]
    shorter_ns = np.minimum(end_ns[before] - start_ns[before], end_ns[after] - start_ns[after])
    overlap_ns = end_ns[before] - start_ns[after]
    is_covered = (
        (track[before] == track[after])
        & (lane[before] == lane[after])
        & (overlap_ns * _TOLERANCE > shorter_ns)
        & (overlap_ns > 0)
    )
    crowded = np.unique(track[after[is_covered]])
    for value, rows in places_by_value(track) if crowded.size else ():
        if value in crowded:
            lane[rows] = _spread(start_ns[rows], end_ns[rows])
    np.minimum(lane, MAX_LANES - 1, out=lane)
    return lane


def _spread(start_ns: Int64, end_ns: Int64) -> Int32:
    """Lanes in which events are disjoint, each filled from the earliest event on."""
    lane = np.full(start_ns.size, MAX_LANES - 1, dtype=np.int32)
    rows = np.arange(start_ns.size)
    for number in range(MAX_LANES - 1):
        if not rows.size:
            break
        is_here = _first_lane(start_ns[rows], end_ns[rows])
        lane[rows[is_here]] = number
        rows = rows[~is_here]
    return lane


def _first_lane(start_ns: Int64, end_ns: Int64) -> NDArray[np.bool_]:
    """The first event, the next one that starts after its end, and so on.

    Each event points to its successor. Each pass doubles the distance that is followed.
    """
    count = start_ns.size
    successor = np.searchsorted(start_ns, end_ns)
    # An event without duration starts at its own end.
    successor = np.maximum(successor, np.arange(1, count + 1))
    jump = np.append(successor, count)
    is_here = np.zeros(count + 1, dtype=bool)
    is_here[0] = True
    while jump[0] < count:
        is_here[jump[is_here]] = True
        jump = jump[jump]
    return is_here[:count]
