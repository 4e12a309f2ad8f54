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
