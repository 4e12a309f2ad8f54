"""Calls that wait for the device, and the idle time that they induce.

A synchronization costs the idle time that it induces, not its own duration: while the host waits,
the device works. When the call returns, the queue is empty, and the device idles until the host has
launched the next kernel. That idle time, from the return of the call to the start of the first
device event launched after it, is its cost. The cost is never more than the call's duration:
without the call, the host would have been ahead by that much. Further idle time comes from slow
launching.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

# Copies that return only when they are done. Source: CUDA runtime API, "API synchronization
# behavior"; hipMemcpyWithStream is HIP's synchronous copy on a stream.
_BLOCKING_COPY = re.compile(
    r"^(cudaMemcpy|cudaMemcpy2D|cuMemcpy(DtoH|HtoD|DtoD)(_v2)?|hipMemcpy|hipMemcpyWithStream"
    r"|hipMemcpy(DtoH|HtoD))$"
)


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
    trace: Trace, host_idle: Intervals, window_start_ns: int, window_end_ns: int
) -> Synchronizations:
    """The waits of the used window.

    Args:
        trace: The trace.
        host_idle: Idle time that the host causes in the middle of steps.
        window_start_ns: Start of the used window.
        window_end_ns: End of the used window.
    """
    events = trace.events
    rows = waiting_calls(trace)
    rows = rows[(events.end_ns[rows] > window_start_ns) & (events.start_ns[rows] < window_end_ns)]
    returns = events.end_ns[rows]
    resumed = np.full(len(rows), -1, dtype=np.int64)
    next_launch = np.full(len(rows), -1, dtype=np.int32)
    device_rows = np.flatnonzero(events.launched_by >= 0)
    launcher = events.launched_by[device_rows]
    # The first device event of each launch: in reverse order of start, the first one is written
    # last.
    first_event = np.full(len(events), -1, dtype=np.int64)
    first_event[launcher[::-1]] = device_rows[::-1]
    launching = np.flatnonzero(first_event >= 0)
    for track in distinct(events.track[rows]).tolist():
        on_track_wait = events.track[rows] == track
        on_track = launching[events.track[launching] == track]
        if len(on_track) == 0:
            continue
        slot = np.searchsorted(events.start_ns[on_track], returns[on_track_wait], side="left")
        is_resumed = slot < len(on_track)
        following = on_track[np.minimum(slot, len(on_track) - 1)]
        next_launch[on_track_wait] = np.where(is_resumed, following, -1)
        start = events.start_ns[first_event[following]]
        resumed[on_track_wait] = np.where(is_resumed, start, -1)
    begun = events.start_ns[rows]
    known = resumed > returns
    # Idle time inside the call (the device was done before the call ended) is induced as well:
    # without the call, the host would have launched by then.
    lead = returns + events.duration_ns[rows]
    end = np.where(known, np.minimum(resumed, lead), returns)
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


def waiting_calls(trace: Trace) -> Int32:
    """Rows of the calls that return only when the device has finished something, by start.

    Besides synchronizations, these are blocking copies: copies whose call blocks by name, and all
    copies from the device to pageable memory, even if the call is asynchronous by name. Source:
    CUDA runtime API, "API synchronization behavior".
    """
    launches = trace.rows(EventKind.LAUNCH)
    names = trace.events.name[launches]
    blocking = [n for n in distinct(names).tolist() if _BLOCKING_COPY.match(trace.strings[n])]
    copies = trace.copies
    to_host = copies.row[
        (copies.direction == CopyDirection.DEVICE_TO_HOST) & (copies.pageable == 1)
    ]
    to_host = trace.events.launched_by[to_host]
    parts = (
        trace.rows(EventKind.SYNCHRONIZE),
        launches[is_in(names, blocking)],
        to_host[to_host >= 0],
    )
    return distinct(np.concatenate(parts)).astype(np.int32)
