"""A trace as an export of Nsight Systems: the tables that a recording of a GPU program has.

Left out: what Nsight Systems does not record (Python functions, the framework's memory, occupancy),
XLA's own lines and operations, and the sizes of collectives, which NCCL alone states.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.host_names import range_kind, runtime_kind
from tb_perfadvisor.testing.symbols import device_alphabet, host_alphabet, step_name
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND

_RUNTIME = (EventKind.LAUNCH, EventKind.SYNCHRONIZE, EventKind.ALLOCATE, EventKind.RUNTIME)
_DURING = "start INTEGER, end INTEGER"
_WHERE = "deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, "
    "computeMajor INTEGER, computeMinor INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "globalTid INTEGER, nameId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DURING}, {_WHERE}, demangledName INTEGER, "
    "shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
    "blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, "
    "dynamicSharedMemory INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DURING}, {_WHERE}, bytes INTEGER, copyKind INTEGER, "
    "srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DURING}, {_WHERE}, bytes INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_DURING}, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER",
    "PROFILER_OVERHEAD": f"{_DURING}, globalTid INTEGER, nameId INTEGER",
    "NVTX_EVENTS": f"{_DURING}, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER",
}
_PUSH_POP = 59
_THREAD_BITS = 24
_FIRST_PROCESS = 1000
_HOST = -1
# The kind of a copy, and of both memories; that of the host is pageable (0) or pinned (1).
_COPIES = {
    CopyDirection.HOST_TO_DEVICE: (1, (_HOST, 2)),
    CopyDirection.DEVICE_TO_HOST: (2, (2, _HOST)),
    CopyDirection.DEVICE_TO_DEVICE: (8, (2, 2)),
    CopyDirection.HOST_TO_HOST: (9, (_HOST, _HOST)),
    CopyDirection.PEER_TO_PEER: (10, (2, 2)),
    CopyDirection.UNKNOWN: (0, (7, 7)),
}


def write_nsight(trace: Trace) -> bytes:
    """The trace as the bytes of a `.sqlite`."""
    writer = _Writer(trace, {}, {}, {name: [] for name in _TABLES})
    writer.add_attributes()
    writer.add_header()
    for row in range(len(trace.events)):
        writer.add_event(row)
    writer.rows["StringIds"] = [(key, text) for text, key in writer.strings.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        write_tables(path, _TABLES, writer.rows)
        return path.read_bytes()


def write_tables(
    path: Path, tables: dict[str, str], rows: dict[str, list[tuple[Any, ...]]]
) -> None:
    """Write a database with tables (columns by name) and their rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, columns in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            for row in rows.get(name, []):
                places = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({places})", row)


