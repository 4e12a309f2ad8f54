"""Gaps in the device's work, since when the work that ended each was queued, and late batches.

Work is queued once its launch has returned and the launch latency has passed. Before that moment,
the host is the reason that the device idles. The event that ends a gap shows this only if its
launch was recorded, or if it started before the first recorded launch of its stream: then it was
launched before the recording began. Other events prove nothing, because their launch is unknown
(requests for direct memory access never have one). There, the next event counts that does show it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.trace import BUSY_KINDS, CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    intersect,
    join,
    overlap_ns,
    shared_ns,
    single,
    total_ns,
)
from tb_perfadvisor.trace.tables import Int32, Int64

LAUNCH_LATENCY_NS = 20_000
"""From the return of a launch to the kernel's start: 2-10 microseconds on an idle GPU (NVIDIA,
"CUDA Graphs" developer documentation, measured launch latencies), twice that with margin."""
_ALWAYS = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


class Idle(Struct, frozen=True):
    """Gaps in the device's work within the used window, and what ended them.

    Columns have shape (gaps,); rows are -1 for none.
    """

    start_ns: Int64
    end_ns: Int64
    next_row: Int32
    """The device event that ended the gap."""
    launch_row: Int32
    """The runtime call that launched it. If that is unknown, the call that launched the next event
    with a known launch."""
    queued_from_ns: Int64
    """From when on the work was queued: between start and end, and the end if it never was."""

    @property
    def is_queued(self) -> NDArray[np.bool_]:
        """Whether the work was queued during the whole gap."""
        is_queued: NDArray[np.bool_] = self.queued_from_ns == self.start_ns
        return is_queued


def device_gaps(trace: Trace, timeline: DeviceTimeline, start_ns: int, end_ns: int) -> Idle:
    """The gaps between the device's events within a window.

    A gap inside a container, such as an XLA loop, is a gap like any other.
    """
    events, busy = trace.events, timeline.busy
    rows = _in_one_order(trace, timeline.rows)
    first = min(start_ns, int(busy[0, 0])) if len(busy) else start_ns
    last = max(end_ns, int(busy[-1, 1])) if len(busy) else end_ns
    gaps = complement(busy, first, last)
    gaps = gaps[(gaps[:, 1] > start_ns) & (gaps[:, 0] < end_ns)]
    # `rows` are sorted by start: the first one that starts at a gap's end or later ended it.
    slot = np.searchsorted(events.start_ns[rows], gaps[:, 1], side="left")
    queued_ns = _queued_since(trace, rows)
    telling = np.flatnonzero(queued_ns != _NEVER)
    next_telling = np.append(telling, -1)[np.searchsorted(telling, slot, side="left")]
    launch = np.where(next_telling >= 0, events.launched_by[rows[next_telling]], -1)
    queued_from = np.where(next_telling >= 0, queued_ns[next_telling], _NEVER)
    start, end = np.maximum(gaps[:, 0], start_ns), np.minimum(gaps[:, 1], end_ns)
    return Idle(
        start_ns=start,
        end_ns=end,
        next_row=np.append(rows, -1)[np.minimum(slot, len(rows))].astype(np.int32),
        launch_row=launch.astype(np.int32),
        queued_from_ns=np.clip(queued_from, start, end),
    )


def _in_one_order(trace: Trace, rows: Int32) -> Int32:
    """Device events by start, then by stream. Other work ends a gap before a collective does."""
    events = trace.events
    start_ns = events.start_ns[rows]
    is_tied = start_ns[1:] == start_ns[:-1]
    # Sorting the few ties alone takes a tenth of the time.
    tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
    some = rows[tied]
    is_collective = events.kind[some] == EventKind.COLLECTIVE
    stream = trace.tracks.thread[events.track[some]]
    ordered: Int32 = rows.copy()
    ordered[tied] = some[np.lexsort((stream, is_collective, start_ns[tied]))]
    return ordered


def _queued_since(trace: Trace, rows: Int32) -> Int64:
    """Since when each device event was queued; `_NEVER` if unknown."""
    events = trace.events
    launch, track = events.launched_by[rows], events.track[rows]
    is_linked = launch >= 0
    queued_ns = np.full(len(rows), _NEVER, dtype=np.int64)
    queued_ns[is_linked] = events.end_ns[launch[is_linked]] + LAUNCH_LATENCY_NS
    if not is_linked.any() or is_linked.all():
        return queued_ns
    launched_at = events.start_ns[launch[is_linked]]
    first_launch = np.full(len(trace.tracks), _NEVER, dtype=np.int64)
    np.minimum.at(first_launch, track[is_linked], launched_at)
    # On a stream without any recorded launch, only what ran before all launches must be older.
    first_launch[first_launch == _NEVER] = launched_at.min()
    kind = events.kind[rows]
    has_launches = is_in(kind, distinct(kind[is_linked]))
    is_older = ~is_linked & has_launches & (events.start_ns[rows] < first_launch[track])
    queued_ns[is_older] = _ALWAYS
    return queued_ns


def unlaunched_gaps(idle: Intervals) -> Idle:
    """Idle intervals of a program without a device."""
    none = np.full(len(idle), -1, dtype=np.int32)
    return Idle(idle[:, 0], idle[:, 1], none, none, idle[:, 1])


_BATCH_BYTES = 16 * 1024
"""Four sequences of 512 tokens. Smaller copies are points, positions and other scalars."""
_PART_OF_BATCH = 0.1
"""Batches differ in length, and the last of an epoch is shorter."""
_FEWEST_BATCHES = 4
_LEAST_WAIT_NS = 500_000
"""A batch that is ready takes a loop of PyTorch 0.1 to 0.3 ms to unpickle."""


def first_copies(trace: Trace, rows: Int32) -> Int32:
    """The first of the copies to the device of each batch, of a device's events in order.

    They follow one another. Before the first kernel, a program copies its weights.
    """
    events, copies = trace.events, trace.copies
    kernels = np.flatnonzero(events.kind[rows] == EventKind.KERNEL)
    rows = rows[int(kernels[0]) :] if len(kernels) else rows[:0]
    to_device = copies.direction == CopyDirection.HOST_TO_DEVICE
    is_copy = is_in(rows, copies.row[to_device])
    begins = is_copy & ~np.concatenate(([False], is_copy[:-1]))
    if not begins.any():
        return rows[:0]
    size = trace.by_event(copies.row, copies.size_bytes, 0)[rows[is_copy]]
    total = np.bincount(np.cumsum(begins)[is_copy] - 1, weights=np.maximum(size, 0))
    is_batch = total >= max(_BATCH_BYTES, _PART_OF_BATCH * total.max())
    found: Int32 = rows[begins][is_batch]
    return found


def rhythm(waited_ns: Int64) -> int | None:
    """How many batches come at once, by how long the device waited for each; None without a rhythm.

    A loader with k workers hands out k batches at once, and the next are not there yet. So every
    k-th batch is late. 1 if each of them is.
    """
    longest = np.sort(waited_ns[waited_ns > 0])
    if not len(longest):
        return None
    usual_ns = float(np.median(longest[-max(len(longest) // 10, 1) :]))
    late = np.flatnonzero(2 * waited_ns >= usual_ns)
    if len(late) < 3:
        return None
    apart = np.diff(late)
    every = int(np.median(apart))
    return every if 4 * np.count_nonzero(apart == every) >= 3 * len(apart) else None


def waits_for_batches(
    trace: Trace, timeline: DeviceTimeline, idle: Idle, nameless: Intervals, blocked: Intervals
) -> Intervals:
    """When the device waits for a batch, though no event says so.

    Before it is copied, nothing is recorded on the host (`nameless` time), or only calls that wait
    for other threads or processes (`blocked`). Without these, batches are late in a rhythm, or a
    thread of the loader's own copies them. A wait that follows a large result is none for a batch.
    """
    batches, events = first_copies(trace, timeline.rows), trace.events
    if len(batches) < _FEWEST_BATCHES or len(trace.rows(EventKind.INPUT_WAIT)):
        return EMPTY
    waits = join(nameless, blocked)
    waited_ns = overlap_ns(waits, idle.start_ns, idle.end_ns)
    is_late = is_in(idle.next_row, batches) & (waited_ns >= _LEAST_WAIT_NS)
    # After a large result, the host may be computing something from it.
    copies = trace.copies
    is_result = copies.direction == CopyDirection.DEVICE_TO_HOST
    is_result &= copies.size_bytes >= _BATCH_BYTES
    last = np.searchsorted(events.start_ns[timeline.rows], idle.start_ns) - 1
    is_late &= ~is_in(timeline.rows[np.maximum(last, 0)], copies.row[is_result])
    if not is_late.any():
        return EMPTY
    late = intersect(waits, np.column_stack((idle.start_ns, idle.end_ns))[is_late])
    of_batch = np.zeros(len(batches), dtype=np.int64)
    of_batch[np.searchsorted(events.start_ns[batches], idle.end_ns[is_late])] = waited_ns[is_late]
    rows = timeline.rows
    kernels = rows[events.kind[rows] == EventKind.KERNEL]
    launching = distinct(events.track[events.launched_by[kernels]])
    is_own = is_in(events.track[events.launched_by[batches]], launching).any()
    is_seen = 2 * shared_ns(late, blocked) > total_ns(late)
    return EMPTY if is_own and not is_seen and rhythm(of_batch) is None else late


# A stream runs its work in order. If its first recorded event was launched during the recording,
# and starts long after the launch has returned, then something else ran on the stream until then.
# If no recorded work and no recorded wait explains that, it was work that began before the
# recording did, so its events were not recorded. Until its end, the device was not idle, although
# no event shows what it did.

MIN_DELAY_NS = 1_000_000
"""On an idle device, work starts 2 to 20 microseconds after its launch. Fifty times that is not
latency."""
_EXPLAINING_SHARE = 0.1
"""If recorded work takes more of the delay than this, the stream may have waited for it."""


class UnrecordedWork(Struct, frozen=True):
    """The stream that was occupied for longest, and its first recorded event."""

    until_ns: int
    """When the unrecorded work ended: the start of that event."""
    row: int
    launch_row: int


def find_unrecorded_work(trace: Trace, timeline: DeviceTimeline) -> UnrecordedWork | None:
    """The unrecorded work that ended last; None if there is no sign of any.

    On a TPU, a program waits for its inputs after its launch, so a late start proves nothing.
    """
    events, rows = trace.events, timeline.rows
    kind = next((device.kind for device in trace.devices if device.index == timeline.index), "")
    if len(rows) == 0 or kind == "tpu" or trace.totals is not None:
        return None
    # `rows` are sorted by start, so the first one of each track is its first recorded event.
    tracks, first = np.unique(events.track[rows], return_index=True)
    row = rows[first]
    launch = events.launched_by[row]
    ready = events.end_ns[launch] + LAUNCH_LATENCY_NS
    start = events.start_ns[row]
    late = np.flatnonzero((launch >= 0) & (start - ready >= MIN_DELAY_NS))
    if len(late) == 0:
        return None
    recorded = _running(trace, trace.rows(*BUSY_KINDS))
    for index in late[np.argsort(-start[late], kind="stable")].tolist():
        waits = trace.rows(EventKind.DEVICE_SYNC)
        waits = waits[events.track[waits] == tracks[index]]
        delay = single(int(ready[index]), int(start[index]))
        explained = intersect(join(recorded, _running(trace, waits)), delay)
        if total_ns(explained) <= _EXPLAINING_SHARE * total_ns(delay):
            return UnrecordedWork(int(start[index]), int(row[index]), int(launch[index]))
    return None


def _running(trace: Trace, rows: Int32) -> Intervals:
    return trace.events.spans(rows)
