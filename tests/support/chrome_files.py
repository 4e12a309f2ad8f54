"""Small exports for tests, and comparable facts of traces."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

from tb_perfadvisor.ingest.chrome.reader import read_chrome
from tb_perfadvisor.trace import Source, Trace

SOURCE = Source(path="run/h.trace.json.gz", format="")


def process(pid: Any, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def thread(pid: Any, tid: Any, name: str, order: int | None = None) -> list[dict[str, Any]]:
    named = {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    sort = {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index"}
    return [named] if order is None else [named, {**sort, "args": {"sort_index": order}}]


def span(name: str, start_us: Any, duration_us: Any = 1.0, **others: Any) -> dict[str, Any]:
    """An event, by default of thread 1 of process 701."""
    return {
        "ph": "X", "pid": 701, "tid": 1, "ts": start_us, "dur": duration_us, "name": name, **others
    }  # fmt: skip


HOST = [process(701, "/host:CPU"), *thread(701, 1, "python", order=1)]


def to_bytes(events: list[Any]) -> bytes:
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [*events, {}]}).encode()


def read(data: bytes | list[Any]) -> Trace:
    return read_chrome(io.BytesIO(data if isinstance(data, bytes) else to_bytes(data)), SOURCE)


def note_ids(trace: Trace) -> list[str]:
    return [note.id for note in trace.notes]


def events_of(trace: Trace) -> Counter[tuple[Any, ...]]:
    """Start, duration, kind, name, line, step, and names of parent and launch of each event."""
    events, tracks = trace.events, trace.tracks
    labels = [trace.text(index) for index in tracks.label.tolist()]

    def name(row: int) -> str | None:
        return trace.name(row) if row >= 0 else None

    columns = zip(
        events.start_ns.tolist(),
        events.duration_ns.tolist(),
        events.kind.tolist(),
        events.track.tolist(),
        events.step.tolist(),
        events.parent.tolist(),
        events.launched_by.tolist(),
        strict=True,
    )
    return Counter(
        (start, duration, kind, trace.name(row), labels[track], step, name(parent), name(launch))
        for row, (start, duration, kind, track, step, parent, launch) in enumerate(columns)
    )
