"""Compares interval algebra with sets of integers: an interval is the set of its times."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    complement,
    contains,
    covered_before,
    crowded,
    intersect,
    join,
    last_before,
    minus,
    overlap_ns,
    overlap_once_ns,
    shared_ns,
    single,
    total_ns,
    union,
)

# Small times, so that ranges often touch, nest, repeat and are empty or reversed.
TIME = st.integers(0, 40)
RANGES = st.lists(st.tuples(TIME, TIME), max_size=12)


def column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def intervals_of(ranges: list[tuple[int, int]]) -> Intervals:
    return union(column([start for start, _ in ranges]), column([end for _, end in ranges]))


def times_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {time for start, end in ranges for time in range(start, end)}


def times_in(intervals: Intervals) -> set[int]:
    return times_of([(int(start), int(end)) for start, end in intervals])


def assert_canonical(intervals: Intervals) -> None:
    """Assert that the intervals are sorted, non-empty, disjoint and not touching."""
    assert intervals.dtype == np.int64
    assert intervals.ndim == 2
    assert (intervals[:, 1] > intervals[:, 0]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()


@given(RANGES)
def test_union_contains_every_time_once(ranges: list[tuple[int, int]]) -> None:
    merged = intervals_of(ranges)
    assert_canonical(merged)
    assert times_in(merged) == times_of(ranges)
    assert total_ns(merged) == len(times_of(ranges))


@given(RANGES, RANGES)
def test_set_operations(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = intervals_of(left), intervals_of(right)
    for result, expected in (
        (intersect(a, b), times_in(a) & times_in(b)),
        (minus(a, b), times_in(a) - times_in(b)),
        (join(a, b), times_in(a) | times_in(b)),
    ):
        assert_canonical(result)
        assert times_in(result) == expected
    assert shared_ns(a, b) == len(times_in(a) & times_in(b))
    # The parts of a split add up to the whole, exactly.
    assert total_ns(intersect(a, b)) + total_ns(minus(a, b)) == total_ns(a)


@given(RANGES, TIME, TIME)
def test_windows(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    intervals = intervals_of(ranges)
    window = set(range(start, end))
    for result, expected in (
        (clip(intervals, start, end), times_in(intervals) & window),
        (complement(intervals, start, end), window - times_in(intervals)),
        (single(start, end), window),
    ):
        assert_canonical(result)
        assert times_in(result) == expected


@given(RANGES, st.lists(st.tuples(st.integers(-5, 45), st.integers(0, 20)), max_size=8))
def test_overlaps_of_many_windows(
    ranges: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    intervals = intervals_of(ranges)
    inside = times_in(intervals)
    start = column([begin for begin, _ in windows])
    end = column([begin + length for begin, length in windows])
    assert overlap_ns(intervals, start, end).tolist() == [
        len(inside & set(range(begin, begin + length))) for begin, length in windows
    ]
    assert covered_before(intervals, start)[0].tolist() == [
        len({time for time in inside if time < begin}) for begin, _ in windows
    ]
    assert contains(intervals, start).tolist() == [begin in inside for begin, _ in windows]


@given(st.lists(TIME, max_size=5), st.lists(TIME, max_size=60), st.booleans())
def test_last_bound_before_each_time(bounds: list[int], times: list[int], is_sorted: bool) -> None:
    bounds, times = sorted(bounds), sorted(times) if is_sorted else times
    rows = last_before(np.array(bounds, dtype=np.int64), np.array(times, dtype=np.int64))
    assert rows.tolist() == [sum(bound <= time for bound in bounds) - 1 for time in times]


def test_small_example() -> None:
    # 0-3 and 3-5 touch, 4-6 overlaps, 8-8 is empty, 9-7 is reversed.
    merged = union(column([3, 0, 4, 8, 9, 10]), column([5, 3, 6, 8, 7, 12]))
    assert merged.tolist() == [[0, 6], [10, 12]]
    assert complement(merged, -2, 11).tolist() == [[-2, 0], [6, 10]]
    assert minus(merged, single(2, 11)).tolist() == [[0, 2], [11, 12]]
    assert overlap_ns(merged, column([0, 5]), column([12, 11])).tolist() == [8, 2]


def test_empty_sets() -> None:
    assert len(union(column([]), column([]))) == 0
    assert len(join()) == 0
    assert total_ns(EMPTY) == 0
    assert covered_before(EMPTY, column([1, 2]))[0].tolist() == [0, 0]
    assert contains(EMPTY, column([1, 2])).tolist() == [False, False]
    assert not EMPTY.flags.writeable


def test_times_beyond_a_day_stay_exact() -> None:
    day = 86_400_000_000_000
    merged = union(column([0, day]), column([1, 2 * day + 1]))
    assert total_ns(merged) == day + 2
    assert covered_before(merged, column([2 * day]))[0].tolist() == [day + 1]


@given(st.lists(RANGES, max_size=4))
def test_the_times_in_two_or_more_sets(sets: list[list[tuple[int, int]]]) -> None:
    times = [times_of(ranges) for ranges in sets]
    twice = {at for at in range(41) if sum(at in one for one in times) >= 2}
    found = crowded(*(intervals_of(ranges) for ranges in sets))
    assert {at for start, end in found.tolist() for at in range(start, end)} == twice
    assert found.tolist() == union(found[:, 0], found[:, 1]).tolist()


def test_time_in_two_ranges_counts_for_the_one_that_begins_first() -> None:
    intervals = np.array([[0, 10], [20, 30]], dtype=np.int64)
    # [2, 8) is first. [5, 25) has [8, 10) and [20, 25), and [6, 7) nothing.
    start, end = np.array([5, 2, 6], dtype=np.int64), np.array([25, 8, 7], dtype=np.int64)
    assert overlap_once_ns(intervals, start, end).tolist() == [7, 6, 0]
    assert overlap_once_ns(intervals, start[:0], end[:0]).tolist() == []
