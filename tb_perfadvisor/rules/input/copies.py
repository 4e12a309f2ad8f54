"""How batches get to the device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import work_by_call_site
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import faster_device_work
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.device.copies import (
    HostLink,
    copies_to_device,
    copy_waits,
    host_link,
    pageable_copies,
    time_when_pinned_ns,
)
from tb_perfadvisor.signals.device.copies import (
    PageableCopies as Pageable,
)
from tb_perfadvisor.signals.device.device_work import (
    exclusive_time,
    operator_around,
    operators_of,
    time_within,
    work_rows,
)
from tb_perfadvisor.signals.launch.delays import argument_transfers
from tb_perfadvisor.signals.tpu.transfers import (
    offload_rows,
    offload_waits,
    transfer_rows,
    transfer_waits,
)
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, without
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_once_ns,
    shared_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S, format_bytes, format_rate
from tb_perfadvisor.whatif import Async, Fix, Overlap, Remove, Shorten, shrink

_LABELS = {
    CopyDirection.UNKNOWN: "direction unknown",
    CopyDirection.HOST_TO_DEVICE: "host to device",
    CopyDirection.DEVICE_TO_HOST: "device to host",
    CopyDirection.DEVICE_TO_DEVICE: "within the device",
    CopyDirection.PEER_TO_PEER: "device to device",
    CopyDirection.HOST_TO_HOST: "host to host",
}
_PINNING = {1: "pageable", 0: "pinned", -1: ""}


def copies_by_direction(signals: Signals, rows: Int32, exposed: Int64) -> Table:
    """Exposed time by direction and kind of host memory; no bytes if a size is unknown."""
    trace, copies = signals.trace, signals.trace.copies
    pageable = trace.by_event(copies.row, copies.pageable, -1)
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)
    is_memset = trace.events.kind[rows] == EventKind.MEMSET
    kinds = (
        is_memset.astype(np.int8),
        trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows],
        pageable[rows],
    )
    groups, inverse = group_rows(*kinds)
    table: list[tuple[str, str, int | None, int | None, int]] = []
    for group, row in enumerate(groups.tolist()):
        is_filled, direction, memory = (int(kind[row]) for kind in kinds)
        members = inverse == group
        sizes = size_bytes[rows[members]]
        table.append(
            (
                "memset" if is_filled else _LABELS[CopyDirection(direction)],
                _PINNING[memory],
                event_count(trace, int(members.sum())),
                int(sizes.sum()) if (sizes >= 0).all() else None,
                int(exposed[members].sum()),
            )
        )
    ranked = sorted(table, key=lambda row: -row[4])
    return Table(
        "Copies that overlap no other work",
        (
            Column("direction", "Direction"),
            Column("memory", "Host memory"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )


def copy_wait_table(signals: Signals) -> tuple[Table, ...]:
    """Launched work that waits for copies on other streams; nothing if there is none."""
    waits = copy_waits(signals).waits
    columns = (
        Column("name", "Waiting work"),
        Column("stream", "Stream"),
        Column("copy_streams", "Copies on"),
        Column("count", "Count", "count"),
        Column("waiting_ns", "Waits", "ns"),
    )
    rows = tuple(
        (wait.event, wait.stream, ", ".join(wait.copy_streams), wait.count, wait.waiting_ns)
        for wait in waits
    )
    return (Table("Launched work that waits for copies", columns, rows),) if rows else ()


LAUNCH_NS = 10_000
"""What the host takes to launch a copy from pinned memory: an eager operator and its call."""
SLOWER_LINK = 2
"""A PCIe generation has twice the bandwidth of the one before (PCI-SIG)."""


def saving_by_pinning(signals: Signals, copies: Pageable, link: HostLink) -> Saving:
    """The saving of pinned memory, copied from without waiting.

    Expected is the link's bandwidth, and low that of the generation before it, unless copies of
    this profile reached it. High is all time in which nothing else runs on the device: a copy that
    the host does not wait for may overlap other work.
    """
    then_ns = link.copy_ns(copies.size_bytes)
    saving = faster_device_work(
        signals,
        copies.rows,
        then_ns,
        basis="modeled",
        most_then_ns=then_ns * (SLOWER_LINK if link.name else 1),
    )
    return Saving(
        saving.low_ns,
        saving.expected_ns,
        saving.high_ns,
        saving.claims,
        saving.basis,
        pinning(signals, copies, link),
    )


def pinning(signals: Signals, copies: Pageable, link: HostLink) -> tuple[Fix, ...]:
    """What pinned memory changes: copies get faster, and the host no longer waits for them."""
    events = signals.trace.events
    now_ns = events.duration_ns[copies.rows]
    shorter = Shorten(copies.rows, np.minimum(link.copy_ns(copies.size_bytes), now_ns))
    released = shrink(events.start_ns[copies.calls], events.end_ns[copies.calls], LAUNCH_NS)
    return (
        shorter,
        released,
        Async(distinct(np.concatenate((copies.waits, copies.calls))).astype(np.int32)),
    )


_FROM_HOST = ("copy-ahead", "prefetch-to-device")
_WITHIN_DEVICE = ("copies-within-device", "donated-arguments", "xla-compiled-step")
_TO_HOST = (
    *("results-to-pinned-memory", "overlapped-schedule"),
    *("tensors-from-step", "read-arrays-rarely"),
)
_BETWEEN_DEVICES = ("process-per-device", *_FROM_HOST)


class ExposedCopies(Rule):
    """The device copies or fills memory while it computes nothing."""

    id = "exposed-copies"
    title = "Hide copies behind compute, or do without them"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.COPIES)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "The first batch and the last result of a step have nothing to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        # Other rules report data that a program keeps on the host or computes there.
        reported_elsewhere = join(
            offload_waits(signals),
            transfer_waits(signals),
            _time_of(signals.trace, _of_core(signals)),
            copy_waits(signals).unawaited,
        )
        all_ns = signals.attribution.total_ns(Cause.COPIES)
        claims = minus(signals.attribution.intervals[Cause.COPIES], reported_elsewhere)
        exposed_ns = total_ns(claims)
        if self.is_minor(exposed_ns, signals):
            return
        trace, rows = signals.trace, signals.device.rows
        events = trace.events
        rows = rows[is_in(events.kind[rows], (EventKind.COPY, EventKind.MEMSET))]
        rows = without(rows, np.concatenate((offload_rows(signals), transfer_rows(signals))))
        rows = without(rows, _of_core(signals))
        exposed = overlap_once_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, exposed = rows[exposed > 0], exposed[exposed > 0]
        within = rows[_directions(trace, rows) == CopyDirection.DEVICE_TO_DEVICE]
        # Some copies within the device are needed, and overlapping compute slows both.
        kept_ns = shared_ns(claims, _time_of(trace, within)) // 2
        # The host waits for copies from pageable memory, so they cannot be hidden: pin them.
        pinned = _pinned(signals)
        kept_ns += time_when_pinned_ns(signals, claims) if pinned else 0
        hideable = min(exposed_ns - kept_ns, signals.attribution.window_ns - exposed_ns)
        movable = _movable(trace, rows)
        if pinned:
            movable = without(movable, pageable_copies(signals).rows)
        shorter = Shorten(within, events.duration_ns[within] // 2)
        fix: tuple[Fix, ...] = (Overlap(movable), shorter, *pinned)
        table = copies_by_direction(signals, rows, exposed)
        yield Finding(
            instance=f"exposed copies take {share_of_each(all_ns, signals)}",
            summary=(
                f"{'Other copies' if exposed_ns < all_ns else 'Copies'} take"
                f" {per_step(exposed_ns, signals)} during which the device computes nothing"
                f" ({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {table.rows[0][0]}."
            ),
            saving=Saving(
                0,
                hideable,
                exposed_ns,
                claims,
                "measured",
                fix,
                # Most of them cannot hide: whether the program can do without them is unknown.
                is_unknown=not pinned and 2 * exposed_ns > signals.attribution.window_ns,
            ),
            evidence=(
                table,
                *copy_wait_table(signals),
                costliest("Most exposed copies", signals.worker, rows, exposed),
            ),
            remedies=advise(*_changes(signals, rows, exposed)),
        )


def _changes(signals: Signals, rows: Int32, exposed: Int64) -> tuple[str, ...]:
    """What helps against copies in the direction that takes most of the exposed time."""
    is_filled = signals.trace.events.kind[rows] == EventKind.MEMSET
    within = CopyDirection.DEVICE_TO_DEVICE
    directions = np.where(is_filled, within, _directions(signals.trace, rows))
    by_direction = np.bincount(directions, weights=exposed)
    match CopyDirection(int(np.argmax(by_direction))):
        case CopyDirection.DEVICE_TO_DEVICE:
            return _WITHIN_DEVICE
        case CopyDirection.DEVICE_TO_HOST:
            return _TO_HOST
        case CopyDirection.PEER_TO_PEER:
            return _BETWEEN_DEVICES
        case CopyDirection.HOST_TO_DEVICE:
            copies = copies_to_device(signals)
            exposed_ns = time_within(signals, copies.row, signals.attribution.of(Cause.COPIES))
            is_pinned = 2 * exposed_ns[copies.is_pinned].sum() > exposed_ns.sum()
            return _FROM_HOST if is_pinned else ("pinned-memory", *_FROM_HOST)
        case _:
            return ("pinned-memory", *_FROM_HOST)


def _of_core(signals: Signals) -> Int32:
    """Copies within the memory of a TPU, which redundant-copies reports."""
    rows = signals.device.rows
    if not has_tiled_layouts(signals):
        return rows[:0]
    is_within = _directions(signals.trace, rows) == CopyDirection.DEVICE_TO_DEVICE
    within: Int32 = rows[is_within]
    return within


def _time_of(trace: Trace, rows: Int32) -> Intervals:
    return trace.events.spans(rows)


def _directions(trace: Trace, rows: Int32) -> Int32:
    copies = trace.copies
    direction: Int32 = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    return direction


def _movable(trace: Trace, rows: Int32) -> Int32:
    """The copies that may run earlier or later, which those to the host may not."""
    stays = (CopyDirection.DEVICE_TO_HOST, CopyDirection.DEVICE_TO_DEVICE)
    movable: Int32 = rows[~is_in(_directions(trace, rows), stays)]
    return movable


def _pinned(signals: Signals) -> tuple[Fix, ...]:
    """What pinned memory changes; nothing without pageable copies or if the link is unknown."""
    copies, link = pageable_copies(signals), host_link(signals)
    return pinning(signals, copies, link) if link is not None and len(copies.rows) else ()


class PageableCopies(Rule):
    """Batches are copied to the device from pageable memory, through a driver's buffer."""

    id = "pageable-copies"
    title = "Copy batches from pinned memory"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.HOST_MEMORY)
    refines = "exposed-copies"
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Pinning memory is not worth it for less than 1 % of the step."
    )
    pinned_bandwidth = 12e9
    """Where the link is unknown: pinned memory reaches 12 to 13 GB/s over PCIe 3.0 with 16 lanes,
    the slowest link in use with data center devices."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        copies = pageable_copies(signals)
        rows = copies.rows
        if not len(rows):
            return
        link = host_link(signals) or HostLink("unknown", self.pinned_bandwidth)
        saving = saving_by_pinning(signals, copies, link)
        if self.is_minor(saving.expected_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        moved_ns = max(int(signals.trace.events.duration_ns[rows].sum()), 1)
        rate = format_rate(int(copies.size_bytes.sum()) / moved_ns * NS_PER_S, "B/s")
        pinned = format_rate(link.bandwidth_bytes_per_s, "B/s")
        is_plain = signals.trace.source.framework == "none"
        yield Finding(
            title="Copy data from pinned memory" if is_plain else "",
            instance=f"{rate} now, {pinned} if pinned",
            summary=(
                f"Copies from pageable memory take {per_step(int(cost_ns.sum()), signals)}:"
                f" {count_per_step(len(rows), 'copy', signals, plural='copies')} at only {rate},"
                f" where pinned memory reaches {pinned}."
            ),
            saving=saving,
            evidence=(
                work_by_call_site(
                    "Copies from pageable memory by call site", signals, rows, cost_ns
                ),
                costliest("Longest copies", signals.worker, rows, cost_ns),
            ),
            remedies=advise("pinned-memory", "prefetch-to-device"),
        )


_COPYING_OPERATORS = regex(r"aten::(?:copy_|_to_copy|to|lift_fresh|detach_)$")


class TinyCopies(Rule):
    """Small tensors are copied to the device one by one."""

    id = "tiny-copies"
    title = "Copy small tensors to the device together"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS)
    refines = "exposed-copies"

    tiny_bytes = Limit(
        65_536, "bytes", "A link of 12 GB/s moves 60 kB in the latency of a copy, 5 microseconds."
    )
    minimum_count = Limit(
        6, "count", "A batch of several tensors takes up to five copies per step."
    )
    minimum_share = Limit(
        0.01, "share", "Packing tensors is not worth the code for less than 1 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace = signals.trace
        rows = self._surplus(signals)
        steps = max(len(signals.steps), 1)
        if len(rows) < self.minimum_count * steps:
            return
        calls = _calls(signals, rows)
        on_device = exclusive_time(signals, rows)
        claims = join(on_device, intersect(signals.host_idle, calls))
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        size_bytes = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[rows]
        cost_ns = time_within(signals, rows, on_device)
        removed = Shorten(rows, np.zeros(len(rows), dtype=np.int64))
        yield Finding(
            title="" if trace.source.framework != "none" else "Copy small arrays together",
            instance=count_per_step(len(rows), "copy", signals, plural="copies"),
            summary=(
                f"Small copies cost {per_step(lost_ns, signals)}:"
                f" {count_per_step(len(rows), 'copy', signals, plural='copies')} of"
                f" {format_bytes(int(size_bytes.mean()))} on average could be part of others."
            ),
            saving=Saving(0, lost_ns, lost_ns, claims, "measured", (Remove(calls), removed)),
            evidence=(
                work_by_call_site("Small copies by call site", signals, rows, cost_ns),
                costliest("Longest small copies", signals.worker, rows, cost_ns),
            ),
            remedies=advise("packed-copies", "constants-on-device"),
        )

    def _surplus(self, signals: Signals) -> Int32:
        """Small copies to the device launched right after another one."""
        trace, rows = signals.trace, work_rows(signals)
        rows = rows[np.argsort(trace.events.launched_by[rows], kind="stable")]
        copies = trace.copies
        direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
        size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
        is_tiny = (direction == CopyDirection.HOST_TO_DEVICE) & (size_bytes >= 0)
        is_tiny &= size_bytes <= self.tiny_bytes
        is_tiny &= trace.events.launched_by[rows] >= 0
        step = signals.steps.owner[rows]
        follows = is_tiny.copy()
        follows[:1] = False
        follows[1:] &= is_tiny[:-1] & (step[1:] == step[:-1])
        surplus: Int32 = np.sort(rows[follows])
        return surplus


def _calls(signals: Signals, rows: Int32) -> Intervals:
    """When the host launches the copies: the outermost operators that only copy."""
    trace, events = signals.trace, signals.trace.events
    names = distinct(events.name[events.kind == EventKind.OPERATOR]).tolist()
    copying = [name for name in names if _COPYING_OPERATORS.match(trace.strings[name])]
    operators = operators_of(signals, rows)
    is_copying = (operators >= 0) & is_in(events.name[operators], copying)
    call = np.where(is_copying, operators, events.launched_by[rows])
    while True:
        above = operator_around(signals, np.where(is_copying, call, -1))
        climbs = (above >= 0) & is_in(events.name[above], copying)
        if not climbs.any():
            return union(events.start_ns[call], events.end_ns[call])
        call = np.where(climbs, above, call)


class HostArguments(Rule):
    """Calls of a compiled program wait until its arguments are copied from the host."""

    id = "host-arguments"
    title = "Put arguments on the device before the call"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.DISPATCH)

    minimum_share = Limit(0.05, "share", "Small arguments are copied in microseconds.")
    long_share = 0.25
    """A step reads a batch several times, a copy once. What takes longer is mostly no batch."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        transfers = argument_transfers(signals)
        total = total_ns(transfers.exposed)
        if self.is_minor(total, signals):
            return
        # Most programs pass new batches. Their copy can run beside other work of a device, but on
        # the CPU it needs the same cores.
        on_cpu = signals.device.is_host_only
        is_batch = total < self.long_share * signals.attribution.window_ns
        expected = total // 4 if on_cpu and is_batch else total // 2
        rows, events = transfers.rows, signals.trace.events
        # At best, all that runs beside copies on the CPU waits for them, or for the memory.
        copying = total_ns(events.spans(rows)) if on_cpu else total
        subject = "No operator runs" if on_cpu else "The device idles"
        times = costliest("Longest copies", signals.worker, rows, events.duration_ns[rows])
        yield Finding(
            instance=count_per_step(len(rows), "copy", signals, plural="copies"),
            summary=(
                f"{subject} for {per_step(total, signals)} while calls of compiled functions copy"
                " arguments from the host."
            ),
            saving=Saving(
                0 if on_cpu else expected // 2,
                expected,
                copying,
                transfers.exposed,
                "heuristic",
                outside_claims_ns=copying - total,
            ),
            evidence=(times,),
            remedies=advise("arguments-on-device", "prefetch-to-device"),
        )
