"""The order of events, and which event of a track encloses which."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int32, Int64


def start_order(start_ns: Int64, duration_ns: Int64) -> NDArray[np.int64]:
    """The order of start, longest first on ties, so that what encloses precedes what it encloses.

    Stable. Readers add a time line at a time, each nearly in order: one key, whose sort finds
    such runs, and then the few ties, take a tenth of the time of two keys at once.
    """
    order = np.argsort(start_ns, kind="stable")
    ordered = start_ns[order]
    is_tied = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def enclosing_rows(
    start_ns: Int64, end_ns: Int64, track: Int32, needed_ns: Int64 | None = None
) -> Int32:
    """For each event, the nearest earlier one on its track that encloses it; -1 for none.

    Args:
        start_ns: Shape (n,), as `start_order` has them.
        end_ns: Shape (n,).
        track: Shape (n,).
        needed_ns: How far the encloser must reach, never beyond the event's own end, which is
            what it is by default.

    Returns:
        Shape (n,), rows.
    """
    count = start_ns.size
    parent = np.full(count, -1, dtype=np.int32)
    if count == 0:
        return parent
    # Sixteen bits are sorted by radix, in a tenth of the time.
    is_small = int(track.min()) >= 0 and int(track.max()) < 2**16
    keys = track.astype(np.uint16) if is_small else track
    order = np.argsort(keys, kind="stable").astype(np.int32)
    tracks = track[order]
    # Row -1 is beyond every track and encloses everything.
    ends = np.append(end_ns[order], np.iinfo(np.int64).max)
    needed = ends[:-1] if needed_ns is None else needed_ns[order]
    # Everything between an event and its candidate ends before it needs. A candidate that does
    # too is replaced by its own candidate: what lies between those two ends earlier still.
    candidate = np.arange(-1, count - 1, dtype=np.int32)
    # Most lie in nothing: they reach beyond all that came before them on their track.
    reach = np.empty_like(needed)
    changes = np.flatnonzero(tracks[1:] != tracks[:-1]) + 1
    bounds = np.concatenate(([0], changes, [count]))
    for first, last in pairwise(bounds.tolist()):
        np.maximum.accumulate(ends[first:last], out=reach[first:last])
    candidate[np.flatnonzero(reach[:-1] < needed[1:]) + 1] = -1
    candidate[bounds[:-1]] = -1
    del reach
    short = np.flatnonzero(candidate >= 0).astype(np.int32)
    short = short[ends[candidate[short]] < needed[short]]
    while short.size:
        candidate[short] = candidate[candidate[short]]
        short = short[ends[candidate[short]] < needed[short]]
    found = candidate >= 0
    parent[order[found]] = order[candidate[found]]
    return parent
