"""What a timeline draws of a range: exact if it can be, and bounded whatever the trace."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.window import (
    MAX_STEPS,
    TimelineEvents,
    find_events,
    select_window,
    typical_range,
)
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Assembler, EventKind, Source, TrackKind

STEPS = """
    cell 1ms
    step   |..........|............|..........|
    main   |DDDDoo....|DDDDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.......KKKKK|.....KKKKK|
"""


def stored_of(spans: list[tuple[int, int, str]], claims: Any = ()) -> TimelineEvents:
    """Events of a thread by start, duration and name."""
    assembler = Assembler()
    main = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    names = assembler.intern_all([name for _, _, name in spans])
    assembler.add_events(
        [start for start, _, _ in spans],
        [duration for _, duration, _ in spans],
        kind=EventKind.OPERATOR,
        name=names,
        track=main,
    )
    trace = assembler.finish(Source(path="x.json", format="test"))
    return collect_events(Signals(run_of(trace)), claims)


def boxes_of(window: dict[str, Any]) -> list[tuple[int, int, int, int, str]]:
    """Row, start, duration, count and name of each box."""
    boxes = window["boxes"]
    names = [window["texts"][name] for name in boxes["name"]]
    columns = (boxes[name] for name in ("row", "start_ns", "duration_ns", "count"))
    return list(zip(*columns, names, strict=True))


def test_long_events_have_boxes_of_their_own() -> None:
    stored = stored_of([(0, 400, "call"), (50, 100, "a"), (200, 100, "b")])
    window = select_window(stored, 0, 400, bins=400)
    assert boxes_of(window) == [(0, 0, 400, 1, "call"), (1, 50, 100, 1, "a"), (1, 200, 100, 1, "b")]
    assert window["boxes"]["event"] == [0, 1, 2]
    assert [window["kinds"][kind] for kind in window["boxes"]["kind"]] == ["operator"] * 3
    assert window["tracks"] == [
        {
            "label": "main",
            "process": "",
            "kind": "host",
            "device": None,
            "worker": 0,
            "row": 0,
            "rows": 2,
        }
    ]


@pytest.mark.parametrize(
    ("from_ns", "to_ns", "names"),
    [(180, 300, ["call"]), (179, 300, ["call", "a"]), (180, 301, ["call", "b"])],
)
def test_the_ends_of_a_range_are_exclusive(from_ns: int, to_ns: int, names: list[str]) -> None:
    stored = stored_of([(0, 400, "call"), (100, 80, "a"), (300, 10, "b")])
    window = select_window(stored, from_ns, to_ns, bins=1_000)
    assert [name for *_, name in boxes_of(window)] == names


def test_short_neighbors_share_a_box_that_says_so() -> None:
    # Bins of 16 ns: three calls begin in the first, one in the second; the last is long.
    stored = stored_of(
        [(0, 2, "a"), (4, 5, "b"), (12, 2, "a"), (17, 1, "c"), (40, 16, "d")], [np.array([[3, 9]])]
    )
    window = select_window(stored, 0, 64, bins=4)
    assert window["bin_ns"] == 16
    assert boxes_of(window) == [(0, 0, 14, 3, "b"), (0, 17, 1, 1, "c"), (0, 40, 16, 1, "d")]
    assert window["boxes"]["busy_ns"] == [9, 1, 16]
    assert window["claims"] == [{"finding": 0, "intervals": [[3, 9]]}]


def test_an_answer_is_bounded() -> None:
    stored = stored_of([(at * 10, 5, f"e{at % 7}") for at in range(5_000)])
    exact = select_window(stored, 0, 50_000, bins=50_000, max_boxes=5_000)
    assert len(exact["boxes"]["row"]) == 5_000
    for most in (1, 10, 999):
        window = select_window(stored, 0, 50_000, bins=50_000, max_boxes=most)
        assert 0 < len(window["boxes"]["row"]) <= most
        assert sum(window["boxes"]["count"]) == 5_000
        assert sum(window["boxes"]["busy_ns"]) == 25_000
    # Zoomed in, each event has its box again.
    near = select_window(stored, 0, 100, bins=100, max_boxes=10)
    assert near["boxes"]["count"] == [1] * 10


def test_causes_are_exact_in_each_part() -> None:
    signals = Signals(run_of(draw(STEPS)))
    window = select_window(collect_events(signals), 0, ms(32), bins=32)
    totals = window["causes"]["total_ns"]
    assert window["causes"]["bins"] == 32
    assert np.sum(list(totals.values()), axis=0).tolist() == [ms(1)] * 32
    # The device waits for input in the first four milliseconds of the first step.
    assert totals["input"][:6] == [ms(1)] * 4 + [0, 0]
    again = select_window(collect_events(signals), ms(2), ms(4), bins=1)
    assert again["causes"]["total_ns"] == {"input": [ms(2)]}


def test_claims_less_than_a_bin_apart_are_one() -> None:
    claims = np.array([[0, 10], [12, 20], [60, 70]])
    stored = stored_of([(0, 100, "a")], [claims])
    fine = select_window(stored, 0, 100, bins=100)["claims"]
    assert fine == [{"finding": 0, "intervals": claims.tolist()}]
    coarse = select_window(stored, 0, 100, bins=10)["claims"]
    assert coarse == [{"finding": 0, "intervals": [[0, 20], [60, 70]]}]
    assert select_window(stored, 5, 15, bins=10)["claims"][0]["intervals"] == [[0, 5], [7, 10]]


def test_the_typical_step_is_nearest_in_its_causes_to_the_mean() -> None:
    # The second step has the median length, 13 ms, but waits for no input at all.
    drawing = """
        cell 1ms
        step   |............|.............|..............|
        main   |DDDDDDoo....|oo...........|DDDDDDDDoo....|
        gpu 7  |......KKKKKK|KKKKKKKKKKKKK|........KKKKKK|
    """
    stored = collect_events(Signals(run_of(draw(drawing))))
    # Input takes 6, 0 and 8 ms (14 / 3 on average), kernels 6, 13 and 6 (25 / 3), all 12, 13 and 14
    # (39 / 3): the steps are (4 + 7 + 3) / 3, (14 + 14 + 0) / 3 and (10 + 7 + 3) / 3 ms away.
    # A fortieth of the step is added on each side, but not before the trace.
    assert typical_range(stored) == (0, ms(12) + 300_000)
    assert typical_range(stored_of([(0, 70, "a")])) == (0, 70)


def test_the_step_of_a_finding_is_one_in_which_it_costs_time() -> None:
    signals = Signals(run_of(draw(STEPS)))
    # In the first and typical step: 0, none, 1 ms of each, and all in the second.
    claims = [
        np.array([[0, ms(4)], [ms(10), ms(16)]]),
        np.array([[ms(16), ms(17)]]),
        np.array([[ms(1), ms(2)], [ms(12), ms(14)]]),
    ]
    stored = collect_events(signals, claims)
    first, second = (0, ms(10) + 250_000), (ms(10) - 300_000, ms(22) + 300_000)
    assert typical_range(stored) == first
    # 4 of 10 / 3 ms; 0 of 1 / 3 ms; 1 of 3 / 3 ms; and no finding that has claims.
    assert [typical_range(stored, finding) for finding in range(4)] == [first, second, first, first]


def test_steps_in_the_range_unless_they_are_too_close() -> None:
    stored = collect_events(Signals(run_of(draw(STEPS))))
    numbers = stored.step_number.tolist()
    window = select_window(stored, ms(12), ms(32), bins=100)
    assert window["steps"] == [
        [numbers[1], ms(-2), ms(10)],
        [numbers[2], ms(10), ms(20)],
    ]
    many = np.arange(MAX_STEPS + 1)
    crowded = msgspec.structs.replace(
        stored, step_number=many, step_start_ns=many, step_end_ns=many + 1
    )
    assert select_window(crowded, 0, ms(32), bins=100)["steps"] == []


def test_times_are_on_the_clock_of_the_worker_that_is_asked_for() -> None:
    stored = stored_of([(0, 10, "b"), (100, 50, "a")])
    shifted = msgspec.structs.replace(stored, worker_shift_ns=np.array([0, 40]))
    own = select_window(shifted, 0, 200, bins=200)
    other = select_window(shifted, 0, 200, bins=200, worker=1)
    assert own["boxes"]["start_ns"] == [0, 100]
    # The worker's clock is 40 ns behind, so its first event is before the range.
    assert other["boxes"]["start_ns"] == [60]
    assert (other["whole_ns"], other["worker"]) == (110, 1)


def test_events_are_found_by_a_part_of_their_name() -> None:
    stored = stored_of([(0, 100, "call"), (10, 20, "dataset.__getitem__"), (50, 30, "__GETITEM__")])
    found = find_events(stored, "getItem")
    assert (found["count"], found["total_ns"]) == (2, 50)
    assert [(e["name"], e["start_ns"], e["row"]) for e in found["events"]] == [
        ("dataset.__getitem__", 10, 1),
        ("__GETITEM__", 50, 1),
    ]
    assert find_events(stored, "nowhere")["events"] == []


def test_an_empty_range_draws_nothing() -> None:
    window = select_window(stored_of([(0, 10, "a")]), 500, 600, bins=10)
    assert window["boxes"]["row"] == []
    assert window["texts"] == []
