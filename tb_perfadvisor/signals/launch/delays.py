"""Idle time of the device before each of its events, and how busy the host was."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, overlap_ns, union
from tb_perfadvisor.trace.tables import Float64, Int32, Int64


class LaunchDelays(Struct, frozen=True):
    """Device events of the used window with known launches; columns of shape (events,)."""

    row: Int32
    idle_ns: Int64
    """Idle time before the event until the host launched it; 0 if the device had work."""
    input_threads: Int64
    """Number of threads that ran functions of the input pipeline at the launch."""
    idle: Intervals
    """All of that idle time."""

    def before(self, signals: Signals, ahead_ns: Int64) -> Intervals:
        """Idle time within `ahead_ns` before each event; shape (events,)."""
        start = signals.trace.events.start_ns[self.row]
        return intersect(self.idle, union(start - ahead_ns, start))


@memoized
def launch_delays(signals: Signals) -> LaunchDelays:
    """The delays, without events after a stall that has another cause."""
    trace, window = signals.trace, signals.attribution
    events, gaps = trace.events, window.idle
    idle = minus(signals.host_idle, signals.synchronizations.induced)
    own_ns = np.zeros(len(events), dtype=np.int64)
    is_stalled = np.zeros(len(events), dtype=bool)
    ended = (gaps.next_row >= 0) & ~gaps.is_queued
    start, end, row = gaps.start_ns[ended], gaps.end_ns[ended], gaps.next_row[ended]
    is_stalled[row] = end - start > LONGEST_LAUNCH_GAP_NS
    own_ns[row] = overlap_ns(idle, start, end)

    rows = signals.device.rows
    launch = events.launched_by[rows]
    is_used = (signals.steps.owner[rows] >= 0) & (launch >= 0) & ~is_stalled[rows]
    return LaunchDelays(
        row=rows[is_used],
        idle_ns=own_ns[rows[is_used]],
        input_threads=tfdata(signals).running(events.start_ns[launch[is_used]]),
        idle=idle,
    )


class KernelDelays(Struct, frozen=True):
    """Kernels launched with busy and with free cores; columns have shape (names,)."""

    name: Int32
    taken: Int64
    """Launches with all cores busy."""
    free: Int64
    taken_ns: Float64
    """Idle time before launches with all cores busy."""
    usual_ns: Float64
    """What that time would be with free cores."""
    excess_ns: Int64
    """How much longer than usual each event is delayed, shape (events,)."""


def compare_by_kernel(
    signals: Signals, delays: LaunchDelays, is_taken: NDArray[np.bool_]
) -> KernelDelays:
    """The delays of each kernel with all cores busy, against those at other times.

    Args:
        signals: The worker's facts.
        delays: Its launch delays.
        is_taken: Whether all cores were busy at each launch, shape (events,).
    """
    names, inverse = unique_inverse(signals.trace.events.name[delays.row])
    size = len(names)

    def count_of(chosen: NDArray[np.bool_]) -> Int64:
        return np.bincount(inverse[chosen], minlength=size).astype(np.int64)

    def idle_of(chosen: NDArray[np.bool_]) -> Float64:
        return np.bincount(inverse[chosen], delays.idle_ns[chosen], size).astype(np.float64)

    taken, free = count_of(is_taken), count_of(~is_taken)
    mean_ns = idle_of(~is_taken) / np.maximum(free, 1)
    is_comparable = (taken > 0) & (free > 0)
    excess = np.where(is_taken & is_comparable[inverse], delays.idle_ns - mean_ns[inverse], 0.0)
    return KernelDelays(
        name=names[is_comparable],
        taken=taken[is_comparable],
        free=free[is_comparable],
        taken_ns=idle_of(is_taken)[is_comparable],
        usual_ns=(mean_ns * taken)[is_comparable],
        excess_ns=np.rint(np.maximum(excess, 0)).astype(np.int64),
    )
