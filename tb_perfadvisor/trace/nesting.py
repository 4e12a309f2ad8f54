"""Sorts events, and finds the event that encloses each one on its track."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import row_mask
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_DEPTH = 1_024
"""A power of two. Python itself allows 1,000 nested calls unless a program asks for more. Many
signals take one pass per level, so that only a limit keeps the work in proportion to the file."""


def start_order(start_ns: Int64, duration_ns: Int64) -> NDArray[np.int64]:
    """The order by start, longest first on ties, so that enclosing events come first. Stable.

    Readers add one track at a time, each nearly sorted. A stable sort by one key uses such runs;
    sorting the few ties afterwards takes a tenth of the time of a sort by two keys.
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
    """The row of the nearest earlier event that encloses each event on its track; -1 for none.

    Args:
        start_ns: Shape (n,), sorted as by `start_order`.
        end_ns: Shape (n,).
        track: Shape (n,).
        needed_ns: The time that the enclosing event must reach, at most the event's own end,
            which is the default.

    Returns:
        Shape (n,).
    """
    count = start_ns.size
    parent = np.full(count, -1, dtype=np.int32)
    if count == 0:
        return parent
    # NumPy sorts 16-bit integers by radix, in a tenth of the time.
    is_small = int(track.min()) >= 0 and int(track.max()) < 2**16
    keys = track.astype(np.uint16) if is_small else track
    order = np.argsort(keys, kind="stable").astype(np.int32)
    tracks = track[order]
    # Index -1 stands for no event, and encloses everything.
    ends = np.append(end_ns[order], np.iinfo(np.int64).max)
    needed = ends[:-1] if needed_ns is None else needed_ns[order]
    # A candidate that ends too early is replaced by its own candidate. The events between the two
    # end even earlier, so none of them can enclose the event.
    candidate = np.arange(-1, count - 1, dtype=np.int32)
    # Most events have no enclosing event: they end after all earlier ones on their track.
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
    is_enclosed = candidate >= 0
    parent[order[is_enclosed]] = order[candidate[is_enclosed]]
    return parent


def nearest(parent: Int32, is_mark: NDArray[np.bool_]) -> Int32:
    """For each event, the innermost marked event around it, or the event itself.

    Args:
        parent: Shape (events,).
        is_mark: Shape (events,).

    Returns:
        Shape (events,), rows; -1 for none.
    """
    count = len(parent)
    if not is_mark.any():
        return np.full(count, -1, dtype=np.int32)
    # Events point to their parents, marked events to themselves. Each pass doubles the distance, so
    # the number of passes is the logarithm of the depth.
    target = np.where(is_mark, np.arange(count, dtype=np.int32), parent)
    rows = np.flatnonzero((target >= 0) & ~is_mark)
    while rows.size:
        next_target = target[target[rows]]
        # A row that points to a marked event, or to nothing, is done.
        target[rows] = next_target
        rows = rows[(next_target >= 0) & ~is_mark[next_target]]
    return target


def with_enclosing(parent: Int32, rows: Int32) -> NDArray[np.bool_]:
    """A mask of some events and all events around them; shape (events,).

    Args:
        parent: Shape (events,).
        rows: Events.
    """
    marked = row_mask(len(parent), rows)
    jump = parent
    # Each pass doubles the distance, so the number of passes is the logarithm of the depth.
    while True:
        above = jump[marked]
        above = above[above >= 0]
        if not above.size:
            return marked
        marked[above] = True
        jump = np.where(jump >= 0, jump[jump], -1)


def too_deep(parent: Int32) -> NDArray[np.bool_]:
    """A mask of the events with at least `MAX_DEPTH` events around them; shape (events,)."""
    ancestor, distance = parent, 1
    while distance < MAX_DEPTH:
        if (ancestor < 0).all():
            break
        ancestor = np.where(ancestor >= 0, ancestor[ancestor], -1)
        distance *= 2
    deep: NDArray[np.bool_] = ancestor >= 0
    return deep
