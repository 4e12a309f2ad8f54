"""Markers of steps, and their numbers."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals.core.steps.marker_rows import Markers, markers_from_rows
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind


def markers(*numbers: int) -> Markers:
    builder = TraceBuilder()
    for index, number in enumerate(numbers):
        builder.step(number, ms(10 * index), ms(10 * index + 8), name="train")
    trace = builder.build()
    return markers_from_rows(
        trace,
        trace.rows(EventKind.STEP),
        source="markers",
        is_inferred=False,
        track=0,
        marked_ends=True,
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ((7, 8, 9), [7, 8, 9]),
        ((9, 7), [9, 7]),
        ((7, 7, 8), [0, 1, 2]),  # two runs of a loop, or a number that means something else
        ((-1, 7, 8), [0, 1, 2]),  # one has no number
        ((-1, -1), [0, 1]),
    ],
)
def test_recorded_numbers_count_if_they_are_all_different(
    recorded: tuple[int, ...], expected: list[int]
) -> None:
    assert markers(*recorded).number.tolist() == expected


def test_markers_in_succession_with_one_number_are_parts_of_one_step() -> None:
    joined = markers(4, 4, 5, 5, 6, 6)
    assert joined.number.tolist() == [4, 5, 6]
    # Each from the first of its markers, which begin every 10 ms, to the end of the second.
    assert (joined.start_ns / 1e6).tolist() == [0, 20, 40]
    assert (joined.end_ns / 1e6).tolist() == [18, 38, 58]


@pytest.mark.parametrize("recorded", [(4, 4, 5, 5, 6), (4, 5, 6, 4, 5, 6), (4, 4, 4, 4)])
def test_numbers_that_do_not_count_in_equal_groups_join_nothing(recorded: tuple[int, ...]) -> None:
    assert len(markers(*recorded).number) == len(recorded)
