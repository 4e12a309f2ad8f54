"""How far launches run ahead of the device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Int32, Int64


class LaunchQueue(Struct, frozen=True):
    """State of the device at each launch of the used window; columns of shape (n,)."""

    row: Int32
    """The device event."""
    depth: Int64
    """Number of events launched earlier that had not ended when this one was launched."""
    lead_ns: Int64
    """From the start of the launch call to the start of the event."""

    @property
    def empty_share(self) -> float | None:
        """Share of the launches that find the queue empty; None without launches."""
        return float((self.depth == 0).mean()) if len(self.depth) else None

    @property
    def median_depth(self) -> float | None:
        """Median of `depth`; None without launches."""
        return float(np.median(self.depth)) if len(self.depth) else None

    @property
    def median_lead_ns(self) -> float | None:
        """Median of `lead_ns`; None without launches."""
        return float(np.median(self.lead_ns)) if len(self.lead_ns) else None


@memoized
def launch_queue(signals: Signals) -> LaunchQueue:
    """Depth of the queue at each launch, from launch calls and ends of events."""
    events, window = signals.trace.events, signals.attribution
    rows = signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    called = events.start_ns[events.launched_by[rows]]
    # The events of a graph have one launch and don't count as queued before each other.
    earlier = np.searchsorted(np.sort(called), called, side="left")
    done = np.searchsorted(np.sort(events.end_ns[rows]), called, side="right")
    start = events.start_ns[rows]
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    return LaunchQueue(
        row=rows[inside],
        depth=np.maximum(earlier - done, 0)[inside],
        lead_ns=np.maximum(start - called, 0)[inside],
    )
