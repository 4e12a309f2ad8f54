"""Interval algebra over integer nanoseconds: pure functions on sorted, disjoint intervals.

A set of intervals is an int64 array of shape (n, 2): half-open [start, end) rows that are sorted,
disjoint, non-empty and not touching. `union` makes one from any ranges; the other functions expect
and return such sets. Lengths are exact integers, so the parts of a split add up to the whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)
_LONG_AGO = -(2**62)
# With fewer times per bound, checking whether they are sorted takes as long as it saves.
_MIN_TIMES_PER_BOUND = 4
# Looking up an interval of one set in the other takes as long as merging this many, or more.
_MOST_PER_LOOKUP = 8


def union(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Intervals:
    """Merge any ranges into disjoint intervals; empty and negative ranges are dropped.

    The ranges have shape (n,) and come in any order.
    """
    keep = end_ns > start_ns
    if not keep.all():
        start_ns, end_ns = start_ns[keep], end_ns[keep]
    if start_ns.size == 0:
        return EMPTY
    if (start_ns[1:] < start_ns[:-1]).any():
        # Where all that began before has ended, as many ends come before the start as starts. So
        # the two columns are sorted apart, which takes half of the time.
        start_ns, reach = np.sort(start_ns, kind="stable"), np.sort(end_ns, kind="stable")
    else:
        reach = np.maximum.accumulate(end_ns)
    is_bound = np.ones(start_ns.size + 1, dtype=bool)
    # Touching ranges merge: only a start beyond the reach begins a new interval.
    np.greater(start_ns[1:], reach[:-1], out=is_bound[1:-1])
    bounds = np.flatnonzero(is_bound)
    return _pairs(start_ns[bounds[:-1]], reach[bounds[1:] - 1])


def _pairs(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Intervals:
    """Two columns, side by side. `numpy.column_stack` takes four times as long for few rows."""
    pairs: Intervals = np.empty((start_ns.size, 2), dtype=np.int64)
    pairs[:, 0] = start_ns
    pairs[:, 1] = end_ns
    return pairs


def single(start_ns: int, end_ns: int) -> Intervals:
    """The interval [start, end) as a set; empty if it has no length."""
    if end_ns <= start_ns:
        return EMPTY
    return np.array([[start_ns, end_ns]], dtype=np.int64)


def join(*parts: Intervals) -> Intervals:
    """The union of several sets of intervals."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    stacked = np.concatenate(filled) if filled else EMPTY
    return union(stacked[:, 0], stacked[:, 1])


def crowded(*parts: Intervals) -> Intervals:
    """The times in at least two of several sets."""
    stacked = np.concatenate(parts) if parts else EMPTY
    times = np.concatenate((stacked[:, 0], stacked[:, 1]))
    change = np.repeat((1, -1), len(stacked))
    order = np.lexsort((change, times))  # at the same moment, ends come first
    times, level = times[order], np.cumsum(change[order])
    several = np.flatnonzero(level[:-1] >= 2)
    return union(times[several], times[several + 1])


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """The times in both sets."""
    start_ns, end_ns = _shared(left, right)
    both = start_ns < end_ns
    return _pairs(start_ns[both], end_ns[both]) if both.any() else EMPTY


def shared_ns(left: Intervals, right: Intervals) -> int:
    """The total length of the times in both sets."""
    start_ns, end_ns = _shared(left, right)
    return int(np.maximum(end_ns - start_ns, 0).sum())


