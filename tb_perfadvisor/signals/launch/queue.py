"""How far launches run ahead of the device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class LaunchQueue(Struct, frozen=True):
    """State of the device at each launch whose work begins in the used window; shape (n,).

    A graph is one launch, however many kernels it has.
    """

    row: Int32
    """The first device event of the launch."""
    depth: Int64
    """Number of launches made earlier whose work had not ended when this one was made."""
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
    events = signals.trace.events
    rows = signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    # Rows are in order of start.
    launch, first = np.unique(events.launched_by[rows], return_index=True)
    called, rows = events.start_ns[launch], rows[first]
    start = events.start_ns[rows]
    inside = signals.steps.owner[rows] >= 0
    return LaunchQueue(
        row=rows[inside],
        depth=np.maximum(launches_pending(signals, called[inside]), 0),
        lead_ns=np.maximum(start - called, 0)[inside],
    )


def launches_pending(signals: Signals, at_ns: Int64) -> Int64:
    """Number of launches, each a kernel, a copy or a graph, that the device had not finished.

    Args:
        signals: The worker's facts.
        at_ns: Times, shape (n,).
    """
    events, rows = signals.trace.events, signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    launch, of_row = unique_inverse(events.launched_by[rows])
    done_ns = np.zeros(len(launch), dtype=np.int64)
    np.maximum.at(done_ns, of_row, events.end_ns[rows])
    begun = np.searchsorted(np.sort(events.start_ns[launch]), at_ns, side="left")
    return begun - np.searchsorted(np.sort(done_ns), at_ns, side="right")
