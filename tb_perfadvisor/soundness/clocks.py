"""One clock: no work starts before its launch, and none ends after a call that waited for it.

The true shift of a device's clock lies between two limits. It is at most the smallest lag from a
launch to its work, and at least the most by which work seems to outlast a call that waited for it.
In sound recordings, the first is a few microseconds, and the second is negative.

Without such calls, a lag can still show that it is the clock's. A queue gets longer and shorter. A
lag that is the same in every part of a recording, before work that starts on an idle device, is no
queue.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.note import Note
from tb_perfadvisor.soundness.streams import LATE_NS
from tb_perfadvisor.soundness.waits import NEVER, deadlines
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.retimed import retimed
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_duration

EARLY_NS = 20_000
"""Clocks that are read on both sides of a bus agree to within a few microseconds."""
LATENCY_NS = 5_000
"""From the call to the start of its kernel on an idle device; 2 to 15 microseconds in 90
recordings."""
CONSTANT_NS = 300_000
"""A longer lag on an idle device is no latency."""
_SEVERAL = 3
"""One or two wrong times are no shift."""
_PARTS = 10
_LEAST_PER_PART = 8
_STEADY_SHARE = 0.001
"""A clock drifts by less than a thousandth of its shift within a recording."""
_IDLE_NS = 10_000


def on_one_clock(trace: Trace, work: Int32) -> tuple[Trace, int]:
    """The trace with device events on the host's clock, and by how much they were moved at most.

    `work` has the events on streams, by start.
    """
    events, device_of = trace.events, trace.tracks.device
    linked = work[events.launched_by[work] >= 0]
    if len(linked) < _SEVERAL:
        return trace, 0
    until_ns = deadlines(trace, linked)
    shifts = {}
    for device in distinct(device_of[events.track[linked]]).tolist():
        own = device_of[events.track[linked]] == device
        shift_ns = _shift_ns(trace, linked[own], until_ns[own])
        if shift_ns:
            shifts[device] = shift_ns
    if not shifts:
        return trace, 0
    by_track = np.zeros(len(trace.tracks), dtype=np.int64)
    for device, shift_ns in shifts.items():
        by_track[device_of == device] = shift_ns
    start_ns = events.start_ns - by_track[events.track]
    moved = retimed(trace, start_ns, events.duration_ns, by_track != 0)
    largest_ns = max(shifts.values(), key=abs)
    return replace(moved, notes=(*trace.notes, _note(largest_ns, len(shifts)))), largest_ns


def _shift_ns(trace: Trace, rows: Int32, until_ns: Int64) -> int:
    """By how much the clock of a device is ahead of the host's; 0 if it is not.

    `rows` are events of one device whose launches are known, by start. Calls that waited for them
    returned at `until_ns`.
    """
    events = trace.events
    lag_ns = events.start_ns[rows] - events.start_ns[events.launched_by[rows]]
    if len(rows) < _SEVERAL:
        return 0
    least = np.partition(lag_ns, _SEVERAL - 1)[:_SEVERAL]
    # A single event that starts too early has a wrong time of its own.
    most_ns = int(least.min() if least.max() - least.min() <= LATE_NS else least.max())
    if most_ns < -EARLY_NS:
        return most_ns - LATENCY_NS
    known = until_ns < NEVER
    over_ns = events.end_ns[rows[known]] - until_ns[known]
    if len(over_ns) >= _SEVERAL:
        least_ns = int(np.partition(over_ns, -_SEVERAL)[-_SEVERAL])
        if least_ns > LATE_NS:
            return max(most_ns - LATENCY_NS, least_ns) if least_ns <= most_ns else 0
    return most_ns - LATENCY_NS if _is_constant(trace, rows, lag_ns, most_ns) else 0


def _is_constant(trace: Trace, rows: Int32, lag_ns: Int64, least_ns: int) -> bool:
    """Whether the smallest lag is the same in all parts, before work that starts after idle time.

    An event that a call waits for was in nobody's queue if the device idled before it.
    """
    if least_ns < CONSTANT_NS or len(rows) < _PARTS * _LEAST_PER_PART:
        return False
    events = trace.events
    busy_until = np.maximum.accumulate(events.end_ns[rows])
    after_idle = np.append(True, events.start_ns[rows[1:]] - busy_until[:-1] >= _IDLE_NS)
    steady_ns = max(_IDLE_NS, _STEADY_SHARE * least_ns)
    parts = zip(np.array_split(lag_ns, _PARTS), np.array_split(after_idle, _PARTS), strict=True)
    return all(
        is_idle.any() and int(part[is_idle].min()) <= least_ns + steady_ns
        for part, is_idle in parts
    )


def _note(shift_ns: int, devices: int) -> Note:
    side = "ahead of" if shift_ns > 0 else "behind"
    what = f"The clocks of {devices} devices are" if devices > 1 else "The device's clock is"
    return Note(
        "device-clock-shift",
        "warning",
        f"{what} {format_duration(abs(shift_ns))} {side} the host's in this file: by the times in "
        "it, all work starts that much too "
        f"{'late' if shift_ns > 0 else 'early'} after its launch. Device events were moved by "
        "that.",
        "Record again, with a newer version of the profiler if this repeats.",
    )
