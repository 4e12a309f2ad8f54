"""Jitted functions that a Python loop calls many times in each step of a program on the CPU."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.steps.jitted_calls import FunctionCalls, calls_by_function
from tb_perfadvisor.signals.host.idle_owners import OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.launch.gaps import stretched_ns
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, join, union
from tb_perfadvisor.trace.tables import Int32

_MANY_PER_STEP: Final = 10
"""A step may call a few functions: for data, gradients, the update and metrics."""
_LONGEST_CALL_NS: Final = 2_000_000
"""A program that runs for longer pays for being called."""
_LONGEST_PYTHON_NS: Final = 5_000_000
"""Python between two calls, on a busy machine; as for eager operators."""
_TWO_CORES: Final = 2
"""One for the calls, and one for the operations."""


class LoopedCalls(Struct, frozen=True):
    """The calls of the used steps, if there are many."""

    functions: tuple[str, ...]
    """Those called in a loop, the one with most calls first."""
    rows: Int32
    idle: Intervals
    """When no operation runs, in these calls and between them."""
    sharing: Intervals
    """When a call prepares the next run on a core that the run before needs."""
    loops: Intervals
    """All of that, and the operations meanwhile."""


_NONE: Final = LoopedCalls((), np.empty(0, dtype=np.int32), EMPTY, EMPTY, EMPTY)


@memoized
def looped_calls(signals: Signals) -> LoopedCalls:
    """Short programs of JAX on the CPU that are called ten times per step or more."""
    trace, count = signals.trace, signals.steps.count
    if trace.source.framework != "jax" or not signals.device.is_host_only or not count:
        return _NONE
    longest_ns = stretched_ns(_LONGEST_CALL_NS, trace)
    found = []
    for calls in calls_by_function(trace):
        if calls.total_ns <= longest_ns * len(calls.rows):
            own = signals.steps.own(calls.rows)
            if len(own) >= _MANY_PER_STEP * count:
                found.append(FunctionCalls(calls.function, own, calls.total_ns))
    if not found:
        return _NONE
    found.sort(key=lambda calls: -len(calls.rows))
    events = trace.events
    rows = np.sort(np.concatenate([calls.rows for calls in found]))
    spans = union(events.start_ns[rows], events.end_ns[rows])
    gap_ns = stretched_ns(_LONGEST_PYTHON_NS, trace)
    near = union(spans[:, 0] - gap_ns, spans[:, 1] + gap_ns)
    free = idle_without(signals, *OVERRIDING, IdleOwner.HOST_CALLBACK)
    idle = intersect(free, near)
    idle = idle[idle[:, 1] - idle[:, 0] <= gap_ns]
    working = signals.attribution.intervals[Cause.HOST_COMPUTE]
    cores = trace.facts.machine.usable_cores
    sharing = intersect(spans, working) if cores is not None and cores < _TWO_CORES else EMPTY
    loops = join(idle, intersect(working, near))
    return LoopedCalls(tuple(each.function for each in found), rows, idle, sharing, loops)
