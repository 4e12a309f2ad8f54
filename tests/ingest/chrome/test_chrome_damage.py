"""Exports that are truncated, damaged or have wrong types are read as far as possible."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.trace import EventKind
from tests.support.chrome_files import HOST, note_ids, process, read, span, thread, to_bytes
from tests.support.mutation import mutated
from tests.support.night import examples

SOUND = to_bytes(
    [
        process(1, "/device:GPU:0"),
        *thread(1, 16, "Stream #16(Kernel)", order=16),
        *HOST,
        span("train", 0, 50, args={"step_num": "1"}),
        span("cuLaunchKernel", 10, 3, args={"correlation_id": "9"}),
        span("gemm", 20, 5.5, pid=1, tid=16, args={"correlation_id": "9", "hlo_op": "dot.1"}),
    ]
)


def test_truncated_file() -> None:
    data = to_bytes([*HOST, *(span(f"PjitFunction(f{i})", i) for i in range(10))])
    trace = read(data[: data.index(b"(f7")])
    assert (len(trace.events), note_ids(trace)) == (7, ["truncated-file", "chrome-export"])


def test_truncated_archive() -> None:
    data = gzip.compress(to_bytes([*HOST, *(span(f"op {i * i}", i) for i in range(20_000))]))
    trace = read(data[: len(data) // 2])
    assert 5_000 < len(trace.events) < 15_000
    assert note_ids(trace)[0] == "truncated-file"


def test_events_without_required_fields() -> None:
    trace = read(
        [
            *HOST,
            span("sound", 0, 5),
            span("negative", 1, -3),
            span("endless", 2, None),
            span("not a number", 3, "soon"),
            span("no start", None),
            {"ph": "X", "pid": 701, "tid": 1, "ts": 4, "dur": 1},
            {"ph": "X", "pid": 701, "tid": 1, "ts": 4, "dur": 1, "name": 5},
        ]
    )
    assert [trace.name(row) for row in range(4)] == ["sound", "negative", "endless", "not a number"]
    assert trace.events.duration_ns.tolist() == [5_000, 0, 0, 0]
    (note,) = [note for note in trace.notes if note.id == "malformed-events"]
    assert note.message.startswith("6 events were repaired")


@pytest.mark.parametrize(
    "arguments",
    [
        {"step_num": "1e400"},
        {"step_num": 10**40},
        {"step_num": [1]},
        {"step_num": None},
        {"step_num": -5},
        {"step_num": "9" * 5_000},
        {"hlo_op": 3, "hlo_module": {}},
        {"correlation_id": "18446744073709551615"},
        {"correlation_id": "0x10"},
        {"occupancy_pct": "NaN", "long_name": 7},
        {"long_name": "", "hlo_category": [], "flops": "many"},
        {"hlo_category": "x", "source": 5, "flops": 2.0**70, "bytes_accessed": "-3"},
    ],
)
def test_arguments_of_any_kind(arguments: dict[str, Any]) -> None:
    pieces = [*HOST, span("a", 0, 5, args=arguments), span("b", 1, 2)]
    trace = read(to_bytes(pieces))
    assert trace.events.duration_ns.tolist() == [5_000, 2_000]
    assert trace.rows(EventKind.STEP).size == 0


def test_arguments_that_are_not_an_object() -> None:
    trace = read([*HOST, span("a", 0, 5, args="none"), span("b", 0, 4)])
    assert [trace.name(row) for row in range(len(trace.events))] == ["b"]
    assert "malformed-events" in note_ids(trace)


@pytest.mark.parametrize("number", [1e300, -1e300, 2.0**63, 1e18])
def test_times_out_of_range(number: float) -> None:
    around = [span("a", i) for i in range(3)]
    trace = read([*HOST, *around, span("far", number), span("long", 5, abs(number))])
    assert [trace.name(row) for row in range(len(trace.events))] == ["a", "a", "a"]
    assert "broken-events" in note_ids(trace)


def test_stream_number_out_of_range() -> None:
    trace = read(SOUND.replace(b"Stream #16", b"Stream #9999999999999999999916"))
    label = trace.tracks.label[trace.events.track[trace.rows(EventKind.KERNEL)]]
    assert trace.texts(label) == ("Stream #9999999999999999999916(Kernel)",)


PIECES = (b"null", b"1e999", b"-", b"{}", b'"', b"[", b"99999999999999999999")


@examples(25)
@given(mutated(SOUND, *PIECES))
def test_damage_raises_only_our_errors(data: bytes) -> None:
    with suppress(PerfAdvisorError):
        read(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = ["ph", "pid", "tid", "ts", "dur", "name", "args", "cat"]


@examples(25)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=4), VALUES)
def test_wrong_types_raise_only_our_errors(events: list[dict[str, Any]], value: Any) -> None:
    known = [*HOST, span("a", 1, args={"step_num": value, "hlo_op": value, "long_name": value})]
    odd = [{**span("a", 1), **event} for event in events]
    with suppress(PerfAdvisorError):
        read(json.dumps({"traceEvents": [*known, *odd]}).encode())
