"""Requests that are answered on a thread each are steps of the lanes that these threads share."""

from __future__ import annotations

from typing import Any

import msgspec

from tb_perfadvisor.instrument.loopless_windows import with_lanes

BASE_NS = 1_700_000_000_000_000_000


def trace(operators: dict[int, tuple[float, float]]) -> bytes:
    """An operator for each thread, from one microsecond to another."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": tid,
            "ts": a,
            "dur": b - a,
        }
        for tid, (a, b) in operators.items()
    ]
    return msgspec.json.encode({"baseTimeNanoseconds": BASE_NS, "traceEvents": events})


def lanes(data: bytes, ends: dict[int, float]) -> tuple[list[int], list[dict[str, Any]]]:
    """The threads of the operators, and the steps, after requests that ended so."""
    requests = [(BASE_NS + round(at * 1e3), thread) for thread, at in ends.items()]
    events = msgspec.json.decode(with_lanes(data, requests))["traceEvents"]
    return (
        [each["tid"] for each in events if each["cat"] == "cpu_op"],
        [each for each in events if each["cat"] == "user_annotation"],
    )


def test_threads_that_take_turns_share_a_lane() -> None:
    # Two clients: a request of the second runs while the first two of the first one do.
    data = trace({7: (0, 10), 8: (5, 15), 9: (20, 30), 10: (40, 50)})
    threads, steps = lanes(data, {7: 10.0, 8: 15.0, 9: 30.0, 10: 50.0})
    assert threads == [7, 8, 7, 7]
    assert [(each["name"], each["tid"], each["ts"], each["dur"]) for each in steps] == [
        ("ProfilerStep#0", 7, 10.0, 20.0),  # from 10 to 30
        ("ProfilerStep#1", 7, 30.0, 20.0),  # from 30 to 50
    ]


def test_requests_from_before_the_recording_are_no_steps() -> None:
    data = trace({7: (100, 110), 8: (120, 130)})
    _, steps = lanes(data, {5: 10.0, 6: 90.0, 7: 110.0, 8: 130.0})
    assert [(each["ts"], each["dur"]) for each in steps] == [(110.0, 20.0)]
