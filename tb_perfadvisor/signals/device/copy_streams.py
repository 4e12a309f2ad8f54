"""Copies to the device: from which host memory, on which streams, and what waits for them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, union
from tb_perfadvisor.trace.tables import Int32

_STAGED_BYTES = 64 << 10
"""Copies of up to 64 KiB return before they are done, whatever memory they come from (CUDA runtime
API, "API synchronization behavior"): smaller ones show nothing."""


class CopiesToDevice(Struct, frozen=True):
    """Copies from the host to the device; columns of shape (n,)."""

    row: Int32
    is_pinned: NDArray[np.bool_]
    """Whether they come from pinned memory; False if that is unknown."""
    is_apart: NDArray[np.bool_]
    """Whether they run on a stream without kernels, so that they can overlap kernels."""

    def select(self, mask: NDArray[np.bool_]) -> CopiesToDevice:
        """The copies that a mask selects; shape of the mask: (n,)."""
        return CopiesToDevice(self.row[mask], self.is_pinned[mask], self.is_apart[mask])


@memoized
def copies_to_device(signals: Signals) -> CopiesToDevice:
    """The copies of the used steps from the host to the device."""
    trace, copies, events = signals.trace, signals.trace.copies, signals.trace.events
    rows = work_rows(signals)
    rows = rows[events.kind[rows] == EventKind.COPY]
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    rows = rows[direction == CopyDirection.HOST_TO_DEVICE]
    pageable = trace.by_event(copies.row, copies.pageable, -1)[rows]
    computes = np.zeros(len(trace.tracks), dtype=bool)
    computes[events.track[trace.rows(EventKind.KERNEL)]] = True
    return CopiesToDevice(rows, pageable == 0, ~computes[events.track[rows]])


@memoized
def larger_copies(signals: Signals) -> CopiesToDevice:
    """Those that are large enough to tell how the program copies its batches."""
    copies, trace = copies_to_device(signals), signals.trace
    size_bytes = trace.by_event(trace.copies.row, trace.copies.size_bytes, -1)[copies.row]
    return copies.select(size_bytes > _STAGED_BYTES)


class CopyWait(Struct, frozen=True):
    """Work that waits while copies on another stream run."""

    event: str
    stream: str
    copy_streams: tuple[str, ...]
    count: int
    """Stretches of waiting."""
    waiting_ns: int


class CopyWaits(Struct, frozen=True):
    """What waits for copies from pinned memory on streams of their own."""

    unawaited: Intervals
    """When only such copies run, and the host has launched no work behind them. Work would run
    beside them, unless it waited for their event: the device would idle without them, too."""
    waits: tuple[CopyWait, ...]
    """The work that was launched, and waits; the longest first."""


@memoized
def copy_waits(signals: Signals) -> CopyWaits:
    """What waits for copies that could run beside other work."""
    trace, events, copies = signals.trace, signals.trace.events, copies_to_device(signals)
    apart = copies.row[copies.is_pinned & copies.is_apart]
    alone = intersect(
        signals.attribution.intervals[Cause.COPIES],
        union(events.start_ns[apart], events.end_ns[apart]),
    )
    others = np.setdiff1d(signals.device.rows, trace.copies.row)
    others = others[np.argsort(events.start_ns[others], kind="stable")]
    if not len(alone) or not len(others):
        return CopyWaits(EMPTY, ())
    slot = np.searchsorted(events.start_ns[others], alone[:, 0])
    following = others[np.minimum(slot, len(others) - 1)]
    launch = events.launched_by[following]
    # Nothing may follow, or its launch may be unknown: then the copies may be waited for.
    is_known = (slot < len(others)) & (launch >= 0)
    launched_ns = np.where(is_known, events.start_ns[launch], alone[:, 0])
    awaited_ns = np.clip(launched_ns, alone[:, 0], alone[:, 1])
    waiting_ns = np.where(is_known, alone[:, 1] - awaited_ns, 0)
    streams = {int(track) for track in events.track[apart]}
    labels = tuple(sorted(trace.text(int(trace.tracks.label[track])) for track in streams))
    waits = [
        CopyWait(
            trace.name(int(following[places[0]])),
            trace.text(int(trace.tracks.label[events.track[following[places[0]]]])),
            labels,
            len(places),
            int(waiting_ns[places].sum()),
        )
        for places in _by_name_and_track(events.name[following], events.track[following])
    ]
    longest = sorted(waits, key=lambda wait: -wait.waiting_ns)
    return CopyWaits(
        minus(alone, union(awaited_ns, alone[:, 1])),
        tuple(wait for wait in longest if wait.waiting_ns > 0),
    )


def _by_name_and_track(name: Int32, track: Int32) -> list[NDArray[np.int64]]:
    """The places that agree in both columns."""
    first, group = group_rows(name, track)
    order = np.argsort(group, kind="stable")
    return np.split(order, np.cumsum(np.bincount(group, minlength=len(first)))[:-1])
