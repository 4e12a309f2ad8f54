"""The events around a finding's evidence as a small file of their own, for ui.perfetto.dev.

Chrome's trace format, with the categories that PyTorch's traces have: Perfetto, chrome://tracing
and Perf Advisor itself open it. Times are those of the report, from the start of the trace: no
clock of the machine goes along.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tb_perfadvisor.engine.window import Window, select
from tb_perfadvisor.report import model
from tb_perfadvisor.trace.intervals import union

# Some megabytes of JSON, and a tenth of that compressed: opened at once, and easy to send.
MAX_EVENTS = 20_000
# As the tab's time line begins: the event fills half of what is seen.
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


def evidence_range(finding: model.FindingInfo, window: Window, place: int) -> tuple[int, int]:
    """From when to when a finding is seen best: around what the tab shows of it first.

    Args:
        finding: The finding.
        window: The events that are kept.
        place: Where the finding stands in the report.

    Returns:
        The range around its first piece of evidence, else around the longest time that it
        claims, else the whole trace.
    """
    ranges = _evidence(finding, window.worker)
    claims = window.claims_of(place)
    if ranges:
        start_ns, end_ns = ranges[0]
    elif len(claims):
        start_ns, end_ns = claims[int(np.argmax(claims[:, 1] - claims[:, 0]))].tolist()
    else:
        return 0, max(window.duration_ns_total, 1)
    span_ns = max(int((end_ns - start_ns) / _FILL), _NARROWEST_NS)
    from_ns = max((start_ns + end_ns - span_ns) // 2, 0)
    return from_ns, from_ns + span_ns


def make_excerpt(
    report: model.Report,
    window: Window,
    place: int | None,
    from_ns: int,
    to_ns: int,
    *,
    max_events: int = MAX_EVENTS,
) -> bytes:
    """A part of the reference worker's trace as gzipped JSON.

    Args:
        report: The report of the capture.
        window: Its events.
        place: Where the finding stands in the report whose time is marked in a lane of its own;
            None marks nothing.
        from_ns: The beginning.
        to_ns: The end. Events that reach beyond are cut, and say how long they are.
        max_events: Beyond that each track keeps its longest events.
    """
    found = select(window, from_ns, to_ns, max_events, place)
    events: list[dict[str, Any]] = []
    worker = report.workers[window.worker]
    other: dict[str, Any] = {
        "generator": "tb_perfadvisor",
        "run": report.run,
        "file": worker.file,
        "from_ns": from_ns,
        "to_ns": to_ns,
        "events_left_out": found["truncated"] + found["left_out"],
    }
    if place is not None:
        finding = report.findings[place]
        other |= {"rule": finding.rule_id, "title": finding.title}
        events += _marks(finding, found)
    events += _tracks(found)
    content = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns" if to_ns - from_ns < 1_000_000 else "ms",
        "otherData": other,
        "traceEvents": events,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # Without a time in its head: equal excerpts are equal files.
    return gzip.compress(text.encode("utf-8", "replace"), mtime=0)


def _evidence(finding: model.FindingInfo, worker: int) -> list[tuple[int, int]]:
    """What the evidence shows of a worker, in the order of the report."""
    ranges = []
    for item in finding.evidence:
        if isinstance(item, model.EventsEvidence):
            rows = (row for row in item.rows if row.worker == worker)
            ranges += [(row.start_ns, row.start_ns + row.duration_ns) for row in rows]
        elif isinstance(item, model.SpanEvidence) and item.worker == worker:
            ranges.append((item.start_ns, item.end_ns))
    return ranges


def _marks(finding: model.FindingInfo, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The lane of the finding: the time that it claims, or where its evidence lies."""
    ranges: Sequence[Sequence[int]] = found["claims"]
    label = "claimed time"
    if not ranges:
        label = "evidence"
        rows = np.array(_evidence(finding, found["worker"]), dtype=np.int64).reshape(-1, 2)
        rows = np.clip(rows, found["from_ns"], found["to_ns"])
        ranges = union(rows[:, 0], rows[:, 1]).tolist()
    marks = [_event(finding.title, "user_annotation", _MARKS, 1, *one) for one in ranges]
    for mark in marks:
        mark["args"] = {"rule": finding.rule_id}
    return [*_process(_MARKS, "Perf Advisor", 0), *_thread(_MARKS, 1, label, 0), *marks]


def _tracks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes, threads and events, the host's first."""
    lanes = [_Lanes() for _ in found["tracks"]]
    places: list[tuple[int, int]] = []
    events: list[dict[str, Any]] = []
    hosts: dict[str, int] = {}
    named: set[int] = set()
    for index, track in enumerate(found["tracks"]):
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
    for event in found["events"]:
        index, start_ns = event["track"], event["start_ns"]
        pid, first = places[index]
        lane = lanes[index].lane_of(start_ns, start_ns + event["duration_ns"])
        cut = (
            max(start_ns, found["from_ns"]),
            min(start_ns + event["duration_ns"], found["to_ns"]),
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
            label = found["tracks"][index]["label"] or f"track {index}"
            label = label if lane == 0 else f"{label} ({lane + 1})"
            events += _thread(pid, first + lane, label, first + lane)
    return events


class _Lanes:
    """Lanes of one track: in each, events are apart or one within the other.

    The format draws no others. Asynchronous spans overlap in other ways, and so does what a
    profiler's clocks have moved.
    """

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    @property
    def count(self) -> int:
        return len(self._open)

    def lane_of(self, start_ns: int, end_ns: int) -> int:
        """The lane of an event; they come in order of start, the longer of two first."""
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return lane
        self._open.append([end_ns])
        return len(self._open) - 1


def _event(
    name: str, category: str, pid: int, tid: int, start_ns: int, end_ns: int
) -> dict[str, Any]:
    # Microseconds; three digits after the point hold the nanoseconds.
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times}


def _process(pid: int, name: str, place: int) -> list[dict[str, Any]]:
    return _metadata("process", pid, 0, name, place)


def _thread(pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    return _metadata("thread", pid, tid, name, place)


def _metadata(what: str, pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    own = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {**own, "name": f"{what}_name", "args": {"name": name}},
        {**own, "name": f"{what}_sort_index", "args": {"sort_index": place}},
    ]
