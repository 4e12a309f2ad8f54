"""Work that runs on another device than it should."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import work_by_call_site
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.device import unused_devices
from tb_perfadvisor.signals.device.device_work import exclusive_time, time_within, work_rows
from tb_perfadvisor.signals.tpu.transfers import (
    channel_of,
    host_transfers,
    transfer_rows,
    transfer_waits,
)
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_bytes, format_share
from tb_perfadvisor.whatif import Async, Remove, Shorten, shrink


class _Trips(Struct, frozen=True):
    """Copies to the host and the copies that return as many bytes; rows of shape (n,)."""

    to_host: Int32
    to_device: Int32


class DeviceHostPingPong(Rule):
    """Data goes from the device to the host and back while the device waits."""

    id = "device-host-ping-pong"
    title = "Keep these tensors on the device"
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
        what = "array" if trace.source.framework == "none" else "tensor"
        yield Finding(
            title="Keep these arrays on the device" if what == "array" else "",
            instance=count_per_step(len(trips.to_host), what, signals),
            summary=(
                f"The device waits {per_step(lost_ns, signals)} for {what}s that go to the host and"
                f" come back: {count_per_step(len(trips.to_host), what, signals)} of"
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
        """The trips during which the device mostly idles, but for the copies of other trips."""
        events = signals.trace.events
        start, end = events.end_ns[trips.to_host], events.start_ns[trips.to_device]
        rows = np.concatenate((trips.to_host, trips.to_device))
        copying = exclusive_time(signals, np.sort(rows))
        waiting_ns = overlap_ns(join(copying, signals.host_idle), start, end)
        waits = waiting_ns > self.minimum_idle_share * (end - start)
        return _Trips(trips.to_host[waits], trips.to_device[waits])


_PAGES = "unified memory"
"""In the names of copies that the driver makes when a page is not where it is used."""


def _trips(signals: Signals, minimum_bytes: int) -> _Trips:
    """Copies to the host with the next copies to the device of the same size, in their order."""
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
    # Several may go to the host before the first returns: the last of them are those that do.
    to_host = direction == CopyDirection.DEVICE_TO_HOST
    changes = (to_host[1:] != to_host[:-1]) | (size_bytes[1:] != size_bytes[:-1])
    run = np.append(0, np.flatnonzero(changes) + 1)
    length = np.diff(np.append(run, len(rows)))
    returns = to_host[run[:-1]] & ~to_host[run[1:]] & (size_bytes[run[:-1]] == size_bytes[run[1:]])
    back, paired = run[1:][returns], np.minimum(length[:-1], length[1:])[returns]
    place = np.arange(paired.sum()) - np.repeat(np.cumsum(paired) - paired, paired)
    sent = rows[np.repeat(back - paired, paired) + place]
    returned = rows[np.repeat(back, paired) + place]
    # What one step sends to the host, the next may send back.
    step = signals.steps.owner
    is_trip = step[returned] - step[sent] <= 1
    # The host cannot send back what has not arrived.
    events, call = trace.events, trace.events.launched_by[returned]
    is_trip &= (call < 0) | (events.start_ns[call] >= events.end_ns[sent])
    return _Trips(sent[is_trip], returned[is_trip])


def _recurs(signals: Signals, to_host: Int32) -> bool:
    """Whether most steps have a trip; without steps, whether there are several."""
    steps = signals.steps
    if len(steps) == 0:
        return len(to_host) > 1
    step = steps.own(to_host)
    step = steps.owner[step]
    return 2 * len(distinct(step)) > len(steps)


class HostPlacedOperators(Rule):
    """Operators that could run on the device run on the host, and the device idles meanwhile."""

    id = "host-placed-operators"
    title = "Move operators to the device"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(0.02, "share", "Every program handles scalars and sizes on the host.")
    launch_cost_ns = 10_000
    """An eager operator costs 5 to 20 microseconds of host time wherever it runs."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, placement = signals.trace, signals.placement
        rows = placement.host_rows
        events = trace.events
        start, end = events.start_ns[rows], events.end_ns[rows]
        claims = intersect(signals.host_idle, union(start, end))
        idle_ns = total_ns(claims)
        if self.is_minor(idle_ns, signals):
            return
        idle = overlap_ns(claims, start, end)
        rows, idle = rows[idle > 0], idle[idle > 0]
        launch_ns = round(len(rows) * self.launch_cost_ns)
        by_time = placement.share_by_time
        yield Finding(
            summary=(
                f"The device idles {per_step(idle_ns, signals)} while operators run on the host;"
                f" {format_share(by_time)} of operator time is on the device."
            ),
            saving=Saving(
                max(idle_ns - 2 * launch_ns, 0),
                max(idle_ns - launch_ns, 0),
                idle_ns,
                claims,
                "measured",
                (shrink(start, end, round(self.launch_cost_ns)),),
            ),
            evidence=(
                events_by_name(
                    "Operators on the host",
                    "Operator",
                    trace,
                    rows,
                    (
                        (Column("duration_ns", "Duration", "ns"), events.duration_ns[rows]),
                        (Column("idle_ns", "Device idle", "ns"), idle),
                    ),
                ),
                costliest("Costliest operators", signals.worker, rows, idle),
            ),
            remedies=advise("placed-on-device"),
        )


