"""Host calls that took milliseconds because the operating system ran something else.

A thread that loses its core in the middle of a call continues where it was, so the call takes
longer by the time that another thread had the core. It may hit any call. It shows in calls that
have no other reason to take milliseconds: they do not wait for the device, allocate, compile or
load code, and their work does not depend on the size of their inputs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.host.debugging import garbage_collections
from tb_perfadvisor.signals.launch.delays import launches_pending
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    is_in,
    places_by_value,
    row_mask,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    crowded,
    intersect,
    join,
    minus,
    overlap_ns,
    union,
)
from tb_perfadvisor.trace.nesting import with_enclosing
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

_SHORTEST_NS = 1_000_000
"""Linux gives a thread a core for 0.75 to 6 milliseconds before another one gets its turn (kernel
documentation, "CFS Scheduler", and the defaults of `base_slice_ns`). Page faults and interrupts
take microseconds."""
_LONGER_THAN_USUAL = 20
"""A cold cache makes a call a few times slower."""
_FEWEST_CALLS = 10
"""The median of fewer calls says little about what is usual."""
_LONGEST_USUAL_NS = 200_000
"""Calls that usually take longer do work of their own, which may vary."""
_FEWEST_TRIVIAL = 3
"""One or two calls may have met a rare event, such as the move of a thread to another core."""
_GOOD_PART = 0.15
"""Trivial calls take about a third of the host time of eager operators. If they have less than half
of that share of the excess, the other calls have another reason to be slow."""
_MANY_PENDING = 512
"""A stream takes about a thousand launches, event records and copies. After that, a call waits for
the device."""

# Runtime calls that read or set some state, or append a marker to a stream.
_TRIVIAL_CALL = regex(
    r"^(?:cuda|cu|hip)(?:EventRecord(?:WithFlags)?|EventQuery|StreamWaitEvent|StreamQuery"
    r"|StreamIsCapturing|StreamGetCaptureInfo|StreamGetPriority|StreamGetDevice"
    r"|ThreadExchangeStreamCaptureMode|PeekAtLastError|GetLastError|[GS]etDevice"
    r"|DeviceGetAttribute|DeviceGetStreamPriorityRange|CtxGetCurrent|CtxGetDevice"
    r"|PointerGetAttributes?|FuncSetAttribute|FuncGetAttributes"
    r"|OccupancyMaxActiveBlocksPerMultiprocessor(?:WithFlags)?)(?:_v\d)?(?:_ptsz)?$"
)
# Operators that make a tensor from another one's memory, or get memory from the caching allocator,
# whose calls of the runtime are recorded.
_TRIVIAL_OPERATOR = regex(
    r"^aten::(?:view|view_as|_unsafe_view|_reshape_alias|reshape|reshape_as|as_strided_?|expand"
    r"|expand_as|t|transpose|permute|slice|select|narrow|split|split_with_sizes|chunk|unbind"
    r"|squeeze|unsqueeze|flatten|unflatten|detach_?|alias|movedim|swapaxes|diagonal|unfold"
    r"|view_as_real|view_as_complex|resolve_conj|resolve_neg|lift_fresh|result_type|set_"
    r"|empty|empty_like|empty_strided|new_empty|new_empty_strided)$"
)
_KERNEL_LAUNCH = regex(r"^(?:cuda|cu|hip)\w*Launch(?:Cooperative)?Kernel|^hipExtModuleLaunchKernel")
# Calls that load a kernel's code if they are the first to need it.
_LOADS_CODE = regex(r"Launch|^(?:cuda|cu|hip)(?:FuncSet|FuncGet|Occupancy)")


class PreemptedCalls(Struct, frozen=True):
    """Calls of the used window that lost their core; columns of shape (calls,), by start."""

    row: Int32
    excess_ns: Int64
    """Own time, without calls inside, beyond the median of the calls with this name."""
    idle_ns: Int64
    """Idle time of the device during the excess, if this thread launched what ended it."""
    is_trivial: NDArray[np.bool_]
    """Whether nothing else can have taken the time. The other calls dispatch operators or launch
    kernels, which seldom has another reason."""
    stalled: Intervals
    """The excess of all of them."""
    idle: Intervals
    """The idle time during the excess of all of them."""
    trivial_idle: Intervals
    """The idle time during the excess of the trivial ones."""

    def __len__(self) -> int:
        """Number of calls."""
        return len(self.row)


@memoized
def preempted_calls(signals: Signals) -> PreemptedCalls:
    """The calls that took much longer than others of their name although nothing held them up.

    None if trivial calls are not among them often enough: other processes stop whatever runs.
    """
    events = signals.trace.events
    row, excess_ns, is_trivial = _stalled_calls(signals)
    trivial_ns = int(excess_ns[is_trivial].sum())
    if is_trivial.sum() < _FEWEST_TRIVIAL:
        is_kept = np.zeros(len(row), dtype=bool)
    elif trivial_ns < _GOOD_PART * int(excess_ns.sum()):
        is_kept = is_trivial
    else:
        is_kept = np.ones(len(row), dtype=bool)
    row, excess_ns, is_trivial = row[is_kept], excess_ns[is_kept], is_trivial[is_kept]
    if not len(row):
        return PreemptedCalls(row, excess_ns, excess_ns, is_trivial, EMPTY, EMPTY, EMPTY)
    idle_ns = np.zeros(len(row), dtype=np.int64)
    idle, trivial_idle = [EMPTY], [EMPTY]
    start_ns, end_ns, call = _excess_spans(signals.trace, row, excess_ns)
    gaps_by_track = dict(places_by_value(_launching_threads(signals)))
    for track, spans in places_by_value(events.track[row[call]]):
        if track not in gaps_by_track:
            continue
        waiting = _idle_in(signals, gaps_by_track[track])
        start, end = start_ns[spans], end_ns[spans]
        inside = overlap_ns(waiting, start, end)
        np.add.at(idle_ns, call[spans], inside)
        for parts, wanted in (
            (idle, inside > 0),
            (trivial_idle, (inside > 0) & is_trivial[call[spans]]),
        ):
            parts.append(intersect(waiting, union(start[wanted], end[wanted])))
    return PreemptedCalls(
        row=row,
        excess_ns=excess_ns,
        idle_ns=idle_ns,
        is_trivial=is_trivial,
        stalled=union(start_ns, end_ns),
        idle=join(*idle),
        trivial_idle=join(*trivial_idle),
    )


def _stalled_calls(signals: Signals) -> tuple[Int32, Int64, NDArray[np.bool_]]:
    """Calls that took too long for no reason, by how much, and which of them are trivial."""
    events, window = signals.trace.events, signals.attribution
    rows, is_trivial = _short_calls(signals)
    names = events.name[rows[events.duration_ns[rows] >= _SHORTEST_NS]]
    may_be_long = is_in(events.name[rows], distinct(names))
    rows, is_trivial = rows[may_be_long], is_trivial[may_be_long]
    own_ns = _own_ns(signals.trace, rows)
    names, inverse = unique_inverse(events.name[rows])
    count = np.bincount(inverse, minlength=len(names))
    usual_ns = _medians(own_ns, inverse, count)[inverse]
    is_long = (own_ns >= _SHORTEST_NS) & (own_ns > _LONGER_THAN_USUAL * usual_ns)
    is_long &= (usual_ns <= _LONGEST_USUAL_NS) & (count[inverse] >= _FEWEST_CALLS)
    is_long &= events.start_ns[rows] >= window.window_start_ns
    is_long &= events.end_ns[rows] <= window.window_end_ns
    at = np.flatnonzero(is_long)
    if at.size:
        at = at[~_is_held_up(signals, rows[at])]
    return rows[at], (own_ns[at] - usual_ns[at]).astype(np.int64), is_trivial[at]


def _short_calls(signals: Signals) -> tuple[Int32, NDArray[np.bool_]]:
    """Calls whose own time is short by nature, by start, and which of them are trivial.

    An operator that launches kernels dispatches in constant time. On the host, operators take as
    long as their inputs are large.
    """
    trace = signals.trace
    rows = trace.rows(EventKind.OPERATOR, EventKind.RUNTIME, EventKind.LAUNCH)
    name = trace.events.name[rows]
    texts = [(i, trace.strings[i]) for i in distinct(name).tolist()]
    is_trivial = is_in(name, [i for i, text in texts if _TRIVIAL_CALL.match(text)])
    is_short = is_in(name, [i for i, text in texts if _KERNEL_LAUNCH.match(text)])
    if not signals.device.is_host_only:
        operators = [i for i, text in texts if _TRIVIAL_OPERATOR.match(text)]
        is_trivial |= is_in(name, operators)
        is_operator = trace.events.kind[rows] == EventKind.OPERATOR
        is_short |= is_operator & row_mask(len(trace.events), _around_kernels(signals))[rows]
    is_short |= is_trivial
    return rows[is_short], is_trivial[is_short]


def _around_kernels(signals: Signals) -> Int32:
    """Events around launches of kernels."""
    trace = signals.trace
    rows = trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
    launches = trace.events.launched_by[rows]
    around = with_enclosing(trace.events.parent, launches[launches >= 0])
    return np.flatnonzero(around).astype(np.int32)


def _is_held_up(signals: Signals, rows: Int32) -> NDArray[np.bool_]:
    """Whether calls have another reason to take long; shape (calls,).

    These are the first launch of a kernel, whose code is loaded then; a stream that takes no more
    work; the profiler, which stops calls to swap its buffers; the compiler, which calls operators
    to trace them; and calls of another thread that hold the runtime's lock.
    """
    trace = signals.trace
    events = trace.events
    names = distinct(events.name[rows]).tolist()
    loading = [i for i in names if _LOADS_CODE.search(trace.strings[i])]
    held = is_in(events.name[rows], loading) | row_mask(len(events), _around_kernels(signals))[rows]
    held &= _comes_first(signals, rows)
    held |= launches_pending(signals, events.start_ns[rows]) >= _MANY_PENDING
    collecting, _ = garbage_collections(signals)
    others = trace.rows(EventKind.OVERHEAD, EventKind.COMPILE)
    held |= _is_mostly_during(trace, rows, np.concatenate((others, collecting)))
    calls = trace.rows(
        EventKind.LAUNCH, EventKind.RUNTIME, EventKind.ALLOCATE, EventKind.SYNCHRONIZE
    )
    names = distinct(events.name[calls]).tolist()
    trivial = [i for i in names if _TRIVIAL_CALL.match(trace.strings[i])]
    locking: Int32 = calls[~is_in(events.name[calls], trivial)]
    is_call = events.kind[rows] != EventKind.OPERATOR
    called = np.flatnonzero(is_call)
    start, end = events.start_ns[rows[called]], events.end_ns[rows[called]]
    inside_ns = np.zeros(len(called), dtype=np.int64)
    running = {
        track: _time(trace, locking[places])
        for track, places in places_by_value(events.track[locking])
    }
    # Other threads run where several threads do, or one that is not the call's own.
    several = crowded(*running.values())
    alone = minus(join(*running.values()), several)
    inside_ns += overlap_ns(several, start, end) + overlap_ns(alone, start, end)
    for track, places in places_by_value(events.track[rows[called]]):
        own = intersect(running.get(track, EMPTY), alone)
        inside_ns[places] -= overlap_ns(own, start[places], end[places])
    held[called] |= 2 * inside_ns > end - start
    return held


def _is_mostly_during(trace: Trace, rows: Int32, others: Int32) -> NDArray[np.bool_]:
    """Whether other events run for more than half of the time of calls; shape (calls,)."""
    events = trace.events
    inside_ns = overlap_ns(_time(trace, others), events.start_ns[rows], events.end_ns[rows])
    mostly: NDArray[np.bool_] = 2 * inside_ns > events.duration_ns[rows]
    return mostly


def _time(trace: Trace, rows: Int32) -> Intervals:
    return trace.events.spans(rows)


def _comes_first(signals: Signals, rows: Int32) -> NDArray[np.bool_]:
    """Whether the next kernel that a call's thread launches runs for the first time."""
    events, kernels = signals.trace.events, signals.trace.kernels.row
    launched = kernels[events.launched_by[kernels] >= 0]
    launch = events.launched_by[launched]
    order = np.argsort(launch, kind="stable")
    launched, launch = launched[order], launch[order]
    _, first = np.unique(events.name[launched], return_index=True)
    is_first = row_mask(len(launched), first)
    result = np.zeros(len(rows), dtype=bool)
    launches_by_track = dict(places_by_value(events.track[launch]))
    for track, of_track in places_by_value(events.track[rows]):
        on_track = launches_by_track.get(track)
        if on_track is None:
            continue
        # Rows are in order of start: a call's own launch is the call itself or comes after it.
        slot = np.searchsorted(launch[on_track], rows[of_track])
        found = slot < len(on_track)
        result[of_track[found]] = is_first[on_track[slot[found]]]
    return result