class _Writer(Struct):
    trace: Trace
    strings: dict[str, int]
    attributes: dict[int, tuple[int, ...]]
    """What the tables know of kernels and copies, by row: the last columns."""
    rows: dict[str, list[tuple[Any, ...]]]

    def add_header(self) -> None:
        trace, rows = self.trace, self.rows
        metadata = [("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")]
        metadata.append(("EXPORT_PRODUCT_VERSION", trace.source.version or "2026.2.1"))
        if trace.source.is_synthetic:
            metadata.append(("EXPORT_SYNTHETIC", "1"))
        rows["META_DATA_EXPORT"] += metadata
        if trace.source.origin_unix_ns is not None:
            rows["TARGET_INFO_SESSION_START_TIME"].append((trace.source.origin_unix_ns,))
        for device in trace.devices:
            major, _, minor = device.compute_capability.partition(".")
            rows["TARGET_INFO_GPU"].append(
                (
                    *(device.index, device.name, device.memory_bytes or 0),
                    *(device.multiprocessors or 0, int(major or 0), int(minor or 0)),
                )
            )
        for track in range(len(trace.tracks)):
            if trace.tracks.device[track] < 0:
                label = self.text(trace.text(trace.tracks.label[track]))
                rows["ThreadNames"].append((self.thread(track), label))

    def add_attributes(self) -> None:
        kernels, copies = self.trace.kernels, self.trace.copies
        for index, row in enumerate(kernels.row.tolist()):
            self.attributes[row] = (
                *(int(kernels.grid_blocks[index]), 1, 1, int(kernels.block_threads[index]), 1, 1),
                *(int(kernels.registers[index]), int(kernels.shared_memory_bytes[index]), 0),
            )
        for index, row in enumerate(copies.row.tolist()):
            kind, ends = _COPIES[CopyDirection(int(copies.direction[index]))]
            host = {1: 0, 0: 1, -1: 7}[int(copies.pageable[index])]
            memories = [host if end == _HOST else end for end in ends]
            self.attributes[row] = (int(copies.size_bytes[index]), kind, *memories)

    def add_event(self, row: int) -> None:
        events = self.trace.events
        kind, track = EventKind(int(events.kind[row])), int(events.track[row])
        during = (int(events.start_ns[row]), int(events.end_ns[row]))
        name = self.trace.name(row)
        if kind >= FIRST_DEVICE_KIND:
            self._add_device_event(kind, row, track, during, name)
        elif kind in _RUNTIME:
            if runtime_kind(name) is not kind:
                name = _default(kind)
            values = (*during, self.thread(track), row + 1, self.text(f"{name}_v3020"))
            self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(values)
        elif kind is EventKind.OVERHEAD:
            self.rows["PROFILER_OVERHEAD"].append((*during, self.thread(track), self.text(name)))
        else:
            text = self._range(kind, row, name)
            self.rows["NVTX_EVENTS"].append((*during, _PUSH_POP, text, None, self.thread(track)))

    def _add_device_event(
        self, kind: EventKind, row: int, track: int, during: tuple[int, int], name: str
    ) -> None:
        tracks, launch = self.trace.tracks, int(self.trace.events.launched_by[row])
        owner = int(self.trace.events.track[launch]) if launch >= 0 else self._first_thread()
        where = (
            *(int(tracks.device[track]), int(tracks.thread[track])),
            *(launch + 1 if launch >= 0 else 0, self.process(owner)),
        )
        if kind is EventKind.COLLECTIVE and "nccl" not in name.lower():
            name = device_alphabet("gpu")["N"].name
        if kind in (EventKind.KERNEL, EventKind.COLLECTIVE):
            attributes = self.attributes.get(row, (None,) * 9)
            names = (self.text(name), self.text(name))
            self.rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                (*during, *where, *names, *attributes, None)
            )
        elif kind is EventKind.COPY:
            copied = self.attributes.get(row, (-1, 0, 7, 7))
            self.rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append((*during, *where, *copied))
        elif kind is EventKind.MEMSET:
            self.rows["CUPTI_ACTIVITY_KIND_MEMSET"].append((*during, *where, 4))

    def _range(self, kind: EventKind, row: int, name: str) -> str:
        events, operators = self.trace.events, self.trace.operators
        if kind is EventKind.STEP:
            return step_name("pytorch", max(int(events.step[row]), 0))
        if kind is not EventKind.OPERATOR:
            return name if range_kind(name, is_annotation=True) is kind else _default(kind)
        place = np.flatnonzero(operators.row == row)
        shapes = self.trace.text(operators.shapes[place[0]]) if place.size else ""
        return f"{name}, op_id = {row + 1}" + (f", sizes = {shapes}" if shapes else "")

    def text(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def process(self, track: int) -> int:
        names = dict.fromkeys(self.trace.tracks.process.tolist())
        place = [*names].index(int(self.trace.tracks.process[track]))
        return (_FIRST_PROCESS + place) << _THREAD_BITS

    def thread(self, track: int) -> int:
        return self.process(track) + track + 1

    def _first_thread(self) -> int:
        hosts = np.flatnonzero(self.trace.tracks.device < 0)
        return int(hosts[0]) if hosts.size else 0


def _default(kind: EventKind) -> str:
    return next(symbol.name for symbol in host_alphabet("pytorch").values() if symbol.kind is kind)
