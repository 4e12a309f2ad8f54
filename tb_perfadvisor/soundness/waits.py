"""Calls that wait for a device, and until when what they wait for must have ended."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import BUSY_KINDS, CopyDirection, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, row_mask
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

# Copies that return only when they are done. Source: CUDA runtime API, "API synchronization
# behavior"; hipMemcpyWithStream is HIP's synchronous copy on a stream.
_BLOCKING_COPY = regex(
    r"^(cudaMemcpy|cudaMemcpy2D|cuMemcpy(DtoH|HtoD|DtoD)(_v2)?|hipMemcpy|hipMemcpyWithStream"
    r"|hipMemcpy(DtoH|HtoD))$"
)
_WHOLE_DEVICE = regex(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
_STREAM = regex(r"^(?:cuda|hip|cu)StreamSynchronize")
NEVER = np.iinfo(np.int64).max


def stream_work(trace: Trace) -> Int32:
    """Rows of the work on streams, in order of start; empty if the trace has no streams.

    The lines of a TPU core are no streams: their operations hold one another.
    """
    if trace.totals is not None:
        return np.empty(0, dtype=np.int32)
    rows, tracks = trace.rows(*BUSY_KINDS), trace.tracks
    tpus = [device.index for device in trace.devices if device.kind == "tpu"]
    is_stream = (tracks.kind == TrackKind.DEVICE_STREAM) & ~is_in(tracks.device, tpus)
    return rows if is_stream.all() else rows[is_stream[trace.events.track[rows]]]


def waiting_calls(trace: Trace) -> Int32:
    """Rows of the calls that return only when the device has finished something, by start.

    A wait inside another one, as in JAX's `np.asarray`, is a part of it.

    Besides synchronizations, these are blocking copies: copies whose call blocks by name, and all
    copies from the device to pageable memory, even if the call is asynchronous by name. Source:
    CUDA runtime API, "API synchronization behavior".
    """
    launches = trace.rows(EventKind.LAUNCH)
    copies = trace.copies
    to_host = copies.row[
        (copies.direction == CopyDirection.DEVICE_TO_HOST) & (copies.pageable == 1)
    ]
    to_host = trace.events.launched_by[to_host]
    parts = (
        _outermost(trace, trace.rows(EventKind.SYNCHRONIZE)),
        launches[named(trace, launches, _BLOCKING_COPY)],
        to_host[to_host >= 0],
    )
    return distinct(np.concatenate(parts)).astype(np.int32)


def _outermost(trace: Trace, rows: Int32) -> Int32:
    """The rows that begin after all earlier rows of their thread have ended."""
    events, keep = trace.events, np.ones(len(rows), dtype=bool)
    for _, on_track in places_by_value(events.track[rows]):
        reach = np.maximum.accumulate(events.end_ns[rows[on_track]])
        keep[on_track[1:]] = events.start_ns[rows[on_track[1:]]] >= reach[:-1]
    return rows[keep]


def deadlines(trace: Trace, work: Int32) -> Int64:
    """By when each event must have ended, because a call that waits for it returned then.

    A blocking copy returns after its own copy, a synchronization of the device after all that was
    launched before it. One of a stream does the same if there is only one stream. Synchronizations
    of events, and those of programs on several devices, say nothing about a single event.

    `work` has events on streams. The time is `NEVER` where no call tells.
    """
    events, launch = trace.events, trace.events.launched_by[work]
    is_linked = launch >= 0
    waits = waiting_calls(trace)
    blocks = row_mask(len(events), waits)
    until_ns = np.full(len(work), NEVER, dtype=np.int64)
    own = is_linked & blocks[launch]
    until_ns[own] = events.end_ns[launch[own]]
    tracks = distinct(events.track[work])
    if len(distinct(trace.tracks.device[tracks])) > 1:
        return until_ns
    for_all = named(trace, waits, _WHOLE_DEVICE)
    if len(tracks) == 1:
        for_all |= named(trace, waits, _STREAM)
    waits = waits[for_all]
    if not len(waits):
        return until_ns
    # Of the waits that begin after a launch, the first one that returns.
    returns = np.minimum.accumulate(events.end_ns[waits][::-1])[::-1]
    slot = np.searchsorted(events.start_ns[waits], events.end_ns[launch], side="left")
    first_return = np.append(returns, NEVER)[slot]
    return np.where(is_linked, np.minimum(until_ns, first_return), until_ns)
