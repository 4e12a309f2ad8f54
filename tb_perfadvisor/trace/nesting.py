"""Sorts events, and finds the event that encloses each one on its track."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask, stable_order
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_DEPTH = 1_024
"""A power of two. Python itself allows 1,000 nested calls unless a program asks for more. Many
signals take one pass per level, so that only a limit keeps the work in proportion to the file."""
_MOST_LEFT = 0.75
"""Passes that leave out less than the rest of the events are too many where calls nest deeply."""


def start_order(start_ns: Int64, duration_ns: Int64) -> NDArray[np.int64]:
    """The order by start, longest first on ties, so that enclosing events come first. Stable.

    Readers add one track at a time, each nearly sorted. A stable sort by one key uses such runs;
    sorting the few ties that are out of order takes a tenth of the time of a sort by two keys.
    """
    order = np.argsort(start_ns, kind="stable")
    begins = np.append(True, np.diff(start_ns[order]) != 0)[: order.size]
    duration = duration_ns[order]
    grows = np.flatnonzero((duration[1:] > duration[:-1]) & ~begins[1:]) + 1
    if not grows.size:
        return order
    group = np.cumsum(begins)
    tied = np.flatnonzero(is_in(group, group[grows]))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def enclosing_rows(
    start_ns: Int64, end_ns: Int64, track: Int32, needed_ns: Int64 | None = None
) -> Int32:
    """The row of the nearest earlier event that encloses each event on its track; -1 for none.

    All columns have shape (n,), and are sorted as by `start_order`. The enclosing event must reach
    `needed_ns`, which is at most the event's own end, the default.
    """
    count = start_ns.size
    parent = np.full(count, -1, dtype=np.int32)
    if count == 0:
        return parent
    order = stable_order(track)
    tracks = track[order]
    ends = end_ns[order]
    needed = ends if needed_ns is None else needed_ns[order]
    # Most events have no enclosing event: they end after all earlier ones on their track.
    reach = np.empty_like(needed)
    changes = np.flatnonzero(tracks[1:] != tracks[:-1]) + 1
    bounds = np.concatenate(([0], changes, [count]))
    for first, last in pairwise(bounds.tolist()):
        np.maximum.accumulate(ends[first:last], out=reach[first:last])
    is_enclosed = np.append(False, reach[:-1] >= needed[1:])
    is_enclosed[bounds[:-1]] = False
    del reach
    enclosed = np.flatnonzero(is_enclosed).astype(np.int32)
    # The nearest earlier event that ends late enough is on the same track, because one there does.
    parent[order[enclosed]] = order[_last_reaching(ends, needed, enclosed)]
    return parent


def _last_reaching(ends: Int64, needed: Int64, places: Int32) -> Int32:
    """The last place before each of some places whose value is large enough; one must exist.

    `ends` has the values, and `needed` the least value wanted at each place, which is at most the
    place's own value; shape (n,).
    """
    found: Int32 = places - np.int32(1)
    # The event just before encloses most others.
    waiting = np.flatnonzero(ends[found] < needed[places])
    before, wanted = found[waiting], needed[places[waiting]]
    left = np.arange(ends.size, dtype=np.int32)
    while waiting.size:
        # A value that is too small for the next place is smaller than that one's own, so it is the
        # last for no place after it.
        is_left = np.append(ends[:-1] >= needed[1:], False)
        if np.count_nonzero(is_left) > _MOST_LEFT * is_left.size:
            found[waiting] = left[_last_reaching_in_blocks(ends, before, wanted)]
            break
        before = (np.cumsum(is_left, dtype=np.int32) - 1)[before]
        left, ends, needed = left[is_left], ends[is_left], needed[is_left]
        reaches = ends[before] >= wanted
        found[waiting[reaches]] = left[before[reaches]]
        waiting, before, wanted = waiting[~reaches], before[~reaches], wanted[~reaches]
    return found


def _last_reaching_in_blocks(ends: Int64, before: Int32, needed: Int64) -> Int32:
    """The last index before each of some indices, whose own values are too small; one must exist.

    Looks at the largest values of blocks of 1, 2, 4, … neighbors: at larger and larger ones to
    the left until one is large enough, then at smaller and smaller ones inside it. So the work is
    the logarithm of the distance, whatever lies between.

    `ends` has the values, of shape (n,). `needed` has the least value wanted; like `before` and the
    result, it has shape (queries,).
    """
    found = np.empty_like(before)
    largest = [ends]
    waiting, block = np.arange(before.size), before
    reached: list[tuple[NDArray[np.intp], Int32]] = []
    while waiting.size:
        # Left of an odd block is the other half of its parent; left of an even one, another parent.
        hits = np.flatnonzero(
            (block & 1 == 1) & (largest[-1][np.maximum(block - 1, 0)] >= needed[waiting])
        )
        reached.append((waiting[hits], block[hits] - np.int32(1)))
        waiting, block = np.delete(waiting, hits), np.delete(block, hits) >> 1
        pairs = largest[-1][: largest[-1].size // 2 * 2].reshape(-1, 2)
        largest.append(pairs.max(axis=1))
    searched, block = reached.pop()
    while reached:
        values = largest[len(reached) - 1]
        right = 2 * block + np.int32(1)
        block = right - (values[right] < needed[searched])
        others, other_blocks = reached.pop()
        searched = np.concatenate((searched, others))
        block = np.concatenate((block, other_blocks)).astype(np.int32)
    found[searched] = block
    return found


def nearest(parent: Int32, is_mark: NDArray[np.bool_]) -> Int32:
    """For each event, the innermost marked event around it, or the event itself.

    All columns have shape (events,). The result has rows, -1 for none.
    """
    count = len(parent)
    if not is_mark.any():
        return np.full(count, -1, dtype=np.int32)
    # Events point to their parents, marked events to themselves. Each pass doubles the distance, so
    # the number of passes is the logarithm of the depth.
    target = np.where(is_mark, np.arange(count, dtype=np.int32), parent)
    rows = np.flatnonzero((target >= 0) & ~is_mark)
    while rows.size:
        next_target = target.take(target.take(rows))
        # A row that points to a marked event, or to nothing, is done.
        target[rows] = next_target
        rows = rows[(next_target >= 0) & ~is_mark.take(next_target)]
    return target


def outermost(parent: Int32, is_mark: NDArray[np.bool_]) -> Int32:
    """For each event, the outermost marked event around it, or the event itself.

    All columns have shape (events,). The result has rows, -1 for none.
    """
    innermost = nearest(parent, is_mark)
    marks = np.flatnonzero(is_mark).astype(np.int32)
    above = np.where(parent[marks] >= 0, innermost[parent[marks]], -1)
    target = np.full(len(parent), -1, dtype=np.int32)
    target[marks] = np.where(above >= 0, above, marks)
    # Each pass doubles the distance, so the number of passes is the logarithm of the depth.
    while not np.array_equal(further := target[target[marks]], target[marks]):
        target[marks] = further
    return np.where(innermost >= 0, target[innermost], -1).astype(np.int32)


def with_enclosing(parent: Int32, rows: Int32) -> NDArray[np.bool_]:
    """A mask of some events and all events around them; shape (events,)."""
    marked = row_mask(len(parent), rows)
    while rows.size:
        above = parent[rows]
        rows = distinct(above[above >= 0])
        rows = rows[~marked[rows]]
        marked[rows] = True
    return marked


def depths(parent: NDArray[Any]) -> NDArray[Any]:
    """How many events enclose each one, from parents (-1 for none); shape and type as given."""
    # Each pass doubles the distance that is counted, so their number is the logarithm of the depth.
    depth, ancestor = (parent >= 0).astype(parent.dtype), parent
    while (rows := np.flatnonzero(ancestor >= 0)).size:
        above = ancestor[rows]
        depth[rows] += depth[above]
        further = np.full_like(ancestor, -1)
        further[rows] = ancestor[above]
        ancestor = further
    return depth


def too_deep(parent: Int32) -> NDArray[np.bool_]:
    """A mask of the events with at least `MAX_DEPTH` events around them; shape (events,)."""
    ancestor, distance = parent, 1
    rows = np.flatnonzero(ancestor >= 0)
    while distance < MAX_DEPTH and rows.size:
        further = np.full_like(ancestor, -1)
        further[rows] = ancestor[ancestor[rows]]
        ancestor, rows = further, rows[further[rows] >= 0]
        distance *= 2
    return row_mask(len(parent), rows)
