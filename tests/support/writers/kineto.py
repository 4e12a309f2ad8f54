"""A trace as Kineto JSON, as PyTorch's profiler writes it.

Left out: work of an input pipeline (a loader's workers are other processes), XLA's modules, ops
and lines, and what kernels compute (readers derive it from their names). A name that a reader would
take for another kind of event is replaced by one of this kind.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.host_names import runtime_kind
from tb_perfadvisor.ingest.kineto.interpret.collectives import item_bytes
from tb_perfadvisor.ingest.kineto.interpret.event_kinds import host_kind
from tb_perfadvisor.testing.symbols import device_alphabet, host_alphabet, step_name
from tb_perfadvisor.trace import Device, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND

_RUNTIME = (EventKind.LAUNCH, EventKind.SYNCHRONIZE, EventKind.ALLOCATE, EventKind.RUNTIME)
_HOST_CATEGORIES = {
    EventKind.OPERATOR: "cpu_op",
    EventKind.PYTHON: "python_function",
    EventKind.OVERHEAD: "overhead",
    **dict.fromkeys(_RUNTIME, "cuda_runtime"),
}
_DEVICE_CATEGORIES = {
    EventKind.KERNEL: "kernel",
    EventKind.COLLECTIVE: "kernel",
    EventKind.COPY: "gpu_memcpy",
    EventKind.MEMSET: "gpu_memset",
    EventKind.DEVICE_SYNC: "cuda_sync",
    EventKind.DEVICE_ANNOTATION: "gpu_user_annotation",
}
# As `c10d` spells them in `Collective name`.
_OPERATIONS = {
    "all-reduce": "allreduce",
    "all-gather": "_allgather_base",
    "reduce-scatter": "_reduce_scatter_base",
    "all-to-all": "alltoall_base",
}
_FIRST_PROCESS = 1000


def write_kineto(trace: Trace) -> bytes:
    """The trace as the text of a `*.pt.trace.json`, the same for equal traces."""
    writer = _Writer.of(trace)
    document: dict[str, Any] = {"schemaVersion": 1}
    if trace.source.is_synthetic:
        document["perfadvisor_synthetic"] = True
    document["deviceProperties"] = [
        {
            "id": device.index,
            "name": device.name,
            "totalGlobalMem": device.memory_bytes or 0,
            "numSms": device.multiprocessors or 0,
            **_capability(device),
        }
        for device in trace.devices
    ]
    source = trace.source
    if source.rank is not None or source.world_size is not None:
        info = {"backend": source.backend or "nccl", "rank": source.rank}
        document["distributedInfo"] = info | {"world_size": source.world_size}
    for key, flag in (
        ("record_shapes", source.has_shapes),
        ("with_stack", source.has_stacks),
        ("profile_memory", source.has_memory),
    ):
        if flag is not None:
            document[key] = int(flag)
    if source.host:
        document["host_name"] = source.host
    if source.origin_unix_ns is not None:
        document["baseTimeNanoseconds"] = source.origin_unix_ns
    document["displayTimeUnit"] = "ms"
    document["traceEvents"] = [*writer.names(), *writer.events(), *writer.memory()]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _capability(device: Device) -> dict[str, int]:
    if not device.compute_capability:
        return {}
    major, minor = map(int, device.compute_capability.split("."))
    warp = 64 if device.vendor == "amd" else 32
    return {"computeMajor": major, "computeMinor": minor, "warpSize": warp}


class _Writer(Struct, frozen=True):
    trace: Trace
    threads: tuple[tuple[int, int], ...]
    """(pid, tid) of each track."""
    launching: frozenset[int]
    sequence: dict[int, int]
    """Autograd's number of forward operators and of the backward nodes that belong to them."""
    arguments: dict[int, dict[str, Any]]
    """What the tables know of an event, by its row."""

    @classmethod
    def of(cls, trace: Trace) -> _Writer:
        events = trace.events
        launching = frozenset(np.unique(events.launched_by[events.launched_by >= 0]).tolist())
        writer = cls(trace, _threads(trace), launching, _sequences(trace), {})
        for add in (writer._operators, writer._kernels, writer._copies, writer._collectives):
            add()
        return writer

    def names(self) -> list[dict[str, Any]]:
        """Metadata events: names of processes and threads."""
        tracks, found = self.trace.tracks, []
        named: set[int] = set()
        for track, (pid, tid) in enumerate(self.threads):
            if tracks.kind[track] != TrackKind.HOST_THREAD:
                continue
            if pid not in named:
                named.add(pid)
                process = self.trace.text(tracks.process[track]).split(" (")[0] or "python"
                found.append(_metadata("process_name", pid, 0, process))
            label = self.trace.text(tracks.label[track])
            found.append(_metadata("thread_name", pid, tid, label))
        return found

    def events(self) -> list[dict[str, Any]]:
        """Complete events, in order of start."""
        rows = range(len(self.trace.events))
        return [event for row in rows if (event := self._event(row)) is not None]

    def memory(self) -> list[dict[str, Any]]:
        """Instant events of the allocator."""
        table = self.trace.memory
        first = next(iter(self.threads), (_FIRST_PROCESS, 1))
        found = []
        for row in range(len(table.at_ns)):
            track = int(table.track[row])
            pid, tid = self.threads[track] if track >= 0 else first
            device = int(table.device[row])
            arguments = {
                "Total Reserved": int(table.reserved_bytes[row]),
                "Total Allocated": int(table.allocated_bytes[row]),
                "Bytes": int(table.bytes[row]),
                "Addr": int(table.address[row]),
                "Device Id": device,
                "Device Type": 0 if device < 0 else 1,
            }
            found.append(
                {
                    "ph": "i",
                    "cat": "cpu_instant_event",
                    "s": "t",
                    "name": "[memory]",
                    "pid": pid,
                    "tid": tid,
                    "ts": _microseconds(int(table.at_ns[row])),
                    "args": {k: v for k, v in arguments.items() if v >= 0 or k == "Bytes"},
                }
            )
        return found

    def _event(self, row: int) -> dict[str, Any] | None:
        events, track = self.trace.events, int(self.trace.events.track[row])
        kind = EventKind(int(events.kind[row]))
        is_device = kind >= FIRST_DEVICE_KIND
        if is_device and self.trace.tracks.kind[track] != TrackKind.DEVICE_STREAM:
            return None
        if is_device and kind not in _DEVICE_CATEGORIES:
            return None
        arguments = dict(self.arguments.get(row, {}))
        launch = int(events.launched_by[row])
        if is_device:
            category = _DEVICE_CATEGORIES[kind]
            name = _device_name(kind, self.trace.name(row))
            device = int(self.trace.tracks.device[track])
            arguments |= {"device": device, "stream": int(self.trace.tracks.thread[track])}
            pid, tid = device, int(self.trace.tracks.thread[track])
        else:
            category = _HOST_CATEGORIES.get(kind, "user_annotation")
            name = _host_name(kind, category, self.trace.name(row), int(events.step[row]))
            pid, tid = self.threads[track]
        if row in self.launching:
            arguments["correlation"] = row + 1
        elif launch >= 0:
            arguments["correlation"] = launch + 1
        if row in self.sequence:
            arguments["Sequence number"] = self.sequence[row]
            arguments["Fwd thread id"] = 1 if events.forward[row] >= 0 else 0
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": _microseconds(int(events.start_ns[row])),
            "dur": _microseconds(int(events.duration_ns[row])),
            "args": arguments,
        }

    def _operators(self) -> None:
        table, text = self.trace.operators, self.trace.text
        for index, row in enumerate(table.row.tolist()):
            found = self.arguments.setdefault(row, {})
            if table.shapes[index] >= 0:
                found["Input Dims"] = json.loads(text(table.shapes[index]))
            if table.dtypes[index] >= 0:
                found["Input type"] = text(table.dtypes[index]).split(";")
            if table.values[index] >= 0:
                found["Concrete Inputs"] = json.loads(text(table.values[index]))
            if table.frame[index] >= 0:
                found["Call stack"] = text(table.frame[index])
            if table.module[index] >= 0:
                found["Module Hierarchy"] = text(table.module[index])

    def _kernels(self) -> None:
        table = self.trace.kernels
        for index, row in enumerate(table.row.tolist()):
            found = self.arguments.setdefault(row, {})
            for key, value in (
                ("registers per thread", int(table.registers[index])),
                ("shared memory", int(table.shared_memory_bytes[index])),
            ):
                if value >= 0:
                    found[key] = value
            for key, count in (
                ("grid", int(table.grid_blocks[index])),
                ("block", int(table.block_threads[index])),
            ):
                if count >= 0:
                    found[key] = [count, 1, 1]
            if not np.isnan(table.occupancy_share[index]):
                found["est. achieved occupancy %"] = round(100 * table.occupancy_share[index])

    def _copies(self) -> None:
        table = self.trace.copies
        for index, row in enumerate(table.row.tolist()):
            if table.size_bytes[index] >= 0:
                self.arguments.setdefault(row, {})["bytes"] = int(table.size_bytes[index])

    def _collectives(self) -> None:
        table, text = self.trace.collectives, self.trace.text
        for index, row in enumerate(table.row.tolist()):
            size = int(table.size_bytes[index])
            if size < 0:
                continue
            dtype = text(table.dtype[index])
            width = item_bytes(dtype)
            if width <= 0:
                dtype, width = "Byte", 1
            elements = size // width
            sent = (
                int(table.sent_bytes[index]) // width if table.sent_bytes[index] >= 0 else elements
            )
            found = self.arguments.setdefault(row, {})
            if self.trace.events.kind[row] == EventKind.HOST_COLLECTIVE:
                # Gloo's ranges describe their tensors like operators.
                found.setdefault("Input Dims", [[sent]])
                found.setdefault("Input type", [dtype.lower()])
                continue
            operation = text(table.operation[index])
            found |= {
                "Collective name": _OPERATIONS.get(operation, operation),
                "In msg nelems": sent,
                "Out msg nelems": elements,
                "dtype": dtype,
            }
            for key, value in (
                ("Group size", int(table.group_size[index])),
                ("Seq", int(table.sequence[index])),
            ):
                if value >= 0:
                    found[key] = value
            if table.group[index] >= 0:
                found["Process Group Name"] = text(table.group[index])
            if table.description[index] >= 0:
                found["Process Group Description"] = text(table.description[index])
            if table.ranks[index] >= 0:
                found["Process Group Ranks"] = text(table.ranks[index])


