"""Writes the events around a finding's evidence as a small trace file for ui.perfetto.dev.

The file is in Chrome's trace format with the categories of PyTorch's traces, so Perfetto,
chrome://tracing and Perf Advisor itself can open it. Times count from the start of the trace, as
in the report; the machine's clock is not included.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.timeline.collect_events import select_events
from tb_perfadvisor.report.timeline.window import TimelineEvents
from tb_perfadvisor.trace.intervals import union

# A few megabytes of JSON, a tenth of that compressed: opens at once and is easy to send.
MAX_EVENTS = 20_000
# As in the tab's first view of a timeline, the event fills half of the range.
_FILL = 0.5
_NARROWEST_NS = 2_000

_MARKS, _FIRST_HOST, _FIRST_DEVICE = 1, 1000, 2000
_CATEGORIES = {
    "operator": "cpu_op",
    "python": "python_function",
    "overhead": "overhead",
    **dict.fromkeys(("launch", "synchronize", "allocate", "runtime"), "device_runtime"),
    **dict.fromkeys(("kernel", "collective"), "kernel"),
    "copy": "gpu_memcpy",
    "memset": "gpu_memset",
    "device_sync": "cuda_sync",
}


def evidence_range(
    finding: model.FindingInfo, stored: TimelineEvents, index: int
) -> tuple[int, int]:
    """Choose the range of time that shows a finding best.

    That is the range around its first piece of evidence, else around the longest time that it
    claims, else the whole trace. `index` is that of the finding in the report.
    """
    ranges = _evidence(finding, stored.worker)
    claims = stored.claims_of(index)
    if ranges:
        start_ns, end_ns = ranges[0]
    elif len(claims):
        start_ns, end_ns = claims[int(np.argmax(claims[:, 1] - claims[:, 0]))].tolist()
    else:
        return 0, max(stored.whole_ns, 1)
    span_ns = max(int((end_ns - start_ns) / _FILL), _NARROWEST_NS)
    from_ns = max((start_ns + end_ns - span_ns) // 2, 0)
    return from_ns, from_ns + span_ns


def make_excerpt(
    report: model.Report,
    stored: TimelineEvents,
    index: int | None,
    from_ns: int,
    to_ns: int,
    *,
    max_events: int = MAX_EVENTS,
) -> bytes:
    """Write a part of the reference worker's trace as gzipped JSON.

    The time of the finding at `index` is marked on a track of its own; None marks nothing. Events
    that reach beyond the range are cut; their arguments hold the full duration. Beyond
    `max_events`, each track keeps its longest events.
    """
    selected = select_events(stored, from_ns, to_ns, max_events, index)
    events: list[dict[str, Any]] = []
    worker = report.workers[stored.worker]
    other: dict[str, Any] = {
        "generator": "tb_perfadvisor",
        "run": report.run,
        "file": worker.file,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "events_left_out": selected["truncated"] + selected["left_out"],
    }
    if index is not None:
        finding = report.findings[index]
        other |= {"rule": finding.rule_id, "title": finding.title}
        events += _marks(finding, selected)
    events += _tracks(selected)
    content = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns" if to_ns - from_ns < 1_000_000 else "ms",
        "otherData": other,
        "traceEvents": events,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # Without a time in the header, equal excerpts are equal files.
    return gzip.compress(text.encode("utf-8", "replace"), mtime=0)


def _evidence(finding: model.FindingInfo, worker: int) -> list[tuple[int, int]]:
    """Start and end of each piece of evidence on a worker, in the order of the report."""
    ranges = []
    for item in finding.evidence:
        if isinstance(item, model.EventsEvidence):
            rows = (row for row in item.rows if row.worker == worker)
            ranges += [(row.start_ns, row.start_ns + row.duration_ns) for row in rows]
        elif isinstance(item, model.SpanEvidence) and item.worker == worker:
            ranges.append((item.start_ns, item.end_ns))
    return ranges


def _marks(finding: model.FindingInfo, selected: dict[str, Any]) -> list[dict[str, Any]]:
    """The finding's own track: the time that its saving is taken from, or else its evidence."""
    ranges: Sequence[Sequence[int]] = selected["claims"]
    label = "affected time"
    if not ranges:
        label = "evidence"
        rows = np.array(_evidence(finding, selected["worker"]), dtype=np.int64).reshape(-1, 2)
        rows = np.clip(rows, selected["from_ns"], selected["to_ns"])
        ranges = union(rows[:, 0], rows[:, 1]).tolist()
    marks = [_event(finding.title, "user_annotation", _MARKS, 1, *bounds) for bounds in ranges]
    for mark in marks:
        mark["args"] = {"rule": finding.rule_id}
    return [*_process(_MARKS, "Perf Advisor", 0), *_thread(_MARKS, 1, label, 0), *marks]


