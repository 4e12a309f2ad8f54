"""Delays of device work: after its launch, after its stream, and after work of other streams.

A profile shows only the cause that came last. Work whose stream had long been free began because it
was launched: this shows how long a launch takes to reach the device. Work that was launched long
before shows the gap between two items of work on a stream. A delay that does not show is assumed to
be the usual one, and never more than the profile allows.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.program import NEVER, Program

SIGNAL_NS = 10_000
"""From the end of work to the start of work on another stream that waits for it: an event and a
wait, a few microseconds each (the same order of magnitude as a launch)."""
ROUNDING_NS = 1_000
"""Older files have whole microseconds: work may seem to end up to this long after
work that waited for it began."""


class DeviceDelays(Struct, frozen=True):
    """Columns of shape (work,), by position in `Program.work`, and the edges across streams."""

    launch_delay_ns: Int64
    previous: Int32
    """The work before it on its stream; -1 for work before the window."""
    stream_delay_ns: Int64
    cross_source: Int32
    cross_target: Int32
    cross_delay_ns: Int64
    gap_ns: int
    """The usual gap between two items of work on a stream."""


def device_delays(trace: Trace, program: Program) -> DeviceDelays:
    """Find the delays of all device work."""
    events, work, stream = trace.events, program.work, program.stream
    start, end = events.start_ns[work], events.end_ns[work]
    launched = events.start_ns[program.launch]
    previous = _previous(stream)
    freed = np.where(previous >= 0, end[previous], program.tail_ns[stream])
    latency_ns, gap = start - launched, start - freed
    shows_launch = freed <= launched
    # If the whole device was idle at the launch, nothing else can have delayed the work.
    before_ns = program.tail_ns.max(initial=NEVER)
    is_alone = np.maximum.accumulate(np.append(before_ns, end))[:-1] <= launched
    sample = is_alone if is_alone.any() else shows_launch
    if sample.any():
        usual_latency_ns = int(np.median(latency_ns[sample]))
    else:  # all work was queued behind other work
        usual_latency_ns = min(int(latency_ns.min(initial=SIGNAL_NS)), SIGNAL_NS)
    queued = launched + usual_latency_ns < freed
    # Nor if no work of another stream ended after the stream became free.
    by_end = np.sort(end, kind="stable")
    first, last = np.searchsorted(by_end, freed, "left"), np.searchsorted(by_end, start, "right")
    queued &= last - first <= (previous >= 0)
    usual_gap = max(int(np.median(gap[queued])), 0) if queued.any() else 0
    # Otherwise take the explanation that is closer to its usual value.
    for_launch = shows_launch | (np.abs(latency_ns - usual_latency_ns) < np.abs(gap - usual_gap))
    late = np.where(for_launch, latency_ns > usual_latency_ns, gap > usual_gap)
    cross = _inferred_source(stream, start, end, launched, np.maximum(launched, freed), late)
    found = cross >= 0
    stated_source, stated_target = _stated_waits(trace, program, start, end)
    inferred = np.flatnonzero(found)
    signal = start[inferred] - end[cross[inferred]]
    usual_signal = int(np.median(signal)) if len(signal) else 0
    return DeviceDelays(
        launch_delay_ns=np.where(
            for_launch & ~found, latency_ns, np.minimum(usual_latency_ns, latency_ns)
        ),
        previous=previous,
        stream_delay_ns=np.where(for_launch | found, np.minimum(usual_gap, gap), gap),
        cross_source=np.concatenate((cross[inferred], stated_source)).astype(np.int32),
        cross_target=np.concatenate((inferred, stated_target)).astype(np.int32),
        cross_delay_ns=np.concatenate(
            (
                signal,
                np.minimum(start[stated_target] - end[stated_source], usual_signal),
            )
        ),
        gap_ns=usual_gap,
    )


def _previous(stream: Int32) -> Int32:
    """The work before each item of work on its stream; -1 for none."""
    order = np.argsort(stream, kind="stable")
    previous = np.roll(order, 1)
    previous[np.diff(stream[order], prepend=-1) != 0] = -1
    found = np.empty(len(order), dtype=np.int32)
    found[order] = previous
    return found


def _inferred_source(
    stream: Int32,
    start: Int64,
    end: Int64,
    launched: Int64,
    floor: Int64,
    late: NDArray[np.bool_],
) -> Int32:
    """For work that began late, find the work of another stream that it seems to have waited for.

    Its position; -1 for none.
    """
    found = np.full(len(start), -1, dtype=np.int32)
    latest = np.maximum(floor, start - SIGNAL_NS)
    count = int(stream.max()) + 1 if len(stream) else 0
    for number in range(count if count > 1 else 0):
        candidates = np.flatnonzero(stream == number)
        waiting = np.flatnonzero(late & (stream != number))
        if len(waiting) == 0:
            continue
        # A stream can only wait for work that was queued before, and streams run in order.
        ended = np.maximum.accumulate(end[candidates])
        enqueued = np.maximum.accumulate(launched[candidates])
        slot = np.minimum(
            np.searchsorted(ended, start[waiting] + ROUNDING_NS, side="right"),
            np.searchsorted(enqueued, launched[waiting], side="right"),
        )
        candidate = candidates[np.maximum(slot - 1, 0)]
        fits = (slot > 0) & (end[candidate] > latest[waiting])
        found[waiting[fits]] = candidate[fits]
        latest[waiting[fits]] = end[candidate[fits]]
    return found


def _stated_waits(trace: Trace, program: Program, start: Int64, end: Int64) -> tuple[Int32, Int32]:
    """Find work that waits for another stream because a call says so, or because it always does.

    Files do not record which stream waits for which. So the next work that the same thread launches
    is assumed to wait for the last work of every other stream, unless the profile shows another
    order. Collectives wait for the stream that produced their input.

    Returned are positions of the work that is waited for, and of the work that waits.
    """
    events, stream = trace.events, program.stream
    launched = events.start_ns[program.launch]
    by_launch = np.argsort(launched, kind="stable")
    track = events.track[program.launch[by_launch]]
    targets = [np.flatnonzero(events.kind[program.work] == EventKind.COLLECTIVE)]
    for number in distinct(events.track[program.stream_waits]).tolist():
        on_track = by_launch[track == number]
        called = events.start_ns[program.stream_waits[events.track[program.stream_waits] == number]]
        slot = np.searchsorted(launched[on_track], called)
        targets.append(on_track[slot[slot < len(on_track)]])
    target = distinct(np.concatenate(targets))
    sources, chosen = [], []
    for number in range(len(program.tail_ns)):
        candidates = by_launch[stream[by_launch] == number]
        slot = np.searchsorted(launched[candidates], launched[target]) - 1
        candidate = candidates[np.maximum(slot, 0)]
        fits = (slot >= 0) & (stream[target] != number)
        fits &= end[candidate] <= start[target] + ROUNDING_NS
        sources.append(candidate[fits])
        chosen.append(target[fits])
    return np.concatenate(sources).astype(np.int32), np.concatenate(chosen).astype(np.int32)
