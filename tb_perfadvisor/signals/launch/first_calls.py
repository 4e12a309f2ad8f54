"""What a program does once and the recording caught: loading code, searching, compiling.

None of it is how the program runs afterwards, so it must not be taken for the steady state.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.event_names import named
from tb_perfadvisor.signals.core.steps.partial_steps import LOADS_CODE
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    intersect,
    join,
    union,
)
from tb_perfadvisor.trace.tables import Int32

SLOW_LAUNCH_NS = 50_000
"""A launch takes 3 to 15 microseconds."""
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

_SEARCHING = re.compile(r"^aten::(cudnn|miopen)_\w*convolution|^aten::convolution_backward$")


class FirstCall(Enum):
    """A kind of work that happens once; the value says it to users."""

    FIRST_LAUNCH = "first launches of kernels, which load their code"
    LOADING = "calls that load device code"
    SEARCH = "first calls of convolutions, which search for the fastest algorithm"
    COMPILED_REGION = "first calls of compiled code"


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
    events, window = signals.trace.events, signals.attribution
    calls = signals.trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    loads = calls[named(signals.trace, calls, LOADS_CODE)]
    idle = complement(signals.device.busy, window.window_start_ns, window.window_end_ns)
    found = {
        FirstCall.FIRST_LAUNCH: _before_first_launches(signals),
        FirstCall.LOADING: union(events.start_ns[loads], events.end_ns[loads]),
        FirstCall.SEARCH: _searches(signals),
        FirstCall.COMPILED_REGION: _compiled_regions(signals),
    }
    clipped = {kind: intersect(intervals, idle) for kind, intervals in found.items()}
    return FirstCalls({kind: intervals for kind, intervals in clipped.items() if len(intervals)})


def _before_first_launches(signals: Signals) -> Intervals:
    """Gaps that end with the slow first launch of a kernel, until its work is queued."""
    trace, gaps = signals.trace, signals.attribution.idle
    events, rows = trace.events, signals.device.rows
    rows = rows[(events.kind[rows] == EventKind.KERNEL) & (events.launched_by[rows] >= 0)]
    launch = events.launched_by[rows]
    is_single = named(trace, launch, re.compile("LaunchKernel"))
    rows, launch = rows[is_single], launch[is_single]
    if len(rows) == 0:
        return EMPTY
    call_ns = events.duration_ns[launch]
    is_slow = call_ns >= max(SLOW_LAUNCH_NS, _SLOW_FACTOR * float(np.median(call_ns)))
    _, first = np.unique(events.name[rows], return_index=True)
    slow_first = launch[first][is_slow[first]]
    ended = is_in(gaps.launch_row, slow_first)
    return union(gaps.start_ns[ended], gaps.queued_from_ns[ended])


def _searches(signals: Signals) -> Intervals:
    """First calls of convolutions that take far longer than the others."""
    trace = signals.trace
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[named(trace, rows, _SEARCHING)]
    return _slow_first(signals, rows, trace.events.name[rows], _SEARCH_FACTOR, MIN_SEARCH_NS)


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
    return union(events.start_ns[chosen], events.end_ns[chosen])