def _shared(left: Intervals, right: Intervals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the times in both sets, among others that end before they start."""
    if len(left) == 0 or len(right) == 0:
        return EMPTY[:, 0], EMPTY[:, 1]
    if len(left) > len(right):
        left, right = right, left  # fewer intervals are looked up
    if len(left) * _MOST_PER_LOOKUP > len(right):
        # No three overlap, so two do from each start until the end that comes next.
        start_ns = np.sort(np.concatenate((left[:, 0], right[:, 0])), kind="stable")
        end_ns = np.sort(np.concatenate((left[:, 1], right[:, 1])), kind="stable")
        return start_ns[1:], end_ns[:-1]
    # For each interval of `left`, the run of intervals of `right` that overlap it.
    starts = right[:, 0]
    first = np.searchsorted(right[:, 1], left[:, 0], side="right")
    first = first[: np.searchsorted(first, len(right))]
    left_row = np.flatnonzero(starts[first] < left[: len(first), 1])
    right_row, ends = first[left_row], left[left_row, 1]
    following = np.minimum(right_row + 1, len(right) - 1)
    # Most overlap one.
    if ((starts[following] < ends) & (following > right_row)).any():
        count = np.searchsorted(starts, ends, side="left") - right_row
        left_row = np.repeat(left_row, count)
        offset = np.arange(left_row.size) - np.repeat(np.cumsum(count) - count, count)
        right_row = np.repeat(right_row, count) + offset
    return (
        np.maximum(left[left_row, 0], right[right_row, 0]),
        np.minimum(left[left_row, 1], right[right_row, 1]),
    )


def minus(left: Intervals, right: Intervals) -> Intervals:
    """The times in `left` that are not in `right`."""
    if len(left) == 0 or len(right) == 0:
        return left
    return intersect(left, complement(right, int(left[0, 0]), int(left[-1, 1])))


def complement(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The times in [start, end) outside the intervals."""
    if end_ns <= start_ns:
        return EMPTY
    inside = clip(intervals, start_ns, end_ns)
    starts = np.concatenate(([start_ns], inside[:, 1]))
    ends = np.concatenate((inside[:, 0], [end_ns]))
    keep = ends > starts
    return _pairs(starts[keep], ends[keep])


def clip(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The times of the intervals inside [start, end)."""
    if len(intervals) == 0:
        return EMPTY
    starts = np.maximum(intervals[:, 0], start_ns)
    ends = np.minimum(intervals[:, 1], end_ns)
    keep = ends > starts
    return _pairs(starts[keep], ends[keep])


def total_ns(intervals: Intervals) -> int:
    """The exact sum of the lengths."""
    return int((intervals[:, 1] - intervals[:, 0]).sum()) if len(intervals) else 0


def covered_before(
    intervals: Intervals, *at_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """The total length of the intervals before each time, for each of some columns of times.

    The overlap of [a, b) with the intervals is what is before b, less what is before a, so any
    number of windows take O((n + m) log n) without building their intersections.
    """
    if len(intervals) == 0:
        return tuple(np.zeros(np.shape(at), dtype=np.int64) for at in at_ns)
    start, end = intervals[:, 0], intervals[:, 1]
    # The intervals that started before the time, less the part of the last one after it.
    started = np.concatenate(([0], np.cumsum(end - start)))
    last_end = np.concatenate(([_LONG_AGO], end))
    rows = (last_before(start, at) + 1 for at in at_ns)
    return tuple(
        started[row] - np.maximum(last_end[row] - at, 0)
        for row, at in zip(rows, at_ns, strict=True)
    )


def overlap_ns(
    intervals: Intervals, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The total length of the intervals inside each range [start, end); shape as given."""
    before_start, before_end = covered_before(intervals, start_ns, end_ns)
    return before_end - before_start


def overlap_once_ns(
    intervals: Intervals, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The same for ranges of which no two share time: it goes to the one that begins first.

    The ranges have shape (n,).
    """
    once: NDArray[np.int64] = np.zeros(len(start_ns), dtype=np.int64)
    if not len(start_ns):
        return once
    order = np.argsort(start_ns, kind="stable")
    done_ns = np.maximum.accumulate(end_ns[order])
    begin_ns = start_ns[order]
    begin_ns[1:] = np.maximum(begin_ns[1:], done_ns[:-1])
    once[order] = overlap_ns(intervals, begin_ns, done_ns)
    return once


def last_before(bounds: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of the last sorted bound at or before each time; -1 for none.

    Sorted times, such as starts of events, are counted between bounds instead of looked up.
    """
    if at.ndim == 1 and at.size > _MIN_TIMES_PER_BOUND * bounds.size and (at[1:] >= at[:-1]).all():
        first = np.searchsorted(at, bounds)
        return np.repeat(np.arange(-1, bounds.size), np.diff(first, prepend=0, append=at.size))
    row: NDArray[np.int64] = np.searchsorted(bounds, at, side="right") - 1
    return row


def contains(intervals: Intervals, at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each time lies inside one of the intervals."""
    if len(intervals) == 0:
        return np.zeros(np.shape(at_ns), dtype=np.bool_)
    row = last_before(intervals[:, 0], at_ns)
    inside: NDArray[np.bool_] = (row >= 0) & (at_ns < intervals[np.maximum(row, 0), 1])
    return inside
