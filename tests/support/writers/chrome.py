"""An XSpace as the Chrome export that TensorFlow and JAX write with it, or once wrote instead.

Like their exporter, it leaves out planes without threads or devices, allocations, tf.data's
marks, and the stats that join threads and name programs
(`tsl/profiler/convert/xplane_to_trace_events.cc` and `utils/xplane_schema.cc`, 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.trace import Trace
from tests.support.writers.xplane import write_xplane

_HOST = "/host:CPU"
_HOST_PROCESS = 701
_DEVICE = re.compile(r"/device:(?:GPU|TPU):")
_LEFT_OUT_LINES = frozenset({"Async XLA Ops"})
_LEFT_OUT_EVENTS = re.compile(
    r"Memory(Allocation|Deallocation)$|(Prefetch|ParallelInterleave|ParallelMap|MapAndBatch"
    r"|ParseExample)(Produce|Consume)$|ParallelInterleaveInitializedInput$"
)
_LEFT_OUT_STATS = frozenset({"_pt", "_p", "_ct", "_c", "_r", "flops", "program_id", "symbol_id"})
_PS_PER_US = 1e6


def write_chrome(trace: Trace) -> bytes:
    """The trace as the JSON of a `*.trace.json`, the same for equal traces."""
    return export_space(write_xplane(trace))


def export_space(data: bytes) -> bytes:
    """The bytes of an `*.xplane.pb` as the JSON of its export."""
    space = WRITING.XSpace.FromString(data)
    hosts = [(_HOST_PROCESS, plane) for plane in space.planes if plane.name == _HOST]
    devices = enumerate((plane for plane in space.planes if _DEVICE.match(plane.name)), start=1)
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for process, plane in [*devices, *hosts]:
        names += _names(process, plane, by_place=process == _HOST_PROCESS)
        for line in plane.lines:
            if _line_name(line) not in _LEFT_OUT_LINES:
                events += _events(process, plane, line)
    # The exporter ends its list of events with an empty one.
    document = {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [*names, *events, {}],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _names(process: int, plane: Any, *, by_place: bool) -> Iterator[dict[str, Any]]:
    yield _label("process_name", process, None, {"name": plane.name})
    yield _label("process_sort_index", process, None, {"sort_index": process})
    for place, line in enumerate(plane.lines, start=1):
        thread = _thread(line)
        order = place if by_place else thread
        yield _label("thread_name", process, thread, {"name": _line_name(line)})
        yield _label("thread_sort_index", process, thread, {"sort_index": order})


def _label(what: str, process: int, thread: int | None, facts: dict[str, Any]) -> dict[str, Any]:
    found = {"ph": "M", "pid": process, "tid": thread, "name": what, "args": facts}
    return {key: value for key, value in found.items() if value is not None}


def _events(process: int, plane: Any, line: Any) -> Iterator[dict[str, Any]]:
    stat_names = {id_: stat.name for id_, stat in plane.stat_metadata.items()}
    for event in line.events:
        kind = plane.event_metadata[event.metadata_id]
        if _LEFT_OUT_EVENTS.match(kind.name):
            continue
        name, facts = kind.name, {}
        if kind.display_name:
            name, facts = kind.display_name, {"long_name": kind.name}
        for stat in (*kind.stats, *event.stats):
            what = stat_names[stat.metadata_id]
            if what not in _LEFT_OUT_STATS and stat.WhichOneof("value") is not None:
                facts[what] = _text(stat, stat_names)
                if what == "step_name":
                    name = facts[what]
        start_ps = line.timestamp_ns * 1000 + event.offset_ps
        found = {
            "ph": "X",
            "pid": process,
            "tid": _thread(line),
            "ts": start_ps / _PS_PER_US,
            # Viewers do not show events without a duration.
            "dur": max(event.duration_ps, 1) / _PS_PER_US,
            "name": name,
        }
        yield {**found, "args": dict(sorted(facts.items()))} if facts else found


def _line_name(line: Any) -> str:
    return str(line.display_name or line.name)


def _thread(line: Any) -> int:
    """Ids have 32 bits in viewers."""
    return int(line.display_id or line.id) % 2**32


def _text(stat: Any, stat_names: dict[int, str]) -> str:
    """A value of any type as text."""
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    if kind == "ref_value":
        return stat_names.get(value, "")
    if kind == "bytes_value":
        return "<opaque bytes>"
    return f"{value:g}" if isinstance(value, float) else str(value)
