"""Small XSpaces for tests."""

from __future__ import annotations

import io
from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import EventKind, Source, Trace

SOURCE = Source(path="run/host.xplane.pb", format="", run="run", session="s", host="h")


class Drawing:
    """Adds planes, lines and events; times in nanoseconds, names become metadata."""

    def __init__(self) -> None:
        self.space = WRITING.XSpace()

    def plane(self, name: str, **stats: Any) -> Any:
        plane = self.space.planes.add(name=name)
        for stat, value in stats.items():
            _set(plane.stats.add(), plane, stat, value)
        return plane

    def line(self, plane: Any, name: str, *, at_ns: int = 0, id_: int = 0) -> Any:
        return plane.lines.add(name=name, timestamp_ns=at_ns, id=id_ or len(plane.lines) + 1)

    def event(
        self,
        plane: Any,
        line: Any,
        name: str,
        start_ns: float,
        duration_ns: float,
        *,
        display: str = "",
        shared: dict[str, Any] | None = None,
        **stats: Any,
    ) -> None:
        known = {item.name: key for key, item in plane.event_metadata.items()}
        if name not in known:
            known[name] = len(plane.event_metadata) + 1
            kind = plane.event_metadata[known[name]]
            kind.id, kind.name, kind.display_name = known[name], name, display
            for stat, value in (shared or {}).items():
                _set(kind.stats.add(), plane, stat, value)
        event = line.events.add(
            metadata_id=known[name],
            offset_ps=round(start_ns * 1000),
            duration_ps=round(duration_ns * 1000),
        )
        for stat, value in stats.items():
            _set(event.stats.add(), plane, stat, value)

    def bytes(self) -> bytes:
        data: bytes = self.space.SerializeToString()
        return data

    def read(self) -> Trace:
        return read_xplane(io.BytesIO(self.bytes()), SOURCE)


class Reference(str):
    """A text that the file stores once, in the stat metadata."""

    __slots__ = ()


def _stat_id(plane: Any, name: str) -> int:
    for key, item in plane.stat_metadata.items():
        if item.name == name:
            return int(key)
    key = len(plane.stat_metadata) + 1
    plane.stat_metadata[key].id = key
    plane.stat_metadata[key].name = name
    return key


def _set(stat: Any, plane: Any, name: str, value: Any) -> None:
    stat.metadata_id = _stat_id(plane, name)
    if isinstance(value, Reference):
        stat.ref_value = _stat_id(plane, str(value))
    elif isinstance(value, str):
        stat.str_value = value
    elif isinstance(value, bytes):
        stat.bytes_value = value
    elif isinstance(value, float):
        stat.double_value = value
    elif value >= 2**63:
        stat.uint64_value = value
    else:
        stat.int64_value = value


def varint(value: int) -> bytes:
    """Encode as in protobuf's documentation: seven bits per byte, the lowest first."""
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, payload: bytes) -> bytes:
    """A delimited field, for invalid content that no writer produces."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def kinds(trace: Trace) -> dict[str, str]:
    """The kind of each event, by name."""
    return {
        trace.name(row): EventKind(int(trace.events.kind[row])).name
        for row in range(len(trace.events))
    }


def row_of(trace: Trace, name: str) -> int:
    """The only event of a name."""
    rows = [row for row in range(len(trace.events)) if trace.name(row) == name]
    assert len(rows) == 1, f"{len(rows)} events named {name}"
    return rows[0]
