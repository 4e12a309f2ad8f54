"""A trace as an XSpace, as TensorFlow's and JAX's profilers write it.

Not carried: shapes, types and autograd's numbers of operators, sizes of a GPU's collectives, and
what a GPU's kernels compute (readers judge it by their names). Names are replaced as they are
for Kineto.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane.host import TPU_LAUNCH, kind_of_name
from tb_perfadvisor.ingest.xplane.schema import WRITING
from tb_perfadvisor.testing.symbols import host_alphabet
from tb_perfadvisor.trace import CopyDirection, Device, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND

_PS_PER_NS = 1000
_VERSIONS = {"jax": "jax_version", "tensorflow": "tf_version", "pytorch": "torch_xla_version"}
# GPU planes have no product name: (vendor, compute capability, multiprocessors) tell it.
_CHIPS = {
    "NVIDIA H100 80GB HBM3": ("Nvidia", 9, 0, 132),
    "NVIDIA A100-SXM4-80GB": ("Nvidia", 8, 0, 108),
    "NVIDIA A100-SXM4-40GB": ("Nvidia", 8, 0, 108),
    "Tesla V100-SXM2-16GB": ("Nvidia", 7, 0, 80),
    "Tesla V100-SXM2-32GB": ("Nvidia", 7, 0, 80),
    "AMD Instinct MI300X": ("AMD", 9, 4, 304),
}
_STREAM_NAMES = {
    EventKind.COPY: {
        CopyDirection.HOST_TO_DEVICE: "MemcpyH2D",
        CopyDirection.DEVICE_TO_HOST: "MemcpyD2H",
        CopyDirection.DEVICE_TO_DEVICE: "MemcpyD2D",
        CopyDirection.PEER_TO_PEER: "MemcpyP2P",
        CopyDirection.HOST_TO_HOST: "MemcpyH2H",
    }
}
_ENDS = {
    CopyDirection.HOST_TO_DEVICE: ("host", "device"),
    CopyDirection.DEVICE_TO_HOST: ("device", "host"),
    CopyDirection.DEVICE_TO_DEVICE: ("device", "device"),
    CopyDirection.HOST_TO_HOST: ("host", "host"),
}
_MODULES = "XLA Modules"
_SEPARATORS = re.compile(r"[:\s]+")
_PROGRAM = re.compile(r".*\((\d+)\)$")


def write_xplane(trace: Trace) -> bytes:
    """The trace as the bytes of a `*.xplane.pb`, the same for equal traces."""
    space = WRITING.XSpace()
    facts = _Facts.of(trace)
    devices = {device.index: device for device in trace.devices}
    tracks = trace.tracks
    used = sorted({int(index) for index in tracks.device.tolist() if index >= 0} | set(devices))
    for index in used:
        device = devices.get(index)
        if _is_tpu(trace, device, index):
            _TpuPlane(facts, space.planes.add(), index, device).write()
        else:
            _GpuPlane(facts, space.planes.add(), index, device).write()
    _host_plane(facts, space.planes.add())
    _metadata_plane(trace, space.planes.add())
    _environment_plane(trace, space.planes.add())
    if trace.source.host:
        space.hostnames.append(trace.source.host)
    written: bytes = space.SerializeToString(deterministic=True)
    return written


class _Plane(Struct):
    """Numbers the kinds of event and stat of one plane as they come."""

    message: Any
    _events: dict[tuple[str, str], int] = field(default_factory=dict)
    _stats: dict[str, int] = field(default_factory=dict)

    def line(self, id_: int, name: str) -> Any:
        return self.message.lines.add(id=id_, name=name)

    def event(self, line: Any, trace: Trace, row: int, metadata: int) -> Any:
        return line.events.add(
            metadata_id=metadata,
            offset_ps=int(trace.events.start_ns[row]) * _PS_PER_NS,
            duration_ps=int(trace.events.duration_ns[row]) * _PS_PER_NS,
        )

    def metadata(self, name: str, display: str = "") -> int:
        known = self._events.get((name, display))
        if known is None:
            known = self._events[name, display] = len(self._events) + 1
            entry = self.message.event_metadata[known]
            entry.id, entry.name, entry.display_name = known, name, display
        return known

    def stat(self, owner: Any, name: str, value: float | str) -> None:
        known = self._stats.get(name)
        if known is None:
            known = self._stats[name] = len(self._stats) + 1
            self.message.stat_metadata[known].id = known
            self.message.stat_metadata[known].name = name
        stat = owner.stats.add(metadata_id=known)
        if isinstance(value, str):
            stat.str_value = value
        elif isinstance(value, float):
            stat.double_value = value
        elif value >= 2**63:
            stat.uint64_value = value
        else:
            stat.int64_value = value


class _Facts(Struct, frozen=True):
    """What the tables know, by row of the events."""

    trace: Trace
    launching: frozenset[int]
    kernel: dict[int, int]
    copy: dict[int, int]
    hlo: dict[int, int]
    iterator: dict[int, int]
    has_device: bool

    @classmethod
    def of(cls, trace: Trace) -> _Facts:
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
        rows: list[int] = np.flatnonzero(self.trace.events.track == track).tolist()
        return rows

    def kind(self, row: int) -> EventKind:
        return EventKind(int(self.trace.events.kind[row]))


class _DevicePlane:
    def __init__(self, facts: _Facts, message: Any, index: int, device: Device | None) -> None:
        self.facts, self.trace = facts, facts.trace
        self.plane, self.index, self.device = _Plane(message), index, device

    def tracks(self, kind: TrackKind) -> list[int]:
        table = self.trace.tracks
        found: list[int] = np.flatnonzero(
            (table.kind == kind) & (table.device == self.index)
        ).tolist()
        return found

    def derived_lines(self) -> None:
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


class _GpuPlane(_DevicePlane):
    def write(self) -> None:
        plane, device = self.plane, self.device
        plane.message.name = f"/device:GPU:{self.index}"
        if device is not None:
            vendor, major, minor, cores = _CHIPS.get(device.name, ("Nvidia", 0, 0, 0))
            facts: dict[str, float | str] = {
                "device_vendor": vendor,
                "compute_cap_major": major,
                "compute_cap_minor": minor,
                "core_count": device.multiprocessors or cores,
                "memory_size": device.memory_bytes or 0,
            }
            for name, value in facts.items():
                plane.stat(plane.message, name, value)
        for track in self.tracks(TrackKind.DEVICE_STREAM):
            stream = int(self.trace.tracks.thread[track])
            if stream < 0:
                continue  # the row of waits: an XSpace has none
            line = plane.line(stream, f"Stream #{stream}")
            for row in self.facts.rows_on(track):
                self._event(line, row)
        self.derived_lines()

    def _event(self, line: Any, row: int) -> None:
        kind, trace = self.facts.kind(row), self.trace
        if kind in (EventKind.DEVICE_SYNC, EventKind.DEVICE_ANNOTATION, EventKind.INFEED_WAIT):
            return
        event = self.plane.event(line, trace, row, self.plane.metadata(self._name(row)))
        launch = int(trace.events.launched_by[row])
        if launch >= 0:
            self.plane.stat(event, "correlation_id", launch + 1)
        if row in self.facts.kernel:
            self.plane.stat(event, "kernel_details", self._launch_text(self.facts.kernel[row]))
        if row in self.facts.copy:
            self.plane.stat(event, "memcpy_details", self._copy_text(self.facts.copy[row]))
        if kind is EventKind.MEMSET:
            self.plane.stat(event, "memset_details", "kind:device async:1")
        if row in self.facts.hlo:
            hlo, op = trace.hlo, self.facts.hlo[row]
            module = trace.text(hlo.module[op])
            program = _PROGRAM.match(module)
            self.plane.stat(event, "hlo_op", trace.text(hlo.name[op]))
            self.plane.stat(event, "hlo_module", module.split("(")[0] or "module")
            if program:
                self.plane.stat(event, "program_id", int(program[1]))

    def _name(self, row: int) -> str:
        kind, name = self.facts.kind(row), self.trace.name(row)
        if kind is EventKind.COPY and row in self.facts.copy:
            direction = CopyDirection(int(self.trace.copies.direction[self.facts.copy[row]]))
            return _STREAM_NAMES[kind].get(direction, name)
        if kind is EventKind.MEMSET:
            return "Memset"
        if kind is EventKind.COLLECTIVE and "nccl" not in name.lower():
            return "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return name

    def _launch_text(self, place: int) -> str:
        table = self.trace.kernels
        parts = []
        for label, value, form in (
            ("regs", int(table.registers[place]), "{}"),
            ("static_shared:0 dynamic_shared", int(table.shared_memory_bytes[place]), "{}"),
            ("grid", int(table.grid_blocks[place]), "{},1,1"),
            ("block", int(table.block_threads[place]), "{},1,1"),
        ):
            if value >= 0:
                parts.append(f"{label}:{form.format(value)}")
        occupancy = table.occupancy_share[place]
        parts.append(f"occ_pct:{0 if np.isnan(occupancy) else round(100 * occupancy)}")
        return " ".join(parts)

    def _copy_text(self, place: int) -> str:
        table = self.trace.copies
        pageable = int(table.pageable[place])
        memory = {0: "pinned", 1: "pageable"}.get(pageable, "")
        source, target = _ENDS.get(CopyDirection(int(table.direction[place])), ("", ""))
        # Where pageability is unknown the reader must not learn it from here.
        ends = [memory if end == "host" else end for end in (source, target)]
        size = max(int(table.size_bytes[place]), 0)
        if not all(ends):
            return f"size:{size} dest:0 async:1"
        return f"kind_src:{ends[0]} kind_dst:{ends[1]} size:{size} dest:0 async:1"


class _TpuPlane(_DevicePlane):
    def write(self) -> None:
        plane, device = self.plane, self.device
        plane.message.name = f"/device:TPU:{self.index}"
        if device is not None:
            plane.stat(plane.message, "device_type_string", device.name)
            for name, value in (
                ("peak_teraflops_per_second", (device.reported_flop_per_s or 0) / 1e12),
                (
                    "peak_hbm_bw_gigabytes_per_second",
                    (device.reported_bandwidth_bytes_per_s or 0) / 1e9,
                ),
            ):
                if value:
                    plane.stat(plane.message, name, float(value))
            if device.memory_bytes:
                plane.stat(plane.message, "memory_size", device.memory_bytes)
        self.derived_lines()
        lines = self.tracks(TrackKind.DEVICE_LINE)
        derived = {int(self.trace.tracks.thread[track]) for track in lines}
        labels = {self.trace.text(self.trace.tracks.label[track]) for track in lines}
        for track in self.tracks(TrackKind.DEVICE_STREAM):
            if _MODULES not in labels:
                self._modules(track)
            id_ = int(self.trace.tracks.thread[track])
            line = plane.line(id_ if id_ not in derived else 100 + id_, "XLA Ops")
            for row in self.facts.rows_on(track):
                plane.event(line, self.trace, row, self._operation(row))

    def _modules(self, track: int) -> None:
        """What a launch launched, as one execution: operations have their launch from there."""
        events = self.trace.events
        rows = np.array(self.facts.rows_on(track), dtype=np.int64)
        launches = events.launched_by[rows]
        line = None
        for launch in np.unique(launches[launches >= 0]).tolist():
            own = rows[launches == launch]
            line = line or self.plane.line(1000, _MODULES)
            start_ns, end_ns = int(events.start_ns[own].min()), int(events.end_ns[own].max())
            event = line.events.add(
                metadata_id=self.plane.metadata("jit_drawn(1)"),
                offset_ps=start_ns * _PS_PER_NS,
                duration_ps=(end_ns - start_ns) * _PS_PER_NS,
            )
            self.plane.stat(event, "_ct", TPU_LAUNCH)
            self.plane.stat(event, "_c", launch + 1)

    def _operation(self, row: int) -> int:
        trace, plane = self.trace, self.plane
        name, op = trace.name(row), self.facts.hlo.get(row)
        if op is None:
            return plane.metadata(name)
        hlo = trace.hlo
        known = len(plane._events)
        metadata = plane.metadata(trace.text(hlo.text[op]) or f"%{name}", trace.text(hlo.name[op]))
        if len(plane._events) == known:
            return metadata
        entry = plane.message.event_metadata[metadata]
        program = _PROGRAM.match(trace.text(hlo.module[op]))
        if hlo.category[op] >= 0:
            plane.stat(entry, "hlo_category", trace.text(hlo.category[op]))
        if program:
            plane.stat(entry, "program_id", int(program[1]))
        if hlo.source_line[op] >= 0:
            plane.stat(entry, "source", trace.text(hlo.source_line[op]))
        if hlo.path[op] >= 0:
            plane.stat(entry, "tf_op", trace.text(hlo.path[op]))
        for stat, amount in (("flops", hlo.flop[op]), ("bytes_accessed", hlo.traffic_bytes[op])):
            if not np.isnan(amount):
                plane.stat(entry, stat, int(amount))
        return metadata


def _host_plane(facts: _Facts, message: Any) -> None:
    trace, plane = facts.trace, _Plane(message)
    message.name = "/host:CPU"
    tracks = trace.tracks
    on_tpu = any(_is_tpu(trace, None, index) for index in set(tracks.device.tolist()))
    for track in np.flatnonzero(tracks.kind == TrackKind.HOST_THREAD).tolist():
        line = plane.line(int(tracks.thread[track]), trace.text(tracks.label[track]))
        for row in facts.rows_on(track):
            kind = facts.kind(row)
            name = _host_name(trace, kind, trace.name(row), facts.has_device)
            event = plane.event(line, trace, row, plane.metadata(name))
            step = int(trace.events.step[row])
            if step >= 0:
                plane.stat(event, "step_num", step)
            if row in facts.iterator:
                _iterator(trace, plane, event, facts.iterator[row])
            if row in facts.launching:
                plane.stat(event, "correlation_id", row + 1)
                if on_tpu:
                    plane.stat(event, "_pt", TPU_LAUNCH)
                    plane.stat(event, "_p", row + 1)
        _add_memory(trace, plane, line, np.flatnonzero(trace.memory.track == track))
    untold = np.flatnonzero(trace.memory.track < 0)
    if len(untold):
        _add_memory(trace, plane, plane.line(1, "allocator"), untold)


def _iterator(trace: Trace, plane: _Plane, event: Any, place: int) -> None:
    """The stats of a call of an iterator, or of the run of a function."""
    table = trace.iterators
    if table.run[place]:
        plane.stat(event, "id", int(table.run[place]))
        return
    for stat, numbers in (("id", table.iterator), ("parent_id", table.parent)):
        # All 64 bits: written as what TensorFlow's numbers are, without a sign.
        plane.stat(event, stat, int(numbers[place]) % 2**64)
    for stat, indices in (
        ("name", table.dataset),
        ("shapes", table.shapes),
        ("types", table.types),
    ):
        if indices[place] >= 0:
            plane.stat(event, stat, trace.text(indices[place]))
    if table.is_autotuned[place] >= 0:
        plane.stat(event, "autotune", "true" if table.is_autotuned[place] else "false")
    for stat, column, unit in (
        ("parallelism", table.parallelism, 1),
        ("batch_size", table.batch_size, 1),
        ("buffer_limit", table.buffer_size, 1),
        ("buffered_elements", table.buffered, 1),
        ("buffered_bytes_MB", table.buffered_bytes, 1_000_000),
        ("cpu_budget", table.cores, 1),
        ("threadpool_size", table.threads, 1),
        ("ram_budget_megabytes", table.memory_bytes, 1_000_000),
    ):
        if column[place] >= 0:
            plane.stat(event, stat, int(column[place]) // unit)


def _add_memory(trace: Trace, plane: _Plane, line: Any, rows: NDArray[np.int64]) -> None:
    table = trace.memory
    capacity = {device.index: device.memory_bytes for device in trace.devices}
    for row in rows.tolist():
        is_free = table.bytes[row] < 0
        name = "MemoryDeallocation" if is_free else "MemoryAllocation"
        event = line.events.add(
            metadata_id=plane.metadata(name), offset_ps=int(table.at_ns[row]) * _PS_PER_NS
        )
        device, allocated = int(table.device[row]), int(table.allocated_bytes[row])
        allocator = f"GPU_{device}_bfc" if device >= 0 else "host_bfc"
        plane.stat(event, "allocator_name", allocator)
        plane.stat(event, "allocation_bytes", abs(int(table.bytes[row])))
        plane.stat(event, "addr", int(table.address[row]))
        if allocated >= 0:
            plane.stat(event, "bytes_allocated", allocated)
            plane.stat(event, "bytes_reserved", 0)
            limit = capacity.get(device)
            if limit is not None:
                plane.stat(event, "bytes_available", limit - allocated)


def _metadata_plane(trace: Trace, message: Any) -> None:
    plane = _Plane(message)
    message.name = "/host:metadata"
    name = _VERSIONS.get(trace.source.framework)
    if name is not None:
        plane.stat(message, name, trace.source.version or "0")


def _environment_plane(trace: Trace, message: Any) -> None:
    plane = _Plane(message)
    message.name = "Task Environment"
    if trace.source.origin_unix_ns is not None:
        plane.stat(message, "profile_start_time", trace.source.origin_unix_ns)
    if trace.source.is_synthetic:
        plane.stat(message, "perfadvisor_synthetic", 1)


def _is_tpu(trace: Trace, device: Device | None, index: int) -> bool:
    if device is not None:
        return device.kind == "tpu"
    tracks = trace.tracks
    streams = np.flatnonzero((tracks.device == index) & (tracks.kind == TrackKind.DEVICE_STREAM))
    return any(trace.text(tracks.label[track]) == "XLA Ops" for track in streams.tolist())


def _host_name(trace: Trace, kind: EventKind, name: str, has_device: bool) -> str:
    if kind is EventKind.STEP or kind_of_name(name, has_device=has_device) is kind:
        return name
    if kind is EventKind.OPERATOR:
        # A TensorFlow op is `name:type`.
        words = _SEPARATORS.split(name)
        return f"{'_'.join(words)}:{words[-1]}"
    for framework in (trace.source.framework, "tensorflow"):
        for symbol in host_alphabet(framework).values():
            if symbol.kind is kind and kind_of_name(symbol.name, has_device=has_device) is kind:
                return symbol.name
    return name
