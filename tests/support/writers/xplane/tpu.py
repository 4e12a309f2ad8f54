"""The plane of a TPU: operations, with XLA's facts in their metadata."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.ingest.xspace.interpret.run_links import TPU_LAUNCH
from tb_perfadvisor.trace import TrackKind
from tests.support.writers.xplane.planes import PROGRAM, PS_PER_NS, DevicePlane

_MODULES = "XLA Modules"


class TpuPlane(DevicePlane):
    """Writes the plane of one TPU core."""

    def write(self) -> None:
        """Add the facts about the device, its derived lines and its operations."""
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
        """Write the executions that link operations to their launch."""
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
                offset_ps=start_ns * PS_PER_NS,
                duration_ps=(end_ns - start_ns) * PS_PER_NS,
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
        program = PROGRAM.match(trace.text(hlo.module[op]))
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
