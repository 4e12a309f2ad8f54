"""How far launches run ahead of the device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Int32, Int64


class LaunchQueue(Struct, frozen=True):
    """What each launch of the used window found on the device; columns of shape (n,)."""

    row: Int32
    """The device event."""
    depth: Int64
    """Events launched before it that had not ended when its launch was called."""
    lead_ns: Int64
    """From the call to the event's start."""

    @property
    def empty_share(self) -> float | None:
        """Share of the launches that found the device with nothing to do; None without any."""
        return float((self.depth == 0).mean()) if len(self.depth) else None

    @property
    def median_depth(self) -> float | None:
        """Half of the launches found no more than this; None without any."""
        return float(np.median(self.depth)) if len(self.depth) else None

    @property
    def median_lead_ns(self) -> float | None:
        """Half of the launches came no earlier; None without any."""
        return float(np.median(self.lead_ns)) if len(self.lead_ns) else None


@memoized
def launch_queue(signals: Signals) -> LaunchQueue:
    """Depth of the queue at each launch, from calls and ends alone."""
    events, window = signals.trace.events, signals.attribution
    rows = signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    called = events.start_ns[events.launched_by[rows]]
    # All of one graph's events have one launch: each is ahead of none of its own.
    earlier = np.searchsorted(np.sort(called), called, side="left")
    done = np.searchsorted(np.sort(events.end_ns[rows]), called, side="right")
    start = events.start_ns[rows]
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    return LaunchQueue(
        row=rows[inside],
        depth=np.maximum(earlier - done, 0)[inside],
        lead_ns=np.maximum(start - called, 0)[inside],
    )
