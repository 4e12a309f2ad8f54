"""Calls that wait for the device, and the idle time that they induce.

A synchronization costs the idle time that it induces, not its own duration: while the host waits,
the device works. When the call returns, the queue is empty, and the device idles until the host has
launched the next kernel. That idle time, from the return of the call to the start of the first
device event launched after it, is its cost. The cost is never more than the call's duration:
without the call, the host would have been ahead by that much. Further idle time comes from slow
launching.

JAX dispatches asynchronously on the CPU, too: there, the threads that run programs take the place
of the device.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.steps.launched_work import cpu_runs, top_level_calls
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

_LONGEST_DISPATCH_NS = 2_000_000
"""On the CPU, what the host does for longer than this before it runs the next program is more than
dispatching, and has another cause."""


class Synchronizations(Struct, frozen=True):
    """Waits on threads that launch, within the used window; columns of shape (n,)."""

    row: Int32
    duration_ns: Int64
    next_launch: Int32
    """The first call that launches device work on the same thread after the return."""
    until_ns: Int64
    """When the idle time that the call induces ends."""
    induced_ns: Int64
    """Idle time that each call induces. What several calls induce counts for the first one, so that
    the sum is the length of `induced`."""
    induced: Intervals
    """The idle time that all calls together induce."""

    def __len__(self) -> int:
        """Number of waits."""
        return len(self.row)


def find_synchronizations(
    trace: Trace,
    host_idle: Intervals,
    window_start_ns: int,
    window_end_ns: int,
    *,
    on_cpu: bool = False,
) -> Synchronizations:
    """The waits of the used window.

    The host causes `host_idle` in the middle of steps.
    """
    events = trace.events
    rows = waiting_calls(trace)
    rows = rows[(events.end_ns[rows] > window_start_ns) & (events.start_ns[rows] < window_end_ns)]
    returns = events.end_ns[rows]
    resumed = np.full(len(rows), -1, dtype=np.int64)
    next_launch = np.full(len(rows), -1, dtype=np.int32)
    launching, begins_ns = _calls_of_programs(trace) if on_cpu else _launches(trace)
    # On a TPU, JAX launches what a thread calls on threads of its own. (So it does with several
    # GPUs, but there a wait may last because other devices start late.)
    on_tpu = any(device.kind == "tpu" for device in trace.devices)
    callers = events.track[top_level_calls(trace)] if on_tpu else rows[:0]
    dispatching = set(distinct(callers).tolist())
    launches_by_track = dict(places_by_value(events.track[launching]))
    for track, on_track_wait in places_by_value(events.track[rows]):
        places = launches_by_track.get(track, np.empty(0, dtype=np.int64))
        if track in dispatching:
            places = np.arange(len(launching))
        on_track, begins = launching[places], begins_ns[places]
        if len(on_track) == 0:
            continue
        slot = np.searchsorted(events.start_ns[on_track], returns[on_track_wait], side="left")
        is_resumed = slot < len(on_track)
        slot = np.minimum(slot, len(on_track) - 1)
        next_launch[on_track_wait] = np.where(is_resumed, on_track[slot], -1)
        resumed[on_track_wait] = np.where(is_resumed, begins[slot], -1)
    begun = events.start_ns[rows]
    known = resumed > returns
    # Idle time inside the call (the device was done before the call ended) is induced as well:
    # without the call, the host would have launched by then.
    lead = returns + events.duration_ns[rows]
    end = np.where(known, np.minimum(resumed, lead), returns)
    if on_cpu:
        last_return = _last_return(next_launch, returns)
        dispatches = resumed - last_return <= _LONGEST_DISPATCH_NS
        end = np.where(dispatches, end, np.minimum(end, last_return))
    launched_any = resumed >= 0
    rows, begun, end = rows[launched_any], begun[launched_any], end[launched_any]
    # A copy and the synchronization after it wait for the same work: the copy has emptied the
    # queue when the synchronization begins.
    covered = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    induced_ns = overlap_ns(host_idle, np.maximum(begun, covered), np.maximum(end, covered))
    return Synchronizations(
        row=rows.astype(np.int32),
        duration_ns=events.duration_ns[rows],
        next_launch=next_launch[launched_any],
        until_ns=end,
        induced_ns=induced_ns,
        induced=intersect(host_idle, union(begun, end)),
    )


def _launches(trace: Trace) -> tuple[Int32, Int64]:
    """The calls that launched device events, by start, and when their first event begins."""
    events = trace.events
    device_rows = np.flatnonzero(events.launched_by >= 0)
    # In reverse order of start, the first event of each launch is written last.
    first_event = np.full(len(events), -1, dtype=np.int64)
    first_event[events.launched_by[device_rows][::-1]] = device_rows[::-1]
    launching = np.flatnonzero(first_event >= 0)
    return launching.astype(np.int32), events.start_ns[first_event[launching]]


def _calls_of_programs(trace: Trace) -> tuple[Int32, Int64]:
    """The calls that run programs on the CPU, by start, and when the next run begins."""
    calls, runs = top_level_calls(trace), cpu_runs(trace)
    slot = np.searchsorted(runs.start_ns, trace.events.start_ns[calls])
    has_run = slot < len(runs)
    return calls[has_run], runs.start_ns[slot[has_run]]


def _last_return(next_launch: Int32, returns: Int64) -> Int64:
    """For each wait, when the last of the waits before the same launch returns."""
    _, group = unique_inverse(next_launch)
    last = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, group, returns)
    return last[group]


def operator_wait_ns(trace: Trace, rows: Int32, launching_operator: Int32) -> Int64:
    """How much of its own time each operator waits for the device, as far as calls show it.

    `launching_operator` has the innermost operator around each event, shape (events,).
    """
    calls = waiting_calls(trace)
    around = launching_operator[calls]
    is_within = around >= 0
    waited = np.bincount(
        around[is_within],
        weights=trace.events.duration_ns[calls][is_within],
        minlength=len(trace.events),
    ).astype(np.int64)
    found: Int64 = waited[rows]
    return found
