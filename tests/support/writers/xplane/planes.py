"""What all planes have in common: lines, and numbered kinds of events and stats."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from msgspec import Struct, field

from tb_perfadvisor.ingest.xspace.interpret.run_links import TPU_LAUNCH
from tb_perfadvisor.trace import Device, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND

PS_PER_NS = 1000
PROGRAM = re.compile(r".*\((\d+)\)$")
"""Modules are called after their program, with its number in parentheses."""


class Plane(Struct):
    """Numbers the kinds of events and stats of a plane in order of appearance."""

    message: Any
    _events: dict[tuple[str, str], int] = field(default_factory=dict)
    _stats: dict[str, int] = field(default_factory=dict)

    def line(self, id_: int, name: str) -> Any:
        """Add a line."""
        return self.message.lines.add(id=id_, name=name)

    def event(self, line: Any, trace: Trace, row: int, metadata: int) -> Any:
        """Add a row of the trace as an event of a line."""
        return line.events.add(
            metadata_id=metadata,
            offset_ps=int(trace.events.start_ns[row]) * PS_PER_NS,
            duration_ps=int(trace.events.duration_ns[row]) * PS_PER_NS,
        )

    def metadata(self, name: str, display: str = "") -> int:
        """The number of a kind of event."""
        known = self._events.get((name, display))
        if known is None:
            known = self._events[name, display] = len(self._events) + 1
            entry = self.message.event_metadata[known]
            entry.id, entry.name, entry.display_name = known, name, display
        return known

    def stat(self, owner: Any, name: str, value: float | str | bytes) -> None:
        """Add a stat to an event, a kind of event or the plane."""
        known = self._stats.get(name)
        if known is None:
            known = self._stats[name] = len(self._stats) + 1
            self.message.stat_metadata[known].id = known
            self.message.stat_metadata[known].name = name
        stat = owner.stats.add(metadata_id=known)
        if isinstance(value, str):
            stat.str_value = value
        elif isinstance(value, bytes):
            stat.bytes_value = value
        elif isinstance(value, float):
            stat.double_value = value
        elif value >= 2**63:
            stat.uint64_value = value
        else:
            stat.int64_value = value


class Facts(Struct, frozen=True):
    """Slots in the tables by row of the events."""

    trace: Trace
    launching: frozenset[int]
    kernel: dict[int, int]
    copy: dict[int, int]
    hlo: dict[int, int]
    iterator: dict[int, int]
    has_device: bool

    @classmethod
    def of(cls, trace: Trace) -> Facts:
        """Index the tables of a trace."""
        launched_by = trace.events.launched_by

        def places(rows: Any) -> dict[int, int]:
            return {row: place for place, row in enumerate(rows.tolist())}

        return cls(
            trace,
            frozenset(np.unique(launched_by[launched_by >= 0]).tolist()),
            places(trace.kernels.row),
            places(trace.copies.row),
            dict(zip(trace.hlo_events.row.tolist(), trace.hlo_events.op.tolist(), strict=True)),
            places(trace.iterators.row),
            bool((trace.events.kind >= FIRST_DEVICE_KIND).any()),
        )

    def rows_on(self, track: int) -> list[int]:
        """Rows of the events on a track."""
        rows: list[int] = np.flatnonzero(self.trace.events.track == track).tolist()
        return rows

    def kind(self, row: int) -> EventKind:
        """The kind of an event."""
        return EventKind(int(self.trace.events.kind[row]))


class DevicePlane:
    """What planes of GPUs and TPUs have in common."""

    def __init__(self, facts: Facts, message: Any, index: int, device: Device | None) -> None:
        """Start the plane of a device, of which possibly only the number is known."""
        self.facts, self.trace = facts, facts.trace
        self.plane, self.index, self.device = Plane(message), index, device

    def tracks(self, kind: TrackKind) -> list[int]:
        """Tracks of the device, of one kind."""
        table = self.trace.tracks
        found: list[int] = np.flatnonzero(
            (table.kind == kind) & (table.device == self.index)
        ).tolist()
        return found

    def derived_lines(self) -> None:
        """Add the lines that XLA's profiler derives from operations: steps and modules."""
        trace = self.trace
        for track in self.tracks(TrackKind.DEVICE_LINE):
            label = trace.text(trace.tracks.label[track])
            line = self.plane.line(int(trace.tracks.thread[track]), label)
            for row in self.facts.rows_on(track):
                event = self.plane.event(line, trace, row, self.plane.metadata(trace.name(row)))
                step = int(trace.events.step[row])
                if step >= 0:
                    self.plane.stat(event, "step_num", step)
                launch = int(trace.events.launched_by[row])
                if self.facts.kind(row) is EventKind.DEVICE_MODULE and launch >= 0:
                    self.plane.stat(event, "_ct", TPU_LAUNCH)
                    self.plane.stat(event, "_c", launch + 1)


def is_tpu(trace: Trace, device: Device | None, index: int) -> bool:
    """Whether a device is a TPU; an unknown device is one if it has a line of operations."""
    if device is not None:
        return device.kind == "tpu"
    tracks = trace.tracks
    streams = np.flatnonzero((tracks.device == index) & (tracks.kind == TrackKind.DEVICE_STREAM))
    return any(trace.text(tracks.label[track]) == "XLA Ops" for track in streams.tolist())
