"""The plane of a host: its threads, tf.data iterators and allocators."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.interpret.host_planes import kind_of_name
from tb_perfadvisor.ingest.xspace.interpret.run_links import TPU_LAUNCH
from tb_perfadvisor.testing.symbols import host_alphabet
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tests.support.writers.xplane.planes import PS_PER_NS, Facts, Plane, is_tpu

_SEPARATORS = re.compile(r"[:\s]+")


def host_plane(facts: Facts, message: Any) -> None:
    """Fill the plane of the host."""
    trace, plane = facts.trace, Plane(message)
    message.name = "/host:CPU"
    tracks = trace.tracks
    on_tpu = any(is_tpu(trace, None, index) for index in set(tracks.device.tolist()))
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


def _iterator(trace: Trace, plane: Plane, event: Any, place: int) -> None:
    """The stats of an iterator's call, or of a function's run."""
    table = trace.iterators
    if table.run[place]:
        plane.stat(event, "id", int(table.run[place]))
        return
    for stat, numbers in (("id", table.iterator), ("parent_id", table.parent)):
        # All 64 bits: unsigned, as in TensorFlow.
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


def _add_memory(trace: Trace, plane: Plane, line: Any, rows: NDArray[np.int64]) -> None:
    table = trace.memory
    capacity = {device.index: device.memory_bytes for device in trace.devices}
    for row in rows.tolist():
        is_free = table.bytes[row] < 0
        name = "MemoryDeallocation" if is_free else "MemoryAllocation"
        event = line.events.add(
            metadata_id=plane.metadata(name), offset_ps=int(table.at_ns[row]) * PS_PER_NS
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
