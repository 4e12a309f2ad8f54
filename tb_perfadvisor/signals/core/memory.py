"""Device memory over the trace, and its peaks."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.tables import Int64


class Memory(Struct, frozen=True):
    """Allocated memory of one device; fields are None if the file has no totals."""

    at_ns: Int64
    """Shape (changes,)."""
    allocated_bytes: Int64
    """Allocated after each change; -1 if unknown."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None


def sample_maxima(values: Int64, count: int) -> Int64:
    """Indexes of at most `count` values for a chart: the first, the last and local maxima."""
    total = len(values)
    if total <= count:
        return np.arange(total)
    first = np.linspace(1, total - 1, count - 1).astype(np.int64)
    highest = [
        begin + int(np.argmax(values[begin:end]))
        for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
    ]
    return np.array([0, *highest, total - 1], dtype=np.int64)


def find_memory(trace: Trace, device: int | None, capacity_bytes: int | None) -> Memory | None:
    """The memory of a device; None if the trace has no memory events of it."""
    if device is None:
        return None
    if trace.totals is not None:
        peak = trace.totals.peak_allocated_bytes
        none = np.empty(0, dtype=np.int64)
        return None if peak is None else Memory(none, none, peak, None, capacity_bytes)
    table = trace.memory
    on_device = table.device == device
    if not on_device.any():
        return None
    allocated, reserved = table.allocated_bytes[on_device], table.reserved_bytes[on_device]
    has_totals = bool((allocated >= 0).any())
    has_reserved = bool((reserved > 0).any())
    return Memory(
        at_ns=table.at_ns[on_device],
        allocated_bytes=allocated,
        peak_allocated_bytes=int(allocated.max()) if has_totals else None,
        peak_reserved_bytes=int(reserved.max()) if has_reserved else None,
        capacity_bytes=capacity_bytes,
    )