def _launching_threads(signals: Signals) -> Int32:
    """The track that launches the work after each gap."""
    launch = signals.attribution.idle.launch_row
    return np.where(launch >= 0, signals.trace.events.track[launch], signals.step_track)


def _idle_in(signals: Signals, gaps: Int64) -> Intervals:
    """Idle time that the host causes in some gaps."""
    idle = signals.attribution.idle
    return intersect(union(idle.start_ns[gaps], idle.end_ns[gaps]), signals.host_idle)


def _own_ns(trace: Trace, rows: Int32) -> Int64:
    """Time of calls without the events inside them; shape (calls,)."""
    events = trace.events
    own_ns = np.array(events.duration_ns)
    inside = np.flatnonzero(events.parent >= 0)
    np.subtract.at(own_ns, events.parent[inside], events.duration_ns[inside])
    return own_ns[rows]


def _excess_spans(trace: Trace, rows: Int32, excess_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """When calls lost their core: starts, ends, and the call of each span.

    When exactly is unknown. The last part of a call's own time is taken, because that is when the
    device has finished what was queued.
    """
    events = trace.events
    inside = np.flatnonzero(is_in(events.parent, rows))
    call = np.concatenate((np.arange(len(rows)), np.searchsorted(rows, events.parent[inside])))
    start_ns = np.concatenate((events.start_ns[rows], events.end_ns[inside]))
    end_ns = np.concatenate((events.end_ns[rows], events.start_ns[inside]))
    # Events inside a call don't overlap, so that starts and ends have the same order.
    start_ns = start_ns[np.lexsort((start_ns, call))]
    end_ns, call = end_ns[np.lexsort((end_ns, call))], np.sort(call)
    length_ns = np.maximum(end_ns - start_ns, 0)
    until_ns = np.cumsum(length_ns)
    last = np.flatnonzero(np.diff(call, append=len(rows)))
    later_ns = until_ns[last][call] - until_ns
    start_ns = np.maximum(start_ns, end_ns - np.maximum(excess_ns[call] - later_ns, 0))
    is_span = end_ns > start_ns
    return start_ns[is_span], end_ns[is_span], call[is_span]


def _medians(values: Int64, group: Int64, count: Int64) -> Float64:
    """The median of each group's values, from the group of each value and their sizes."""
    ordered = values[np.lexsort((values, group))]
    begin = np.cumsum(count) - count
    medians: Float64 = (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2]) / 2
    return medians
