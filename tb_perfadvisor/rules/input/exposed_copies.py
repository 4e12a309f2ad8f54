"""Copies that no other work overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.copies import (
    copies_by_direction,
    copy_wait_table,
    weights_in_short,
)
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.rules.savings.pinned_memory import pinning
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.device.copy_streams import copies_to_device, copy_waits
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.pageable_copies import (
    host_link,
    pageable_copies,
    time_when_pinned_ns,
)
from tb_perfadvisor.signals.device.streamed_weights import fits_on_device, streamed_weights
from tb_perfadvisor.signals.tpu.host_offload import offload_rows, offload_waits
from tb_perfadvisor.signals.tpu.host_transfers import transfer_rows, transfer_waits
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_once_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif import Fix, Overlap, Shorten

_FROM_HOST = ("copy-ahead", "prefetch-to-device")
_WEIGHTS = ("resident-weights", "weights-ahead", "fewer-bits-for-weights")
_WITHIN_DEVICE = ("copies-within-device", "donated-arguments", "xla-compiled-step")
_TO_HOST = (
    *("results-to-pinned-memory", "overlapped-schedule"),
    *("tensors-from-step", "read-arrays-rarely"),
)
_BETWEEN_DEVICES = ("process-per-device", *_FROM_HOST)


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
    The time attributed to *copies* alone. Copies from pinned memory on a stream of their own are
    left out while nothing is launched that could wait for them: there the host is late. On a TPU,
    copies of data that the program keeps in host memory or exchanges with code on the host are left
    out, and copies within the device; host-offload-copies, host-callback, outside-compilation and
    redundant-copies report those. High
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
            copy_waits(signals).unawaited,
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
        exposed = overlap_once_ns(claims, events.start_ns[rows], events.end_ns[rows])
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
        fix: tuple[Fix, ...] = (Overlap(movable), shorter, *pinned)
        table = copies_by_direction(signals, rows, exposed)
        may_stay = fits_on_device(signals)
        if may_stay:
            hideable, fix = exposed_ns // 2, (Shorten(rows, events.duration_ns[rows] // 2),)
        yield Finding(
            instance=f"{share_of_each(exposed_ns, signals)} waits for them",
            summary=(
                f"Copies take {per_step(exposed_ns, signals)} during which the device computes"
                f" nothing ({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {table.rows[0][0]}.{weights_in_short(signals)}"
            ),
            saving=Saving(
                0,
                hideable,
                exposed_ns,
                claims,
                "heuristic" if may_stay else "measured",
                fix,
                is_unknown=streamed_weights(signals) is not None and may_stay is None,
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
        case CopyDirection.HOST_TO_DEVICE if streamed_weights(signals) is not None:
            return _WEIGHTS
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
