"""How long after what device work began: after its launch, its stream, another stream's work.

Only the latest of the causes shows in a record. Work that began when its stream had long been
free began for its launch, and tells how long a launch takes to reach the device; work that was
launched long before tells what lies between two pieces of work on a stream. The lag that did
not show is taken to be the usual one, never more than the record allows.
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
"""From the end of work to the start of what waits for it on another stream: an event and a
wait, a few microseconds each (the same order as a launch)."""
ROUNDING_NS = 1_000
"""Older files have whole microseconds: an end may lie that much after the start it allowed."""


class WorkArcs(Struct, frozen=True):
    """Columns of shape (work,), positions in `Program.work`; and the arcs across streams."""

    launch_lag_ns: Int64
    previous: Int32
    """The work before it on its stream, -1 for what came before the window."""
    stream_lag_ns: Int64
    cross_source: Int32
    cross_target: Int32
    cross_lag_ns: Int64
    gap_ns: int
    """What usually lies between two pieces of work on a stream."""


def work_arcs(trace: Trace, program: Program) -> WorkArcs:
    """The arcs into device work."""
    events, work, stream = trace.events, program.work, program.stream
    start, end = events.start_ns[work], events.end_ns[work]
    launched = events.start_ns[program.launch]
    previous = _previous(stream)
    freed = np.where(previous >= 0, end[previous], program.tail_ns[stream])
    own, gap = start - launched, start - freed
    showed = freed <= launched
    # With all of the device idle at the launch nothing else can have held the work up.
    alone = np.maximum.accumulate(np.append(NEVER, end))[:-1] <= launched
    sample = alone if alone.any() else showed if showed.any() else np.ones_like(showed)
    latency = int(np.median(own[sample]))
    queued = launched + latency < freed
    # So it does with nothing of another stream having ended when the stream was free, or since.
    by_end = np.sort(end)
    first, last = np.searchsorted(by_end, freed, "left"), np.searchsorted(by_end, start, "right")
    queued &= last - first <= (previous >= 0)
    usual_gap = max(int(np.median(gap[queued])), 0) if queued.any() else 0
    # Between the two it is the explanation that is more usual.
    for_launch = showed | (np.abs(own - latency) < np.abs(gap - usual_gap))
    late = np.where(for_launch, own > latency, gap > usual_gap)
    cross = _cross(stream, start, end, launched, np.maximum(launched, freed), late)
    found = cross >= 0
    told_source, told_target = _told(trace, program, start, end)
    inferred = np.flatnonzero(found)
    signal = start[inferred] - end[cross[inferred]]
    usual_signal = int(np.median(signal)) if len(signal) else 0
    return WorkArcs(
        launch_lag_ns=np.where(for_launch & ~found, own, np.minimum(latency, own)),
        previous=previous,
        stream_lag_ns=np.where(for_launch | found, np.minimum(usual_gap, gap), gap),
        cross_source=np.concatenate((cross[inferred], told_source)).astype(np.int32),
        cross_target=np.concatenate((inferred, told_target)).astype(np.int32),
        cross_lag_ns=np.concatenate(
            (
                signal,
                np.minimum(start[told_target] - end[told_source], usual_signal),
            )
        ),
        gap_ns=usual_gap,
    )


def _previous(stream: Int32) -> Int32:
    """For each piece of work the one before it on its stream; -1 for none."""
    order = np.argsort(stream, kind="stable")
    previous = np.roll(order, 1)
    previous[np.diff(stream[order], prepend=-1) != 0] = -1
    found = np.empty(len(order), dtype=np.int32)
    found[order] = previous
    return found


def _cross(
    stream: Int32,
    start: Int64,
    end: Int64,
    launched: Int64,
    floor: Int64,
    late: NDArray[np.bool_],
) -> Int32:
    """For work that began late, the work of another stream whose end it seems to have awaited.

    Returns:
        Its position, -1 for none.
    """
    found = np.full(len(start), -1, dtype=np.int32)
    latest = np.maximum(floor, start - SIGNAL_NS)
    count = int(stream.max()) + 1 if len(stream) else 0
    for number in range(count if count > 1 else 0):
        others = np.flatnonzero(stream == number)
        mine = np.flatnonzero(late & (stream != number))
        if len(mine) == 0:
            continue
        # A stream can only be told to wait for what was enqueued before; streams keep order.
        ended = np.maximum.accumulate(end[others])
        enqueued = np.maximum.accumulate(launched[others])
        slot = np.minimum(
            np.searchsorted(ended, start[mine] + ROUNDING_NS, side="right"),
            np.searchsorted(enqueued, launched[mine], side="right"),
        )
        candidate = others[np.maximum(slot - 1, 0)]
        fits = (slot > 0) & (end[candidate] > latest[mine])
        found[mine[fits]] = candidate[fits]
        latest[mine[fits]] = end[candidate[fits]]
    return found


def _told(trace: Trace, program: Program, start: Int64, end: Int64) -> tuple[Int32, Int32]:
    """Work that a call told to wait for another stream, or that always does.

    Files do not keep which stream waits for which. So the next work that the same thread
    launches is taken to wait for the last work of every other stream, as far as the record
    shows that order. Collectives wait for the stream that produced their input.

    Returns:
        What is waited for and what waits, as positions.
    """
    events, stream = trace.events, program.stream
    launched = events.start_ns[program.launch]
    by_launch = np.argsort(launched, kind="stable")
    track = events.track[program.launch[by_launch]]
    targets = [np.flatnonzero(events.kind[program.work] == EventKind.COLLECTIVE)]
    for number in distinct(events.track[program.stream_waits]).tolist():
        own = by_launch[track == number]
        told = events.start_ns[program.stream_waits[events.track[program.stream_waits] == number]]
        slot = np.searchsorted(launched[own], told)
        targets.append(own[slot[slot < len(own)]])
    target = distinct(np.concatenate(targets))
    sources, chosen = [], []
    for number in range(len(program.tail_ns)):
        others = by_launch[stream[by_launch] == number]
        slot = np.searchsorted(launched[others], launched[target]) - 1
        candidate = others[np.maximum(slot, 0)]
        fits = (slot >= 0) & (stream[target] != number)
        fits &= end[candidate] <= start[target] + ROUNDING_NS
        sources.append(candidate[fits])
        chosen.append(target[fits])
    return np.concatenate(sources).astype(np.int32), np.concatenate(chosen).astype(np.int32)