def _threads(trace: Trace) -> tuple[tuple[int, int], ...]:
    tracks = trace.tracks
    processes: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for row in range(len(tracks)):
        process = int(tracks.process[row])
        pid = processes.setdefault(process, _FIRST_PROCESS + len(processes))
        tid = int(tracks.thread[row])
        # Two threads with the same number would be merged.
        found.append((pid, tid if tid > 0 and (pid, tid) not in found else 10**6 + row))
    return tuple(found)


def _sequences(trace: Trace) -> dict[int, int]:
    """The recorded sequence numbers, and a new one for each pair of nodes without."""
    table = trace.operators
    known = table.sequence >= 0
    found: dict[int, int] = dict(
        zip(table.row[known].tolist(), table.sequence[known].tolist(), strict=True)
    )
    forward = trace.events.forward
    for backward in np.flatnonzero(forward >= 0).tolist():
        target = int(forward[backward])
        # Larger than any number that autograd reaches in a profile.
        found[backward] = found.setdefault(target, found.get(backward, 10**8 + target))
    return found


def _host_name(kind: EventKind, category: str, name: str, step: int) -> str:
    if kind is EventKind.STEP:
        return step_name("pytorch", max(step, 0))
    read = runtime_kind(name) if category == "cuda_runtime" else host_kind(category, name)
    if read is kind:
        return name
    default = (symbol for symbol in host_alphabet("pytorch").values() if symbol.kind is kind)
    return name if kind in (EventKind.OPERATOR, EventKind.ANNOTATION) else next(default).name


def _device_name(kind: EventKind, name: str) -> str:
    alphabet = device_alphabet("gpu")
    if kind is EventKind.COLLECTIVE and "nccl" not in name.lower():
        return alphabet["N"].name
    if kind is EventKind.MEMSET and not name.lower().startswith("memset"):
        return alphabet["m"].name
    return name


def _metadata(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _microseconds(nanoseconds: int) -> int | float:
    """Microseconds as in Kineto: integers if possible, otherwise doubles (exact enough)."""
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000