class OutsideCompilation(Rule):
    """A TPU core waits in the middle of a step for operators that run on the host."""

    id = "outside-compilation"
    title = "Move host operators out of the TPU step"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(0.05, "share", "XProf also reports it from 5 % of the device's time on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        if signals.trace.source.framework == "jax":
            return
        waits = transfer_waits(signals)
        waited_ns = total_ns(waits)
        if self.is_minor(waited_ns, signals):
            return
        rows = transfer_rows(signals)
        cost_ns = time_within(signals, rows, waits)
        table = _by_transfer(signals, rows, cost_ns)
        yield Finding(
            instance=f"{table.rows[0][0]}",
            summary=(
                f"The TPU core waits {per_step(waited_ns, signals)} for operators that run on the"
                f" host ({count_per_step(len(rows), 'transfer', signals)}), mostly in"
                f" {table.rows[0][0]}."
            ),
            saving=Saving(0, waited_ns, waited_ns, waits, "measured"),
            evidence=(
                table,
                *_host_operators(signals, waits),
                costliest("Longest waits", signals.worker, rows, cost_ns),
            ),
            remedies=advise("summaries-on-host", "lookup-in-input"),
        )


def _by_transfer(signals: Signals, rows: Int32, cost_ns: Int64) -> Table:
    """Waits by operation, the costliest first."""
    trace = signals.trace
    size = len(trace.hlo.name)
    op = trace.operations(rows)
    waited, times = np.bincount(op, cost_ns, size), np.bincount(op, minlength=size)
    ranked = sorted(host_transfers(signals), key=lambda transfer: -waited[transfer.op])
    return Table(
        "Transfers to and from the host",
        (
            Column("op", "Operation"),
            Column("channel", "Channel"),
            Column("path", "Called by"),
            Column("count", "Count", "count"),
            Column("waited_ns", "Wait", "ns"),
        ),
        tuple(
            (
                transfer.name,
                channel_of(transfer),
                transfer.path,
                int(times[transfer.op]),
                int(waited[transfer.op]),
            )
            for transfer in ranked
        ),
    )


def _host_operators(signals: Signals, waits: Intervals) -> tuple[Evidence, ...]:
    """Operators that the host ran while the core waited, if they were recorded."""
    rows = signals.trace.rows(EventKind.OPERATOR)
    inside_ns = time_within(signals, rows, waits)
    rows, inside_ns = rows[inside_ns > 0], inside_ns[inside_ns > 0]
    if not len(rows):
        return ()
    column = Column("inside_ns", "While the core waited", "ns")
    return (
        events_by_name(
            "Operators on the host", "Operator", signals.trace, rows, ((column, inside_ns),)
        ),
    )


class UnusedDevices(Rule):
    """The program sees devices on which it runs nothing."""

    id = "unused-devices"
    title = "Use every device, or release it"
    needs = (Need.DEVICE_EVENTS, Need.ALL_DEVICES)
    is_preview = False

    def check(self, signals: Signals) -> Iterable[Finding]:
        used, unused = signals.device.used, unused_devices(signals.trace)
        if not unused or used == 0:
            return
        visible = used + len(unused)
        yield Finding(
            instance=f"{len(unused)} of {visible} are unused",
            summary=(
                f"{len(unused)} of {visible} devices that the program sees"
                f" {'is' if len(unused) == 1 else 'are'} unused."
            ),
            evidence=(
                Table(
                    "Devices without work",
                    (
                        Column("device", "Device", "count"),
                        Column("name", "Name"),
                        Column("memory_bytes", "Memory", "bytes"),
                    ),
                    tuple((device.index, device.name, device.memory_bytes) for device in unused),
                ),
            ),
            remedies=advise("all-devices", "visible-devices", devices=visible),
            severity="medium" if 2 * used <= visible else "low",
        )
