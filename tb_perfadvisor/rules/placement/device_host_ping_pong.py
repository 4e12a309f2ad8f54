"""Tensors go to the host and come back to the device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, time_within, work_rows
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_bytes
from tb_perfadvisor.whatif import Async, Remove, Shorten


class _Trips(Struct, frozen=True):
    """Copies to the host and the copies that return as many bytes; rows of shape (n,)."""

    to_host: Int32
    to_device: Int32


class DeviceHostPingPong(Rule):
    """Data goes from the device to the host and back while the device waits.

    What it finds
    -------------
    A copy to the host that is followed by a copy of the same size to the device, in most steps,
    with the device idle for most of the time between them.

    Why it matters
    --------------
    Each round trip costs two transfers over a link about fifty times slower than the device's
    memory, a wait for all earlier work, and an empty queue afterwards.

    How it is measured
    ------------------
    High and expected are the two copies as far as nothing else runs at the same time, plus the
    idle time between them that the host causes. Low is the copies alone, because the host's
    computation may take as long on the device. Where the profile allows it, expected is what the
    steps save in a replay without the copies, the wait for the first copy, and the host's work in
    between.

    When to ignore
    --------------
    When the host has to see the data: text to decode, a decision, an environment that answers.
    Activations that are kept on the host to save memory do not make the device wait and are not
    reported.

    How to verify
    -------------
    The copies are gone, and the device keeps working where they were.

    References:
    ----------
    NVIDIA, "CUDA C++ Best Practices Guide", section on data transfer between host and device;
    PyTorch documentation, "Performance Tuning Guide: Avoid unnecessary CPU-GPU synchronization".
    """

    id = "device-host-ping-pong"
    title = "Keep these tensors on the device"
    category = "placement"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.COPIES)
    is_preview = False

    minimum_share = Limit(0.02, "share", "One or two trips of a few kilobytes cost almost nothing.")
    minimum_bytes = Limit(
        4096, "bytes", "Smaller copies are scalars and flags; device-synchronization reports those."
    )
    minimum_idle_share = Limit(
        0.5, "share", "A device that works during most of the trip does not wait for it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for data that it sent to the host."""
        trace, events = signals.trace, signals.trace.events
        trips = self._trips_with_idle_device(signals, _trips(signals, round(self.minimum_bytes)))
        if not _recurs(signals, trips.to_host):
            return
        rows = np.sort(np.concatenate((trips.to_host, trips.to_device)))
        copying = exclusive_time(signals, rows)
        spans = union(events.start_ns[trips.to_host], events.end_ns[trips.to_device])
        claims = join(copying, intersect(signals.host_idle, spans))
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        size_bytes = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[trips.to_host]
        launches = events.launched_by[trips.to_host]
        calls = events.launched_by[trips.to_device]
        returns = np.where(calls >= 0, events.end_ns[calls], events.start_ns[trips.to_device])
        yield Finding(
            instance=count_per_step(len(trips.to_host), "tensor", signals),
            summary=(
                f"The device waits {per_step(lost_ns, signals)} for tensors that go to the host and"
                f" come back: {count_per_step(len(trips.to_host), 'tensor', signals)} of"
                f" {format_bytes(int(size_bytes.mean()))} on average."
            ),
            saving=Saving(
                total_ns(copying),
                lost_ns,
                lost_ns,
                claims,
                "measured",
                (
                    Remove(union(events.end_ns[trips.to_host], returns)),
                    Async(launches[launches >= 0]),
                    Shorten(rows, np.zeros(len(rows), dtype=np.int64)),
                ),
            ),
            evidence=(
                work_by_call_site(
                    "Copies by call site",
                    signals,
                    rows,
                    time_within(signals, rows, copying),
                ),
                costliest(
                    "Longest trips",
                    signals.worker,
                    trips.to_host,
                    events.end_ns[trips.to_device] - events.start_ns[trips.to_host],
                ),
            ),
            remedies=advise("device-counterparts"),
        )

    def _trips_with_idle_device(self, signals: Signals, trips: _Trips) -> _Trips:
        """The trips during which the device mostly idles."""
        events = signals.trace.events
        start, end = events.end_ns[trips.to_host], events.start_ns[trips.to_device]
        idle_ns = overlap_ns(signals.host_idle, start, end)
        waits = idle_ns > self.minimum_idle_share * (end - start)
        return _Trips(trips.to_host[waits], trips.to_device[waits])


_PAGES = "unified memory"
"""In the names of copies that the driver makes when a page is not where it is used."""


def _trips(signals: Signals, minimum_bytes: int) -> _Trips:
    """Each copy to the host with the next copy to the device, if that has the same size."""
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.COPY]
    # Pages of unified memory move by themselves, many of one size: they are no tensors.
    names, name = unique_inverse(trace.events.name[rows])
    rows = rows[~np.array([_PAGES in text for text in trace.texts(names)], dtype=bool)[name]]
    copies = trace.copies
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    over_link = is_in(direction, (CopyDirection.DEVICE_TO_HOST, CopyDirection.HOST_TO_DEVICE)) & (
        size_bytes >= minimum_bytes
    )
    rows, direction, size_bytes = rows[over_link], direction[over_link], size_bytes[over_link]
    # Group by size, in order of start: tensors of another size may be copied in between.
    order = np.argsort(size_bytes, kind="stable")
    rows, direction, size_bytes = rows[order], direction[order], size_bytes[order]
    step = signals.steps.owner[rows]
    returns = (direction[:-1] == CopyDirection.DEVICE_TO_HOST) & (
        direction[1:] == CopyDirection.HOST_TO_DEVICE
    )
    returns &= (size_bytes[:-1] == size_bytes[1:]) & (step[:-1] == step[1:])
    first = np.flatnonzero(returns)
    return _Trips(rows[first], rows[first + 1])


def _recurs(signals: Signals, to_host: Int32) -> bool:
    """Whether most steps have a trip; without steps, whether there are several."""
    steps = signals.steps
    if len(steps) == 0:
        return len(to_host) > 1
    step = steps.own(to_host)
    step = steps.owner[step]
    return 2 * len(distinct(step)) > len(steps)
