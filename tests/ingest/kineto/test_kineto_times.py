"""Start and end of events, and nesting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kineto_files import event, named, read, to_bytes


def test_times_are_exact_to_the_nanosecond() -> None:
    # As torch 2.13 writes them: microseconds since baseTimeNanoseconds, three decimals.
    trace = read(
        to_bytes(
            [
                event("first", 4369443403039.739, 12798.361),
                event("second", 4369443403040.001, 0.007),
            ],
            baseTimeNanoseconds=1790857026000000000,
        )
    )
    assert trace.events.start_ns.tolist() == [0, 262]
    assert trace.events.duration_ns.tolist() == [12_798_361, 7]
    # 1790857026 s + 4369443.403039739 s
    assert trace.source.origin_unix_ns == 1795226469403039739


def test_absolute_times_keep_digits_beyond_a_float() -> None:
    # From real files: absolute microseconds with a fraction. As float64 the first two are equal.
    text = (
        b'{"schemaVersion": 1, "traceEvents": ['
        b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1795226445677193.698,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":1795226445677193.699,"dur":0.5},'
        b'{"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":1795226445677194,"dur":2}]}'
    )
    trace = read(text)
    assert trace.events.start_ns.tolist() == [0, 1, 302]
    assert trace.source.origin_unix_ns == 1795226445677193698


def test_children_that_overhang_by_rounding_stay_nested() -> None:
    # Whole microseconds, start and duration rounded separately: the child ends at 17, the parent
    # at 16. The grandchild ends with the child.
    trace = read(
        to_bytes([event("parent", 10, 6), event("child", 12, 5), event("grandchild", 13, 4)])
    )
    assert trace.events.parent.tolist() == [-1, 0, 1]
    assert trace.events.end_ns.tolist() == [6000, 6000, 6000]


def test_true_overlaps_are_unchanged() -> None:
    trace = read(to_bytes([event("first", 10, 6), event("second", 12, 6)]))
    assert trace.events.parent.tolist() == [-1, -1]
    assert trace.events.duration_ns.tolist() == [6000, 6000]


def test_begin_and_end_events_become_complete_ones() -> None:
    def half(ph: str, ts: float, name: str | None = None, tid: int = 1) -> dict[str, Any]:
        named = {} if name is None else {"name": name, "cat": "cpu_op"}
        return {"ph": ph, "pid": 1, "tid": tid, "ts": ts, **named}

    # outer [0, 10) holds inner [2, 5.5); other begins on a thread of its own and never ends;
    # an end comes without a beginning.
    trace = read(
        to_bytes(
            [
                half("B", 0, "outer"),
                half("B", 2, "inner"),
                half("B", 3, "other", tid=2),
                half("E", 5.5),
                half("E", 10),
                half("E", 11),
            ]
        )
    )
    found = {
        trace.name(row): (int(trace.events.start_ns[row]), int(trace.events.duration_ns[row]))
        for row in range(len(trace.events))
    }
    assert found == {"outer": (0, 10_000), "inner": (2000, 3500), "other": (3000, 0)}
    assert trace.events.parent[named(trace, "inner")] == named(trace, "outer")
    assert "2 events were repaired" in trace.notes[0].message


@pytest.mark.parametrize(
    "time",
    [
        pytest.param("1" + "0" * 400, id="an integer of 400 digits"),
        pytest.param("-1" + "0" * 400, id="a negative one"),
        pytest.param('"' + "9" * 5000 + '"', id="text of 5,000 digits"),
        pytest.param('"1e999999999"', id="a decimal beyond any exponent"),
        pytest.param('"sNaN"', id="a decimal that refuses to be compared"),
        pytest.param('"Infinity"', id="infinity"),
    ],
)
def test_an_impossible_time_costs_its_event_only(time: str) -> None:
    text = to_bytes([event("good", 10, 5), event("bad", 77777, 5)]).decode()
    trace = read(text.replace("77777", time).encode())
    assert [trace.events.duration_ns.tolist(), trace.events.start_ns.tolist()] == [[5000], [0]]


@pytest.mark.parametrize("number", ["1" + "0" * 400, '"' + "9" * 5000 + '"', '"\\u00b2"', "1e400"])
def test_impossible_numbers_in_the_header_are_unknown(number: str) -> None:
    device = {"id": 77777, "name": "NVIDIA H100", "totalGlobalMem": 77777}
    text = to_bytes([event("good", 10, 5)], deviceProperties=[device]).decode()
    assert len(read(text.replace("77777", number).encode()).events) == 1
