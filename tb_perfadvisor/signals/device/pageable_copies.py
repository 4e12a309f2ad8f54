"""Copies to the device from pageable host memory, and the link that they use."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, row_mask
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

_LARGE_BYTES = 1 << 20
"""Below a mebibyte the latency of a copy hides the bandwidth of the link."""


class PageableCopies(Struct, frozen=True):
    """Copies from pageable memory in the used steps."""

    rows: Int32
    """Shape (n,)."""
    size_bytes: Int64
    """Shape (n,)."""
    calls: Int32
    """The calls that launch them; shape (calls,)."""
    waits: Int32
    """Synchronizations inside the operators that copy: from pinned memory they need none."""


class HostLink(Struct, frozen=True):
    """What copies from pinned memory reach over the link to the host."""

    name: str
    """Such as `PCIe 5.0 x16`; empty if the profile itself shows the bandwidth."""
    bandwidth_bytes_per_s: float

    def copy_ns(self, size_bytes: Int64) -> Int64:
        """How long copies from pinned memory take; shape (n,)."""
        return (size_bytes / self.bandwidth_bytes_per_s * NS_PER_S).astype(np.int64)


@memoized
def pageable_copies(signals: Signals) -> PageableCopies:
    """Copies to the device from pageable memory whose size is known."""
    trace, copies, events = signals.trace, signals.trace.copies, signals.trace.events
    rows = work_rows(signals)
    rows = rows[events.kind[rows] == EventKind.COPY]
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    pageable = trace.by_event(copies.row, copies.pageable, -1)[rows]
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    is_chosen = (direction == CopyDirection.HOST_TO_DEVICE) & (pageable == 1) & (size_bytes > 0)
    rows, size_bytes = rows[is_chosen], size_bytes[is_chosen]
    calls = events.launched_by[rows]
    operators = operators_of(signals, rows)
    waits = trace.rows(EventKind.SYNCHRONIZE)
    is_copying = row_mask(len(events), operators[operators >= 0])
    return PageableCopies(
        rows=rows,
        size_bytes=size_bytes,
        calls=distinct(calls[calls >= 0]).astype(np.int32),
        waits=waits[has_ancestor(events.parent, waits, is_copying)],
    )


@memoized
def host_link(signals: Signals) -> HostLink | None:
    """The link to the host: the fastest large pinned copy, else the device's usual link."""
    trace, copies, facts = signals.trace, signals.trace.copies, signals.device_facts
    is_pinned = (copies.direction == CopyDirection.HOST_TO_DEVICE) & (copies.pageable == 0)
    is_pinned &= copies.size_bytes >= _LARGE_BYTES
    if is_pinned.any():
        duration_ns = np.maximum(trace.events.duration_ns[copies.row[is_pinned]], 1)
        return HostLink("", float((copies.size_bytes[is_pinned] / duration_ns).max() * NS_PER_S))
    if facts is None or facts.host_link_bandwidth_bytes_per_s is None:
        return None
    return HostLink(facts.host_link, facts.host_link_bandwidth_bytes_per_s)


def time_when_pinned_ns(signals: Signals, exposed: Intervals) -> int:
    """Exposed time that copies from pageable memory would still take from pinned memory."""
    copies, link, events = pageable_copies(signals), host_link(signals), signals.trace.events
    if link is None:
        return 0
    now_ns = np.maximum(events.duration_ns[copies.rows], 1)
    share = np.minimum(link.copy_ns(copies.size_bytes) / now_ns, 1.0)
    start_ns, end_ns = events.start_ns[copies.rows], events.end_ns[copies.rows]
    return int((overlap_ns(exposed, start_ns, end_ns) * share).sum())