def _tracks(selected: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes, threads and events, with those of the host first."""
    lanes = [_Lanes() for _ in selected["tracks"]]
    places: list[tuple[int, int]] = []
    events: list[dict[str, Any]] = []
    hosts: dict[str, int] = {}
    named: set[int] = set()
    for index, track in enumerate(selected["tracks"]):
        if track["kind"] == "device":
            device = 0 if track["device"] is None else track["device"]
            pid, name = _FIRST_DEVICE + device, f"device {device}"
        else:
            name = track["process"] or "host"
            pid = hosts.setdefault(name, _FIRST_HOST + len(hosts))
        if pid not in named:
            named.add(pid)
            events += _process(pid, name, pid)
        places.append((pid, (index + 1) * 100))
    for event in selected["events"]:
        index, start_ns = event["track"], event["start_ns"]
        pid, first = places[index]
        lane = lanes[index].lane_of(start_ns, start_ns + event["duration_ns"])
        cut = (
            max(start_ns, selected["from_ns"]),
            min(start_ns + event["duration_ns"], selected["to_ns"]),
        )
        category = _CATEGORIES.get(event["kind"])
        is_device = pid >= _FIRST_DEVICE
        if category is None:
            category = "gpu_user_annotation" if is_device else "user_annotation"
        written = _event(event["name"], category, pid, first + lane, *cut)
        written["args"] = {"kind": event["kind"]}
        if is_device:
            written["args"] |= {"device": pid - _FIRST_DEVICE, "stream": first + lane}
        if cut[1] - cut[0] != event["duration_ns"]:
            written["args"] |= {"cut": True, "duration_ns": event["duration_ns"]}
        events.append(written)
    for index, (pid, first) in enumerate(places):
        for lane in range(lanes[index].count):
            label = selected["tracks"][index]["label"] or f"track {index}"
            label = label if lane == 0 else f"{label} ({lane + 1})"
            events += _thread(pid, first + lane, label, first + lane)
    return events


class _Lanes:
    """Spreads the events of one track over lanes in which they are disjoint or nested.

    The format cannot draw partial overlap, which asynchronous spans and clock corrections cause.
    """

    def __init__(self) -> None:
        self._open_ends: list[list[int]] = []

    @property
    def count(self) -> int:
        return len(self._open_ends)

    def lane_of(self, start_ns: int, end_ns: int) -> int:
        """The lane of the next event; events must come by start, the longer one first."""
        for lane, ends in enumerate(self._open_ends):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return lane
        self._open_ends.append([end_ns])
        return len(self._open_ends) - 1


def _event(
    name: str, category: str, pid: int, tid: int, start_ns: int, end_ns: int
) -> dict[str, Any]:
    # Microseconds; three decimals hold the nanoseconds.
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times}


def _process(pid: int, name: str, place: int) -> list[dict[str, Any]]:
    return _metadata("process", pid, 0, name, place)


def _thread(pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    return _metadata("thread", pid, tid, name, place)


def _metadata(what: str, pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {**common, "name": f"{what}_name", "args": {"name": name}},
        {**common, "name": f"{what}_sort_index", "args": {"sort_index": place}},
    ]
