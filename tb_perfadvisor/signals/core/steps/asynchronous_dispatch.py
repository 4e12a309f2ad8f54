"""Steps that the host dispatches long before the device executes them.

Their markers on the host show how long dispatching takes, not how long a step takes.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import clip, last_before, total_ns
from tb_perfadvisor.trace.tables import Int64

_MOST_PENDING = 1.5
"""Steps' work that the device may still have to do when the last dispatch returns: that of the last
step, and part of the one before. With more, the host runs ahead."""
_NEVER = np.iinfo(np.int64).max


def runs_behind(timeline: DeviceTimeline, end_ns: Int64) -> bool:
    """Whether the device has several steps left to execute when the host has dispatched all.

    Args:
        timeline: The device.
        end_ns: When the host ends each step. Shape (steps,), in order.
    """
    pending_ns = total_ns(clip(timeline.busy, int(end_ns[-1]), _NEVER))
    return pending_ns > _MOST_PENDING * total_ns(timeline.busy) / len(end_ns)


def work_of_dispatches(
    trace: Trace, timeline: DeviceTimeline, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64] | None:
    """From when to when the device executes what the host launched in each step.

    Args:
        trace: The trace.
        timeline: The device.
        start_ns: Where each step starts on the host. Shape (steps,), in order.
        end_ns: Where it ends.

    Returns:
        Start and end of each step's work. None if a step launched nothing that was recorded, or if
        the work of two steps overlaps.
    """
    events, rows = trace.events, timeline.rows
    launch = events.launched_by[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    step = last_before(start_ns, events.start_ns[launch])
    inside = (step >= 0) & (events.start_ns[launch] < end_ns[np.maximum(step, 0)])
    rows, step = rows[inside], step[inside]
    first_ns = np.full(len(start_ns), _NEVER)
    last_ns = np.full(len(start_ns), -1)
    np.minimum.at(first_ns, step, events.start_ns[rows])
    np.maximum.at(last_ns, step, events.end_ns[rows])
    if (last_ns < 0).any() or (first_ns[1:] < last_ns[:-1]).any():
        return None
    return first_ns, last_ns
