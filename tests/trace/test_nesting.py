from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.trace.nesting import nesting


def test_nesting_by_hand() -> None:
    # A [0,10) holds B [1,5) and D [6,9); B holds C [2,3); E begins when A ends.
    start = np.array([0, 1, 2, 6, 10])
    end = np.array([10, 5, 3, 9, 12])
    track = np.zeros(5, dtype=np.int32)
    assert nesting(start, end, track).tolist() == [-1, 0, 1, 0, -1]


def test_nesting_of_a_deep_stack() -> None:
    # Event i is [i, 2000 - i): each lies in the one before it.
    start = np.arange(1000)
    found = nesting(start, 2000 - start, np.zeros(1000, dtype=np.int32))
    assert found.tolist() == list(range(-1, 999))


def test_nesting_tells_tracks_apart_however_many() -> None:
    # Track 65536 is no track 0.
    start, end = np.array([0, 1, 2]), np.array([10, 9, 8])
    assert nesting(start, end, np.array([0, 2**16, 2**16], dtype=np.int32)).tolist() == [-1, -1, 1]


def test_nesting_keeps_tracks_apart() -> None:
    start = np.array([0, 1, 2, 3])
    end = np.array([10, 9, 8, 7])
    track = np.array([0, 1, 0, 1], dtype=np.int32)
    assert nesting(start, end, track).tolist() == [-1, -1, 0, 1]


@given(st.data())
def test_nesting_finds_the_nearest_encloser(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 30))
    integers = st.lists(st.integers(0, 12), min_size=count, max_size=count)
    start = np.array(data.draw(integers), dtype=np.int64)
    end = start + np.array(data.draw(integers), dtype=np.int64)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    track = np.array(data.draw(integers), dtype=np.int32) % 3
    slack = np.array(data.draw(integers), dtype=np.int64)
    needed = np.maximum(end - slack, start) if data.draw(st.booleans()) else end
    expected = [
        max((j for j in range(i) if track[j] == track[i] and end[j] >= needed[i]), default=-1)
        for i in range(count)
    ]
    assert nesting(start, end, track, needed).tolist() == expected


def test_nesting_of_a_deep_stack_with_something_behind_it() -> None:
    # 20,000 events within each other, then one that only the outermost reaches.
    depth = 20_000
    start = np.arange(depth + 1, dtype=np.int64)
    end = np.append(4 * depth - np.arange(depth), 4 * depth)
    found = nesting(start, end, np.zeros(depth + 1, dtype=np.int32))
    assert found.tolist() == [*range(-1, depth - 1), 0]
