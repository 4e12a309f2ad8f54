"""Lanes: events of a track that overlap are below one another."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.report.timeline.collect_events import find_lanes
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order


def lanes_of(spans: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
    """The lane of each span of track, start and end."""
    track = np.array([span[0] for span in spans], dtype=np.int32)
    start = np.array([span[1] for span in spans], dtype=np.int64)
    end = np.array([span[2] for span in spans], dtype=np.int64)
    order = start_order(start, end - start)
    track, start, end = track[order], start[order], end[order]
    lane = find_lanes(start, end, enclosing_rows(start, end, track), track)
    rows = zip(track.tolist(), start.tolist(), end.tolist(), strict=True)
    return dict(zip(rows, lane.tolist(), strict=True))


def test_calls_are_below_their_callers() -> None:
    assert lanes_of([(0, 0, 100), (0, 10, 50), (0, 20, 30), (0, 60, 90), (1, 0, 100)]) == {
        (0, 0, 100): 0,
        (0, 10, 50): 1,
        (0, 20, 30): 2,
        (0, 60, 90): 1,
        (1, 0, 100): 0,
    }


def test_spans_that_overlap_in_part_get_lanes_of_their_own() -> None:
    # The third fits behind the first again.
    found = lanes_of([(0, 0, 100), (0, 50, 150), (0, 110, 200), (0, 160, 170)])
    assert list(found.values()) == [0, 1, 0, 1]


def test_a_rounded_clock_moves_nothing() -> None:
    # The second call begins a nanosecond before the first one ends.
    assert lanes_of([(0, 0, 100), (0, 99, 200)]) == {(0, 0, 100): 0, (0, 99, 200): 0}


spans = st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)).map(
    lambda span: (span[0], span[1], span[1] + span[2])
)


@given(st.lists(spans, max_size=30, unique=True))
def test_no_event_covers_another(drawn: list[tuple[int, int, int]]) -> None:
    by_lane: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (track, start, end), lane in lanes_of(drawn).items():
        by_lane.setdefault((track, lane), []).append((start, end))
    for events in by_lane.values():
        events.sort()
        for (start, end), (next_start, next_end) in itertools.pairwise(events):
            overlap = end - next_start
            shorter = min(end - start, next_end - next_start)
            assert overlap <= 0 or overlap * 10 <= shorter
