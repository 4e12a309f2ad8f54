from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace.nesting import (
    MAX_DEPTH,
    enclosing_rows,
    nearest,
    outermost,
    too_deep,
    with_enclosing,
)
from tb_perfadvisor.trace.tables import Int32, Int64
from tests.support.line_counts import lines_run


def test_small_example() -> None:
    # A [0,10) holds B [1,5) and D [6,9); B holds C [2,3); E begins when A ends.
    start = np.array([0, 1, 2, 6, 10])
    end = np.array([10, 5, 3, 9, 12])
    track = np.zeros(5, dtype=np.int32)
    assert enclosing_rows(start, end, track).tolist() == [-1, 0, 1, 0, -1]


def test_deep_stack() -> None:
    # Event i is [i, 2000 - i): each lies inside the previous one.
    start = np.arange(1000)
    parents = enclosing_rows(start, 2000 - start, np.zeros(1000, dtype=np.int32))
    assert parents.tolist() == list(range(-1, 999))


def test_more_than_65536_tracks() -> None:
    # Track 65536 must not be mistaken for track 0.
    start, end = np.array([0, 1, 2]), np.array([10, 9, 8])
    assert enclosing_rows(start, end, np.array([0, 2**16, 2**16], dtype=np.int32)).tolist() == [
        -1,
        -1,
        1,
    ]


def test_events_of_other_tracks_do_not_enclose() -> None:
    start = np.array([0, 1, 2, 3])
    end = np.array([10, 9, 8, 7])
    track = np.array([0, 1, 0, 1], dtype=np.int32)
    assert enclosing_rows(start, end, track).tolist() == [-1, -1, 0, 1]


@given(st.data())
def test_finds_the_nearest_enclosing_event(data: st.DataObject) -> None:
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
    assert enclosing_rows(start, end, track, needed).tolist() == expected


def test_deep_stack_followed_by_an_event_in_its_outermost_frame() -> None:
    # 20,000 nested events, then one that lies only inside the outermost.
    depth = 20_000
    start = np.arange(depth + 1, dtype=np.int64)
    end = np.append(4 * depth - np.arange(depth), 4 * depth)
    parents = enclosing_rows(start, end, np.zeros(depth + 1, dtype=np.int32))
    assert parents.tolist() == [*range(-1, depth - 1), 0]


def test_passes_grow_with_the_logarithm_of_the_depth() -> None:
    # One event around all; n nested in it; n that begin inside all of these and end after them.
    def crossing(n: int) -> tuple[Int64, Int64, Int32]:
        start = np.concatenate([[0], 1 + np.arange(2 * n)])
        end = np.concatenate([[100 * n], 4 * n - np.arange(n), 10 * n + np.arange(n)])
        return start, end, np.zeros(2 * n + 1, dtype=np.int32)

    # The nested ones lie in one another, and all that cross them lie in the outermost.
    assert enclosing_rows(*crossing(3)).tolist() == [-1, 0, 1, 2, 0, 0, 0]
    small, large = (lines_run(lambda n=n: enclosing_rows(*crossing(n))) for n in (100, 6_400))
    # Six doublings. Each adds one pass up and one down, of at most fifteen lines each.
    assert small < large <= small + 6 * 2 * 15


def test_the_innermost_marked_ancestor_counts() -> None:
    # 0 > 1 > 2 > 3 and 4 alone; 0 and 2 are marked.
    parent = np.array([-1, 0, 1, 2, -1], dtype=np.int32)
    marked = np.array([True, False, True, False, False])
    assert nearest(parent, marked).tolist() == [0, 0, 2, 2, -1]
    assert nearest(parent, np.zeros(5, dtype=np.bool_)).tolist() == [-1] * 5
    empty = np.empty(0, dtype=np.int32)
    assert nearest(empty, empty.astype(np.bool_)).tolist() == []


@given(st.data())
def test_the_outermost_marked_ancestor(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 20))
    parent = [data.draw(st.integers(-1, row - 1)) for row in range(count)]
    marked = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    expected = []
    for row in range(count):
        found = -1
        while row >= 0:
            found = row if marked[row] else found
            row = parent[row]
        expected.append(found)
    columns = np.array(parent, dtype=np.int32), np.array(marked, dtype=np.bool_)
    assert outermost(*columns).tolist() == expected


def test_all_events_around_some_events() -> None:
    # 0 holds 1, which holds 2 and 3; 4 stands alone and holds 5.
    parent = np.array([-1, 0, 1, 1, -1, 4], dtype=np.int32)

    def marked(*rows: int) -> list[int]:
        return np.flatnonzero(with_enclosing(parent, np.array(rows, dtype=np.int32))).tolist()

    assert marked(3) == [0, 1, 3]
    assert marked(2, 5) == [0, 1, 2, 4, 5]
    assert marked() == []


def test_events_deeper_than_the_limit() -> None:
    chain = np.arange(-1, MAX_DEPTH + 2, dtype=np.int32)  # event i has i events around it
    assert np.flatnonzero(too_deep(chain)).tolist() == [MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2]
    assert not too_deep(chain[:MAX_DEPTH]).any()


def test_events_below_the_limit_are_left_out_with_a_note() -> None:
    builder = TraceBuilder()
    for level in range(MAX_DEPTH + 3):
        builder.operator("aten::add", level, 10_000 - level)
    trace = builder.launch(1, 9_999, thread="other").build()
    # The drawn operators launch: each holds a launch call, also on the last level that is kept.
    assert too_deep(trace.events.parent).sum() == 0
    assert [note.id for note in trace.notes] == ["too-deeply-nested"]
    assert trace.events.parent.max() < len(trace.events)
