"""Copies that no other work overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings.pinned_memory import pinning
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.device.pageable_copies import (
    host_link,
    pageable_copies,
    time_when_pinned_ns,
)
from tb_perfadvisor.signals.tpu.host_offload import offload_rows, offload_waits
from tb_perfadvisor.signals.tpu.host_transfers import transfer_rows, transfer_waits
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import group_rows, is_in
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif import Fix, Overlap, Shorten

_LABELS = {
    CopyDirection.UNKNOWN: "direction unknown",
    CopyDirection.HOST_TO_DEVICE: "host to device",
    CopyDirection.DEVICE_TO_HOST: "device to host",
    CopyDirection.DEVICE_TO_DEVICE: "within the device",
    CopyDirection.PEER_TO_PEER: "device to device",
    CopyDirection.HOST_TO_HOST: "host to host",
}
_PINNING = {1: "pageable", 0: "pinned", -1: ""}


_FROM_HOST = ("pinned-memory", "copy-ahead", "prefetch-to-device")
_WITHIN_DEVICE = ("copies-within-device", "donated-arguments", "xla-compiled-step")


class ExposedCopies(Rule):
    """The device copies or fills memory while it computes nothing.

    What it finds
    -------------
    Time of copies and memsets that overlap neither compute nor communication, by direction and
    kind of host memory.

    Why it matters
    --------------
    Devices have separate engines for copying and computing. A copy that the step waits for costs
    its full duration although most of it could be hidden.

    How it is measured
    ------------------
    The time attributed to *copies* alone. On a TPU, copies of data that the program keeps in host
    memory or exchanges with code on the host are left out, and copies within the device;
    host-offload-copies, host-callback, outside-compilation and redundant-copies report those. High
    is all of it. Expected is what the steps save in a replay in which copies to the device overlap
    other work and copies within the device take half as long, because some are needed and compute
    uses the same memory. Copies from pageable memory cannot overlap, because the host waits for
    them; they take as long as from pinned memory. Copies to the host stay where they are. Without a
    replay, expected is what the rest of the step could hide. Low is 0: the data may not be
    available any earlier.

    When to ignore
    --------------
    When the copy moves a result of this step that the next step needs at once. Copies within a
    device are harder to hide than those over a link, because compute uses the same memory.

    How to verify
    -------------
    In the trace viewer the copies run at the same time as kernels: their duration stays, but no
    exposed time is left.

    References:
    ----------
    NVIDIA, "CUDA C++ Best Practices Guide: Asynchronous and overlapping transfers with
    computation"; PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory".
    """

    id = "exposed-copies"
    title = "Hide copies behind compute, or do without them"
    category = "input"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.COPIES)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "The first batch and the last result of a step have nothing to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a large part of the step only copies."""
        # Other rules report data that a program keeps on the host or computes there.
        reported_elsewhere = join(
            offload_waits(signals),
            transfer_waits(signals),
            _time_of(signals.trace, _of_core(signals)),
        )
        claims = minus(signals.attribution.intervals[Cause.COPIES], reported_elsewhere)
        exposed_ns = total_ns(claims)
        if self.is_minor(exposed_ns, signals):
            return
        trace, rows = signals.trace, signals.device.rows
        events = trace.events
        rows = rows[is_in(events.kind[rows], (EventKind.COPY, EventKind.MEMSET))]
        rows = np.setdiff1d(rows, np.union1d(offload_rows(signals), transfer_rows(signals)))
        rows = np.setdiff1d(rows, _of_core(signals))
        exposed = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, exposed = rows[exposed > 0], exposed[exposed > 0]
        within = rows[_directions(trace, rows) == CopyDirection.DEVICE_TO_DEVICE]
        # Some copies within the device are needed, and overlapping compute slows both.
        kept_ns = total_ns(intersect(claims, _time_of(trace, within))) // 2
        # The host waits for copies from pageable memory, so they cannot be hidden: pin them.
        pinned = _pinned(signals)
        kept_ns += time_when_pinned_ns(signals, claims) if pinned else 0
        hideable = min(exposed_ns - kept_ns, signals.attribution.window_ns - exposed_ns)
        movable = _movable(trace, rows)
        if pinned:
            movable = np.setdiff1d(movable, pageable_copies(signals).rows)
        shorter = Shorten(within, events.duration_ns[within] // 2)
        table = _by_direction(signals, rows, exposed)
        # Pinning host memory does not help copies within the device.
        is_within = table.rows[0][0] == _LABELS[CopyDirection.DEVICE_TO_DEVICE]
        yield Finding(
            instance=f"{share_of_each(exposed_ns, signals)} waits for them",
            summary=(
                f"Copies take {per_step(exposed_ns, signals)} during which the device computes"
                f" nothing ({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {table.rows[0][0]}."
            ),
            saving=Saving(
                0,
                hideable,
                exposed_ns,
                claims,
                "measured",
                (Overlap(movable), shorter, *pinned),
            ),
            evidence=(
                table,
                costliest("Most exposed copies", signals.worker, rows, exposed),
            ),
            remedies=advise(*(_WITHIN_DEVICE if is_within else _FROM_HOST)),
        )


def _of_core(signals: Signals) -> Int32:
    """Copies within the memory of a TPU, which redundant-copies reports."""
    rows = signals.device.rows
    if not has_tiled_layouts(signals):
        return rows[:0]
    is_within = _directions(signals.trace, rows) == CopyDirection.DEVICE_TO_DEVICE
    within: Int32 = rows[is_within]
    return within


def _time_of(trace: Trace, rows: Int32) -> Intervals:
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])


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


def _by_direction(signals: Signals, rows: Int32, exposed: Int64) -> Table:
    """Exposed time by direction and kind of host memory; no bytes if a size is unknown."""
    trace, copies = signals.trace, signals.trace.copies
    pageable = trace.by_event(copies.row, copies.pageable, -1)
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)
    is_memset = trace.events.kind[rows] == EventKind.MEMSET
    kinds = is_memset.astype(np.int8), _directions(trace, rows), pageable[rows]
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
