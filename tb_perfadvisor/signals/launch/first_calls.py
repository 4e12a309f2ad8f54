"""What a program does once and the recording caught: loading code, searching, compiling.

None of it is how the program runs afterwards, so it must not be taken for the steady state.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.partial_steps import LOADS_CODE
from tb_perfadvisor.signals.core.steps.windows import fetch_before_work
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value, quantile
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    intersect,
    join,
    overlap_ns,
    single,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

SLOW_LAUNCH_NS = 50_000
"""A launch takes 3 to 15 microseconds, and a question about a kernel less."""
_SLOW_FACTOR = 5.0
"""Times the median launch of the recording, for slow hosts."""
MIN_SEARCH_NS = 10_000_000
"""The first call of a convolution takes this long only if the library tries several algorithms,
or loads them."""
_SEARCH_FACTOR = 10.0
_REGION_FACTOR = 3.0
"""Compiling a region takes seconds; a factor below that is the usual variation of calls."""
_MIN_CALLS = 3
"""The later calls show the usual time only if there are two."""
_MIN_REPEATS = 3
"""Later calls of a Python function, which any program may call with more or less to do."""
_FUNCTION_FACTOR = 10.0
_MIN_FUNCTION_NS = 1_000_000
"""Less is within what the interpreter and its allocator may take."""
_MIN_GENERATING_NS = 100_000_000
"""Compilers take a tenth of a second and more for a kernel."""
_RECORDED_SHARE = 0.1
"""If more of a gap is recorded, the events tell what the host did."""

_ASKING = regex(
    r"^(cu|hip|cuda)(FuncGetAttribute|FuncSetAttribute|FuncSetCacheConfig|GetSymbol|GetFuncBySymbol"
    r"|Occupancy)"
)
"""The first question about a kernel loads it (CUDA C++ Programming Guide, "Lazy Loading")."""
_GENERATED = regex(r"^triton_[a-z]{3,}_")
"""Kernels that Inductor generates, which exist only after it has compiled them."""
_BUILT_IN = regex("^<built-in ")
_SEARCHING = regex(r"^aten::(cudnn|miopen)_\w*convolution|^aten::convolution_backward$")
_TIMING = regex(r"EventSynchronize")
_MIN_CANDIDATES = 3
"""A convolution waits for the device only to time candidates, each by two events."""


class FirstCall(Enum):
    """A kind of work that happens once; the value says it to users."""

    FIRST_BATCH = "the first batch, for which the loader's processes start"
    FIRST_LAUNCH = "first launches of kernels, which load their code"
    LOADING = "calls that load device code"
    GENERATING = "compiling before the first launch of generated kernels"
    SEARCH = "first calls of convolutions, which search for the fastest algorithm"
    COMPILED_REGION = "first calls of compiled code"
    FUNCTION = "first calls of Python functions, which later calls do without"


class FirstCalls(Struct, frozen=True):
    """Idle time of the device in the used window that first calls cause."""

    by_kind: dict[FirstCall, Intervals]
    """Kinds may overlap. Those that take no time are left out."""

    @property
    def idle(self) -> Intervals:
        """All of it."""
        return join(EMPTY, *self.by_kind.values())


@memoized
def first_calls(signals: Signals) -> FirstCalls:
    """What the first calls cost that lie in the used window; nothing for a program on the CPU."""
    if signals.device.index is None or signals.trace.totals is not None:
        return FirstCalls({})
    window = signals.attribution
    idle = complement(signals.device.busy, window.window_start_ns, window.window_end_ns)
    found = {
        FirstCall.FIRST_BATCH: _first_batch(signals),
        FirstCall.FIRST_LAUNCH: _first_launches(signals),
        FirstCall.LOADING: _loads(signals),
        FirstCall.GENERATING: _before_generated_kernels(signals),
        FirstCall.SEARCH: _searches(signals),
        FirstCall.COMPILED_REGION: _compiled_regions(signals),
        FirstCall.FUNCTION: _first_functions(signals, idle),
    }
    clipped = {kind: intersect(intervals, idle) for kind, intervals in found.items()}
    return FirstCalls({kind: intervals for kind, intervals in clipped.items() if len(intervals)})


def _first_batch(signals: Signals) -> Intervals:
    """The wait for the first batch of a loader with processes, until the first work on it.

    It is known not to be the loader's rate only if no other fetch tells that rate.
    """
    fetch = fetch_before_work(signals.trace, signals.device)
    # Events of a device may have no length.
    if len(signals.steps) or not len(signals.device.busy):
        return EMPTY
    if fetch is None or not fetch.is_only or not fetch.has_processes:
        return EMPTY
    events = signals.trace.events
    return single(int(events.start_ns[fetch.row]), int(signals.device.busy[0, 0]))


def _first_launches(signals: Signals) -> Intervals:
    """Slow first launches of kernels, and the gaps that they end, until the work is queued."""
    trace, gaps = signals.trace, signals.attribution.idle
    events, rows = trace.events, signals.device.rows
    rows = rows[(events.kind[rows] == EventKind.KERNEL) & (events.launched_by[rows] >= 0)]
    launch = events.launched_by[rows]
    is_single = named(trace, launch, re.compile("LaunchKernel"))
    rows, launch = rows[is_single], launch[is_single]
    if len(rows) == 0:
        return EMPTY
    call_ns = events.duration_ns[launch]
    is_slow = call_ns >= max(SLOW_LAUNCH_NS, _SLOW_FACTOR * quantile(call_ns, 0.5))
    _, first = np.unique(events.name[rows], return_index=True)
    slow_first = launch[first][is_slow[first]]
    ended = is_in(gaps.launch_row, slow_first)
    before = union(gaps.start_ns[ended], gaps.queued_from_ns[ended])
    # Loading code holds up work that was launched before, too.
    return join(before, events.spans(slow_first))


def _loads(signals: Signals) -> Intervals:
    """Calls that load device code, and first questions about kernels, which do so, too."""
    trace, events = signals.trace, signals.trace.events
    calls = trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    asks = named(trace, calls, _ASKING) & (events.duration_ns[calls] >= SLOW_LAUNCH_NS)
    loads = calls[named(trace, calls, LOADS_CODE) | asks]
    return events.spans(loads)


def _before_generated_kernels(signals: Signals) -> Intervals:
    """Long gaps in which nothing is recorded, before the first launch of a generated kernel."""
    trace, gaps = signals.trace, signals.attribution.idle
    events, rows = trace.events, signals.device.rows
    rows = rows[named(trace, rows, _GENERATED)]
    _, first = np.unique(events.name[rows], return_index=True)
    long = gaps.end_ns - gaps.start_ns >= _MIN_GENERATING_NS
    chosen = np.flatnonzero(long & is_in(gaps.next_row, rows[first]))
    if not chosen.size:
        return EMPTY
    calls = trace.rows(*_HOST_CALLS)
    recorded = events.spans(calls)
    start_ns, end_ns = gaps.start_ns[chosen], gaps.end_ns[chosen]
    is_silent = overlap_ns(recorded, start_ns, end_ns) < _RECORDED_SHARE * (end_ns - start_ns)
    return union(start_ns[is_silent], end_ns[is_silent])


_HOST_CALLS = (
    EventKind.OPERATOR,
    EventKind.PYTHON,
    EventKind.LAUNCH,
    EventKind.RUNTIME,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
)


def _first_functions(signals: Signals, idle: Intervals) -> Intervals:
    """First calls of Python functions, if all later ones keep the device waiting far less.

    Not those that call themselves. Not those of built-in functions, which the same step calls with
    very different arguments. And not within steps: what happens once in each of them is no start.
    """
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(EventKind.PYTHON)
    rows = rows[events.track[rows] == signals.step_track]
    rows = rows[~named(trace, rows, _BUILT_IN)]
    if len(signals.steps) or len(rows) == 0:
        return EMPTY
    idle_ns = overlap_ns(idle, events.start_ns[rows], events.end_ns[rows])
    order = np.argsort(events.name[rows], kind="stable")
    first = np.flatnonzero(np.diff(events.name[rows][order], prepend=-2))
    calls = np.diff(np.append(first, len(rows)))
    of_first_ns = idle_ns[order][first]
    later_ns = idle_ns[order].copy()
    later_ns[first] = 0
    most_ns = np.maximum.reduceat(later_ns, first)
    is_once = (calls > _MIN_REPEATS) & (of_first_ns >= _MIN_FUNCTION_NS)
    is_once &= of_first_ns >= _FUNCTION_FACTOR * most_ns
    second = rows[order[np.minimum(first + 1, len(rows) - 1)]]
    is_once &= events.start_ns[second] >= events.end_ns[rows[order[first]]]
    once = rows[order[first[is_once]]]
    return events.spans(once)


def _searches(signals: Signals) -> Intervals:
    """First calls of convolutions: far longer than the others, or with waits between candidates."""
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[named(trace, rows, _SEARCHING)]
    waits = trace.rows(EventKind.SYNCHRONIZE)
    around = events.parent[waits[named(trace, waits, _TIMING)]]
    timed = np.bincount(around[around >= 0], minlength=len(events))[rows] >= _MIN_CANDIDATES
    return join(
        _slow_first(signals, rows, events.name[rows], _SEARCH_FACTOR, MIN_SEARCH_NS),
        events.spans(rows[timed]),
    )


def _compiled_regions(signals: Signals) -> Intervals:
    regions = compiled_regions(signals)
    return _slow_first(signals, regions.row, regions.frame, _REGION_FACTOR, 0)


def _slow_first(
    signals: Signals, rows: Int32, group: Int32, factor: float, min_ns: int
) -> Intervals:
    """The first call of each group, if it takes far longer than every later one."""
    events, slow = signals.trace.events, []
    for _, places in places_by_value(group):
        calls = rows[places]
        duration = events.duration_ns[calls]
        if len(calls) < _MIN_CALLS:
            continue
        if duration[0] >= max(factor * int(duration[1:].max()), min_ns):
            slow.append(calls[0])
    chosen = np.array(slow, dtype=np.int32)
    return events.spans(chosen)
