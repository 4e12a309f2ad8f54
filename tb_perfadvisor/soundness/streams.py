"""One stream runs one thing after another.

A kernel may begin before the one before it has ended, if the program says so (programmatic
dependent launch), but it waits for nothing else: at most two kernels of a stream run at a time. An
event that still runs when the second event after it begins has a wrong end, as ROCm's recorder
writes it at times. So it ended when the next one began. And no event outlasts the return of a call
that waited for it.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.note import Note
from tb_perfadvisor.soundness.waits import deadlines
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import places_by_value, row_mask
from tb_perfadvisor.trace.names import short_name
from tb_perfadvisor.trace.retimed import retimed
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_duration

ROUNDING_NS = 1_000
"""Old versions of Kineto write whole microseconds."""
LATE_NS = 100_000
"""Of 90 recordings of GPUs, the clocks of device and host contradict each other by 50 microseconds
at most."""
_FEW_SHARE = 0.1
"""If more of a stream's events overlap, it is no stream: branches of a graph, queues of a DMA
engine."""

DOUBTFUL_SHARE = 0.05
"""If events of less than that share of the device's time have uncertain ends, no figure is off by
more."""


def one_after_another(trace: Trace, work: Int32) -> tuple[Trace, int, int]:
    """The trace with possible ends, how many events were shortened, and their time now.

    `work` has the events on streams, by start.
    """
    events = trace.events
    end_ns = events.end_ns[work].copy()
    for _, places in places_by_value(events.track[work]):
        # The events of a track are in order of start.
        end_ns[places] = _ends(events.start_ns[work[places]], end_ns[places])
    until_ns = deadlines(trace, work)
    is_late = end_ns - LATE_NS > until_ns
    if is_late.sum() <= _FEW_SHARE * len(work):
        end_ns[is_late] = np.maximum(until_ns, events.start_ns[work])[is_late]
    changed = end_ns < events.end_ns[work]
    rows = work[changed]
    if not len(rows):
        return trace, 0, 0
    duration_ns = events.duration_ns.copy()
    duration_ns[rows] = end_ns[changed] - events.start_ns[rows]
    is_moved = row_mask(len(trace.tracks), events.track[rows])
    repaired = retimed(trace, events.start_ns, duration_ns, is_moved)
    after_ns = int(duration_ns[rows].sum())
    note = _note(trace, rows, duration_ns, after_ns / max(int(duration_ns[work].sum()), 1))
    return replace(repaired, notes=(*trace.notes, note)), len(rows), after_ns


def _ends(start_ns: Int64, end_ns: Int64) -> Int64:
    """The ends of a stream's events, in order of start."""
    late = np.flatnonzero(end_ns[:-2] > start_ns[2:] + ROUNDING_NS)
    if not len(late) or len(late) > max(_FEW_SHARE * len(start_ns), 1):
        return end_ns
    following = np.searchsorted(start_ns, start_ns[late], side="right")
    possible: Int64 = end_ns.copy()
    possible[late] = np.append(start_ns, end_ns[-1])[following]
    return np.minimum(possible, end_ns)


def _note(trace: Trace, rows: Int32, duration_ns: NDArray[np.int64], doubtful_share: float) -> Note:
    events = trace.events
    longest = rows[int(np.argmax(events.duration_ns[rows]))]
    what = "Device events last" if len(rows) > 1 else "A device event lasts"
    count = f"{len(rows):,} device events end" if len(rows) > 1 else "1 device event ends"
    name = short_name(trace.name(int(longest)))
    return Note(
        "impossible-durations",
        "warning" if doubtful_share >= DOUBTFUL_SHARE else "info",
        f"{what} longer than is possible: {count} after later work of the same stream began, or "
        "after a call that waited for it returned. They end at that time now: "
        f"{name} says {format_duration(int(events.duration_ns[longest]))} "
        f"and takes {format_duration(int(duration_ns[longest]))} at most.",
        "Record with a newer version of the driver and its profiling library (ROCm, CUDA).",
    )
