"""The excerpt for Perfetto: its structure, and that our own reader can read it."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor import load
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.perfetto_excerpt import evidence_range, make_excerpt
from tb_perfadvisor.report.timeline.window import (
    TimelineEvents,
    decode_events,
    encode_events,
)
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import (
    Assembler,
    EventKind,
    Run,
    Source,
    Trace,
    TrackKind,
)
from tb_perfadvisor.trace.intervals import Intervals

DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
HOSTILE = "<img src=x onerror=alert(1)> \x1b[2J \ud800"


def analyzed(run: Run, *select: str) -> tuple[Report, TimelineEvents]:
    config = Config(select=select)
    analysis = analyze_run(run, config)
    claims = [ranked.claims for ranked in analysis.findings]
    stored = collect_events(analysis.signals, claims)
    return build_report(analysis, config), stored


def signals_of(trace: Trace) -> Signals:
    return Signals(run_of(trace))


def opened(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(content))
    return found


def complete(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def names_of(content: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in content["traceEvents"]
        if event["name"] == what
    }


def test_the_affected_time_has_its_own_track() -> None:
    report, window = analyzed(run_of(draw(SLOW)), "input-stall")
    content = opened(make_excerpt(report, window, 0, 0, 20_000_000))
    threads = names_of(content, "thread_name")
    (lane,) = [place for place, name in threads.items() if name == "affected time"]
    marks = [event for event in complete(content) if (event["pid"], event["tid"]) == lane]
    assert names_of(content, "process_name")[lane[0], 0] == "Perf Advisor"
    # The device waits while the main thread fetches: 0-4 ms and 10-14 ms, in microseconds.
    assert [(mark["ts"], mark["dur"]) for mark in marks] == [(0, 4_000), (10_000, 4_000)]
    assert {mark["name"] for mark in marks} == {
        "Feed the device without making it wait: DataLoader"
    }
    assert content["otherData"] == {
        "generator": "tb_perfadvisor",
        "run": "drawn",
        "file": report.workers[0].file,
        "from_ns": 0,
        "to_ns": 20_000_000,
        "events_left_out": 0,
        "rule": "input-stall",
        "title": "Feed the device without making it wait: DataLoader",
    }


def test_our_own_reader_reads_the_same_events() -> None:
    trace = draw(SLOW)
    report, window = analyzed(run_of(trace))
    content = make_excerpt(report, window, None, 0, trace.duration_ns)
    again = next(read_kineto(io.BytesIO(content), Source(path="excerpt.json.gz", format="")))

    def events_of(trace: Trace, kind: EventKind) -> list[tuple[str, int, int]]:
        rows = np.flatnonzero(trace.events.kind == kind)
        return [
            (trace.name(row), int(trace.events.start_ns[row]), int(trace.events.duration_ns[row]))
            for row in rows.tolist()
        ]

    for kind in (EventKind.OPERATOR, EventKind.KERNEL, EventKind.LAUNCH, EventKind.INPUT_WAIT):
        assert events_of(again, kind) == events_of(trace, kind)
        assert events_of(trace, kind) or kind is EventKind.LAUNCH


def test_times_match_the_report_and_events_are_cut_at_the_ends() -> None:
    report, window = analyzed(run_of(draw(SLOW)), "input-stall")
    content = opened(make_excerpt(report, window, 0, 12_000_000, 16_000_000))
    events = [event for event in complete(content) if event["cat"] == "kernel"]
    # One millisecond of the second step's kernel, at 15-20 ms, is inside.
    assert {(event["ts"] + event["dur"]) for event in events} == {16_000}
    assert events[-1]["args"]["cut"] is True
    assert all(12_000 <= event["ts"] <= 16_000 for event in complete(content))
    (mark,) = [event for event in complete(content) if event["args"].get("rule")]
    assert (mark["ts"], mark["dur"]) == (12_000, 2_000)  # of 10-14 ms


def test_without_a_saving_the_evidence_is_marked() -> None:
    (run,) = load(DEMO_LOGS / "jax_recompiling")
    report, window = analyzed(run)
    ranges = [
        (place, evidence_range(finding, window, place))
        for place, finding in enumerate(report.findings)
    ]
    assert ranges
    bare = collect_events(Signals(run))  # nothing claimed
    marked = 0
    for place, (from_ns, to_ns) in ranges:
        content = opened(make_excerpt(report, bare, place, from_ns, to_ns))
        if "evidence" in names_of(content, "thread_name").values():
            marked += any(event["args"].get("rule") for event in complete(content))
    assert marked


@pytest.mark.parametrize("name", ["pytorch_input_slow", "jax_recompiling", "synthetic_tpu_padded"])
def test_every_finding_of_the_demo_has_a_small_valid_excerpt(name: str) -> None:
    (run,) = load(DEMO_LOGS / name)
    report, window = analyzed(run)
    stored = decode_events(encode_events(window))
    for place, finding in enumerate(report.findings):
        from_ns, to_ns = evidence_range(finding, stored, place)
        content = make_excerpt(report, stored, place, from_ns, to_ns)
        assert len(content) < 2_000_000
        assert content == make_excerpt(report, stored, place, from_ns, to_ns)
        assert_well_formed(opened(content), from_ns, to_ns)


def assert_well_formed(content: dict[str, Any], from_ns: int, to_ns: int) -> None:
    threads = names_of(content, "thread_name")
    processes = {pid for pid, _ in names_of(content, "process_name")}
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in complete(content):
        start_ns, duration_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
        assert from_ns <= start_ns <= start_ns + duration_ns <= to_ns
        assert event["pid"] in processes
        assert (event["pid"], event["tid"]) in threads
        lanes[event["pid"], event["tid"]].append((start_ns, start_ns + duration_ns))
    for spans in lanes.values():
        still_open: list[int] = []
        for start_ns, end_ns in sorted(spans, key=lambda span: (span[0], -span[1])):
            while still_open and still_open[-1] <= start_ns:
                still_open.pop()
            # Chrome's format draws only disjoint or nested events.
            assert not still_open or end_ns <= still_open[-1]
            still_open.append(end_ns)


def made_of(spans: list[tuple[int, int, int]], name: str = "e") -> Trace:
    assembler = Assembler()
    tracks = [
        assembler.add_track(TrackKind.HOST_THREAD, label=name, process=name),
        assembler.add_track(TrackKind.DEVICE_LINE, device=1, label=name),
    ]
    text = assembler.intern_all([name])[0]
    assembler.add_events(
        [start for _, start, _ in spans],
        [length for _, _, length in spans],
        kind=[(EventKind.ANNOTATION, EventKind.DEVICE_ASYNC)[track] for track, _, _ in spans],
        name=[text] * len(spans),
        track=[tracks[track] for track, _, _ in spans],
    )
    return assembler.finish(Source(path="x", format="test"))


INPUT_STALL, _ = analyzed(run_of(draw(SLOW)), "input-stall")
SPANS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=25
)


@given(SPANS, st.integers(0, 50), st.integers(1, 60), st.integers(1, 30))
def test_overlapping_events_are_spread_over_lanes(
    spans: list[tuple[int, int, int]], from_ns: int, length: int, max_events: int
) -> None:
    spans = [(0, 0, 1), *spans]  # a trace begins with its first event
    window = collect_events(
        signals_of(made_of(spans)), [np.array([[3, 9], [20, 50]], dtype=np.int64)]
    )
    content = opened(
        make_excerpt(INPUT_STALL, window, 0, from_ns, from_ns + length, max_events=max_events)
    )
    assert_well_formed(content, from_ns, from_ns + length)
    events = [event for event in complete(content) if "rule" not in event["args"]]
    assert len(events) <= max_events
    inside = [
        1
        for _, start, duration in spans
        if start < from_ns + length
        and (start + duration > from_ns or (duration == 0 and start >= from_ns))
    ]
    assert len(events) + content["otherData"]["events_left_out"] == len(inside)


def test_names_of_the_trace_are_data() -> None:
    report, _ = analyzed(run_of(draw(SLOW)), "input-stall")
    window = collect_events(signals_of(made_of([(0, 0, 9)], HOSTILE)))
    content = opened(make_excerpt(report, window, None, 0, 10))
    (event,) = complete(content)
    # A lone surrogate cannot be written as UTF-8.
    assert event["name"] == HOSTILE.replace("\ud800", "?")


def test_the_longest_claim_is_shown_without_evidence() -> None:
    report, _ = analyzed(run_of(draw(SLOW)), "input-stall")
    finding = report.findings[0]
    bare = type(finding)(
        **{name: getattr(finding, name) for name in finding.__struct_fields__} | {"evidence": []}
    )
    claims: Intervals = np.array([[0, 1_000], [10_000, 14_000]], dtype=np.int64)
    trace = made_of([(0, 0, 90_000)])
    # 4000 ns fill half of the range.
    assert evidence_range(bare, collect_events(signals_of(trace), [claims]), 0) == (8_000, 16_000)
    assert evidence_range(bare, collect_events(signals_of(trace)), 0) == (0, 90_000)
