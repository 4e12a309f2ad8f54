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
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, overlap_ns, union
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
    until_ns: Int64
    """When the idle time that the call induces ends."""
    induced_ns: Int64
    """Idle time that each call induces, up to the next wait of its thread."""
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
        start = events.start_ns[first_event[on_track[np.minimum(slot, len(on_track) - 1)]]]
        resumed[on_track_wait] = np.where(is_resumed, start, -1)
    begun = events.start_ns[rows]
    known = resumed > returns
    # Idle time inside the call (the device was done before the call ended) is induced as well:
    # without the call, the host would have launched by then.
    lead = returns + events.duration_ns[rows]
    end = np.where(known, np.minimum(resumed, lead), returns)
    launched_any = resumed >= 0
    rows, begun, end = rows[launched_any], begun[launched_any], end[launched_any]
    until_next = np.minimum(end, _next_begun(events.track[rows], begun))
    induced = overlap_ns(host_idle, begun, until_next) if len(rows) else np.empty(0, dtype=np.int64)
    spans = union(begun, end) if len(rows) else EMPTY
    return Synchronizations(
        row=rows.astype(np.int32),
        duration_ns=events.duration_ns[rows],
        until_ns=end,
        induced_ns=induced,
        induced=intersect(host_idle, spans),
    )


def _next_begun(track: Int32, begun: Int64) -> Int64:
    """Start of the next wait on the same track; shape (waits,), in order of start."""
    order = np.argsort(track, kind="stable")
    following = np.full(len(order), np.iinfo(np.int64).max, dtype=np.int64)
    is_same = track[order][1:] == track[order][:-1]
    following[order[:-1][is_same]] = begun[order[1:][is_same]]
    return following


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
