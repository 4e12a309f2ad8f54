"""The plane of a GPU: kernels and copies on streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.trace import CopyDirection, Device, EventKind, TrackKind
from tests.support.writers.xplane.planes import PROGRAM, DevicePlane

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


def _facts(device: Device) -> dict[str, float | str]:
    """The stats of a plane. It has no product name: the other properties identify the device."""
    spec = find_device(
        device.name, multiprocessors=device.multiprocessors, memory_bytes=device.memory_bytes
    )
    if spec is None or spec.compute_capability is None:
        return {
            "device_vendor": "Nvidia",
            "core_count": device.multiprocessors or 0,
            "memory_size": device.memory_bytes or 0,
        }
    major, minor = spec.compute_capability
    return {
        "device_vendor": "AMD" if spec.vendor == "amd" else "Nvidia",
        "compute_cap_major": major,
        "compute_cap_minor": minor,
        "core_count": device.multiprocessors or spec.multiprocessors or 0,
        "memory_size": device.memory_bytes or spec.memory_bytes or 0,
        "memory_bandwidth": int(spec.peaks.memory_bandwidth_bytes_per_s or 0),
    }


class GpuPlane(DevicePlane):
    """Writes the plane of one GPU."""

    def write(self) -> None:
        """Add the facts about the device, and a line for each stream."""
        plane, device = self.plane, self.device
        plane.message.name = f"/device:GPU:{self.index}"
        if device is not None:
            for name, value in _facts(device).items():
                plane.stat(plane.message, name, value)
        for track in self.tracks(TrackKind.DEVICE_STREAM):
            stream = int(self.trace.tracks.thread[track])
            if stream < 0:
                continue  # the row of waits, which an XSpace does not have
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
            program = PROGRAM.match(module)
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
        # If pageability is unknown, the reader must not be able to derive it.
        ends = [memory if end == "host" else end for end in (source, target)]
        size = max(int(table.size_bytes[place]), 0)
        if not all(ends):
            return f"size:{size} dest:0 async:1"
        return f"kind_src:{ends[0]} kind_dst:{ends[1]} size:{size} dest:0 async:1"
