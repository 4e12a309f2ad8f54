"""Work from before the recording that still occupied a stream when the recording began.

A stream runs its work in order. If its first recorded event was launched during the recording, and
starts long after the launch has returned, then something else ran on the stream until then. If no
recorded work and no recorded wait explains that, it was work that began before the recording did,
so its events were not recorded. Until its end, the device was not idle, although no event shows
what it did.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.idle_gaps import LAUNCH_LATENCY_NS
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, single, total_ns, union
from tb_perfadvisor.trace.tables import Int32

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
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])
