"""Copies of the device: streams, pageable memory, tensors, weights.

A batch is copied once, and all layers compute with it. Weights are used by one layer: a program
that keeps them on the host copies those of the next layer, runs its few kernels, and copies again.
So large copies to the device alternate with few kernels. What goes both ways, such as activations
that are moved to the host and back, is no weight.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.conversions import layout_conversions
from tb_perfadvisor.signals.device.device_work import (
    kernel_families,
    launchers,
    operator_around,
    operators_of,
    work_rows,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    row_mask,
    unique_inverse,
    without,
)
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, minus, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

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
        events.spans(apart),
    )
    others = without(signals.device.rows, trace.copies.row)
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


class TensorCopies(Struct, frozen=True):
    """Copies of the used window in order of start; columns of shape (n,)."""

    rows: Int32
    operators: Int32
    """The outermost copying operator around each copy: `contiguous` for `copy_` in `clone` in
    `contiguous`. -1 for XLA."""


# Operators that copy, always or if they cannot return a view.
_COPYING = regex(
    r"aten::(?:copy_|clone|contiguous|reshape|_reshape_copy|flatten|repeat|repeat_interleave"
    r"|tile|expand_copy|view_copy|permute_copy|transpose_copy|t_copy|slice_copy|select_copy"
    r"|unfold_copy)$"
)


@memoized
def tensor_copies(signals: Signals) -> TensorCopies:
    """Copies that leave the numbers of a tensor unchanged.

    In PyTorch, copies by `clone`, `contiguous`, `reshape`, `repeat` and similar operators. Excludes
    casts, writes into an existing buffer (`copy_` alone) and layout conversions. With XLA, kernels
    and copies that only copy.
    """
    trace, rows = signals.trace, work_rows(signals)
    is_copy = kernel_families(signals) == KernelFamily.COPY
    is_copy &= ~is_in(rows, layout_conversions(signals))
    direction = trace.by_event(trace.copies.row, trace.copies.direction, CopyDirection.UNKNOWN)
    is_over_link = trace.events.kind[rows] == EventKind.COPY
    is_over_link &= direction[rows] != CopyDirection.DEVICE_TO_DEVICE
    is_copy &= ~is_over_link
    rows, operators = rows[is_copy], launchers(signals)[is_copy]
    if signals.trace.source.framework != "pytorch":
        return TensorCopies(rows, np.full(len(rows), -1, dtype=np.int32))
    launching, inverse = unique_inverse(operators)
    operators = _outermost_copying(signals, launching)[inverse]
    is_plain_copy = _are_named(signals, operators, re.compile(r"aten::copy_$"))
    is_new_tensor = _are_named(signals, operators, _COPYING) & ~is_plain_copy
    return TensorCopies(rows[is_new_tensor], operators[is_new_tensor].astype(np.int32))


def _outermost_copying(signals: Signals, operators: Int32) -> Int32:
    """The outermost operator of an unbroken chain of copying operators around each one."""
    while True:
        above = operator_around(signals, operators)
        climbs = _are_named(signals, above, _COPYING)
        climbs &= _are_named(signals, operators, _COPYING)
        if not climbs.any():
            return operators
        operators = np.where(climbs, above, operators)


def _are_named(
    signals: Signals, operators: Int32, pattern: re.Pattern[str]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names, inverse = unique_inverse(
        np.where(operators >= 0, signals.trace.events.name[operators], -1)
    )
    matches = [pattern.match(signals.trace.text(name)) is not None for name in names.tolist()]
    return np.array(matches, dtype=bool)[inverse]
