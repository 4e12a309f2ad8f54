"""Work that is missing: launches without events, and waits that outlast all that was recorded.

A launch without an event shows that something ran, a wait shows until when. A stream runs its work
in order, so lost work ran between the events that were launched before and after it. If a call
waited meanwhile, while nothing that was recorded ran, that work ran until the call returned.

A link that is missing is not an event that is missing: events without a launch are given to the
launches without an event, in order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.soundness.waits import NEVER, stream_work, waiting_calls
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, contains, join, last_before, union
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.soundness import Soundness
from tb_perfadvisor.trace.tables import Int32, Int64

LAUNCH = regex("LaunchKernel|LaunchCooperativeKernel|GraphLaunch")
"""Calls that always put work on the device. Copies within the host, and empty fills, do not."""
_BEGIN_CAPTURE = regex("StreamBeginCapture")
_END_CAPTURE = regex("StreamEndCapture")
_RUNTIME = regex(r"^(?:cuda|hip|cu)[A-Z]\w*Synchronize")
_HOST_FUNCTION = regex("LaunchHostFunc|StreamAddCallback")
TAIL_NS = 100_000
"""A wait returns within some 20 microseconds of the work it waits for, or when its thread runs
again."""
_LONG_TAIL_NS = 1_000_000
_SEVERAL = 3
_MUCH_SHARE = 0.1
"""Without any launch that lacks its event, waits prove missing work only if several of them last
longer than their work, for a good part of the recording: a thread may have been preempted."""
SAMPLED_SHARE = 0.02
"""Complete recordings have 5 % or more of the calls that the runtime numbers."""


def is_sampled(trace: Trace) -> bool:
    """Whether the file has only a sample of the calls of the device's runtime."""
    share = trace.source.recorded_calls_share
    return share is not None and share < SAMPLED_SHARE


def unanswered_launches(trace: Trace) -> Int32:
    """Rows of launches of kernels and graphs that lack their events, by start.

    Launches into a stream that is being captured run later, with the graph, so they don't count.
    """
    events, launches = trace.events, trace.rows(EventKind.LAUNCH)
    work = stream_work(trace)
    is_linked = events.launched_by[work] >= 0
    if not len(launches) or not is_linked.any():
        return launches[:0]
    is_seen = row_mask(len(events), events.launched_by[work[is_linked]])
    rows = launches[~is_seen[launches]]
    rows = rows[named(trace, rows, LAUNCH)]
    rows = rows[~is_captured(trace, rows)]
    return _without_unlinked(trace, rows, work[~is_linked])


def is_captured(trace: Trace, launches: Int32) -> NDArray[np.bool_]:
    """Whether launches lie between the start and the end of a capture."""
    if not len(launches):
        return np.zeros(0, dtype=np.bool_)
    events, calls = trace.events, trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    begins = events.start_ns[calls[named(trace, calls, _BEGIN_CAPTURE)]]
    ends = events.start_ns[calls[named(trace, calls, _END_CAPTURE)]]
    slot = np.searchsorted(ends, begins)
    closed = np.append(ends, NEVER)[slot]
    return contains(union(begins, closed), events.start_ns[launches])


def _without_unlinked(trace: Trace, launches: Int32, unlinked: Int32) -> Int32:
    """The launches without those whose events are there, without a link.

    Which event belongs to which launch is not known; the order tells how many are answered.
    """
    if not len(launches) or not len(unlinked):
        return launches
    kinds = trace.events.kind[unlinked]
    unlinked = unlinked[(kinds == EventKind.KERNEL) | (kinds == EventKind.COLLECTIVE)]
    # As many launches precede each event; it answers one that no earlier event has answered.
    preceding = np.searchsorted(trace.events.start_ns[launches], trace.events.start_ns[unlinked])
    more = np.arange(len(unlinked) - 1, -1, -1)
    answered = int(np.append(preceding + more, len(unlinked)).min())
    return launches[answered:]


def with_lost_work(trace: Trace, work: Int32) -> Soundness:
    """When the device worked, or may have worked, on something that was not recorded.

    `work` has the events on streams, by start.
    """
    events = trace.events
    busy = events.spans(work)
    if is_sampled(trace) or not len(busy):
        return Soundness()
    launches = unanswered_launches(trace)
    waits = waiting_calls(trace)
    begun_ns, return_ns = events.start_ns[waits], events.end_ns[waits]
    order = np.argsort(return_ns, kind="stable")
    waits, begun_ns, return_ns = waits[order], begun_ns[order], return_ns[order]
    before = last_before(busy[:, 0], return_ns)
    quiet_ns = np.maximum(begun_ns, np.where(before >= 0, busy[np.maximum(before, 0), 1], 0))
    tail_ns = return_ns - quiet_ns
    outlasts = tail_ns > TAIL_NS
    proven, holes = EMPTY, EMPTY
    if len(launches):
        last = last_before(return_ns[outlasts], events.start_ns[launches])
        pending = np.bincount(last + 1, minlength=int(outlasts.sum()) + 1)[:-1] > 0
        shown = np.flatnonzero(outlasts)[pending]
        proven = union(quiet_ns[shown], return_ns[shown])
        holes = _holes(trace, work, launches, return_ns[shown])
    several = _long_tails(trace, waits, tail_ns)
    proven = join(proven, union(quiet_ns[several], return_ns[several]))
    return Soundness(not_recorded=join(proven, holes), proven=proven, unanswered=len(launches))


def _holes(trace: Trace, work: Int32, launches: Int32, waited_ns: Int64) -> Intervals:
    """When lost work may have run: between what was launched before and after it.

    `work` has the events on streams and `launches` those whose events are missing, both by start.
    Calls that waited for such work returned at `waited_ns`, in order.
    """
    events = trace.events
    linked = work[events.launched_by[work] >= 0]
    launched_ns = events.start_ns[events.launched_by[linked]]
    order = np.argsort(launched_ns, kind="stable")
    # Of all events that were launched later, the first one that starts.
    first_ns = np.minimum.accumulate(events.start_ns[linked[order]][::-1])[::-1]
    begin_ns = events.start_ns[launches]
    slot = np.searchsorted(launched_ns[order], begin_ns, side="right")
    # The event that was launched just before is most likely on the same stream.
    earlier_ns = np.append(0, events.end_ns[linked[order]])[slot]
    later_ns = np.append(first_ns, NEVER)[slot]
    waited = np.append(waited_ns, NEVER)[np.searchsorted(waited_ns, begin_ns)]
    end_ns = np.minimum(later_ns, waited)
    last_ns = int(events.end_ns[work].max())
    # After the last event, the recording ended, or the launch of the lost work itself was last.
    end_ns = np.where(end_ns == NEVER, max(last_ns, int(events.end_ns[launches[-1]])), end_ns)
    return union(np.maximum(begin_ns, earlier_ns), end_ns)


def _long_tails(trace: Trace, waits: Int32, tail_ns: Int64) -> NDArray[np.intp]:
    """Waits of the runtime that outlast all work, if together they are a good part of the trace."""
    long = np.flatnonzero(tail_ns > _LONG_TAIL_NS)
    if len(long) < _SEVERAL:
        return long[:0]
    long = long[named(trace, waits[long], _RUNTIME)]
    calls = trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    if named(trace, calls, _HOST_FUNCTION).any():
        return long[:0]  # the device waits for a function of the host
    is_much = int(tail_ns[long].sum()) >= _MUCH_SHARE * trace.duration_ns
    return long if len(long) >= _SEVERAL and is_much else long[:0]
