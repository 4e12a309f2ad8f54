"""What the host was doing: the states of its threads, and the work of a CPU-only capture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    join,
    minus,
    union,
)
from tb_perfadvisor.trace.tables import Int32

_ANY = -2
"""Stands for all threads."""
_THREAD_STATES = (
    (Cause.COMPILING, (EventKind.COMPILE,)),
    (Cause.ALLOCATING, (EventKind.ALLOCATE,)),
    (Cause.SYNCHRONIZATION, (EventKind.SYNCHRONIZE,)),
    (Cause.LAUNCHING, (EventKind.LAUNCH, EventKind.RUNTIME)),
    (Cause.FRAMEWORK, (EventKind.OPERATOR, EventKind.HOST_COLLECTIVE)),
    (Cause.PYTHON, (EventKind.PYTHON,)),
)


def judge(
    trace: Trace,
    idle_by_track: Mapping[int, Intervals],
    step_track: int,
    between_steps: Intervals,
    parts: dict[Cause, Intervals],
) -> None:
    """Split idle time by what threads were doing, in order of precedence.

    Idle time is disjoint, each for the thread that ended it; the thread that runs the steps is
    judged as well. `parts` receives the time of each cause.
    """
    found: dict[Cause, list[Intervals]] = {cause: [part] for cause, part in parts.items()}
    states = _ThreadStates(trace)
    for track, unassigned in idle_by_track.items():
        for cause in (Cause.INPUT, Cause.BETWEEN_STEPS, *(cause for cause, _ in _THREAD_STATES)):
            if len(unassigned) == 0:
                break
            if cause is Cause.BETWEEN_STEPS:
                part = intersect(unassigned, between_steps)
            else:
                part = intersect(unassigned, states.of(cause, track))
                if track != step_track:
                    part = join(part, intersect(unassigned, states.of(cause, step_track)))
            if len(part):
                found[cause].append(part)
                unassigned = minus(unassigned, part)
        found[Cause.UNEXPLAINED].append(unassigned)
    parts.update({cause: join(*pieces) for cause, pieces in found.items()})


class _ThreadStates:
    """When each thread is in each state. Threads are looked up, since there may be many."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        kinds = {Cause.INPUT: (EventKind.INPUT_WAIT,), **dict(_THREAD_STATES)}
        self._rows: dict[Cause, dict[int, Int32]] = {}
        for cause, wanted in kinds.items():
            rows = trace.rows(*wanted)
            tracks = trace.events.track[rows]
            # See `input_waits`.
            if cause is Cause.INPUT and trace.source.framework == "tensorflow":
                tracks = np.full(len(rows), _ANY, dtype=np.int32)
            self._rows[cause] = {track: rows[places] for track, places in places_by_value(tracks)}
        self._known: dict[tuple[Cause, int], Intervals] = {}

    def of(self, cause: Cause, track: int) -> Intervals:
        """When a thread is in a state."""
        by_track = self._rows[cause]
        if _ANY in by_track:
            track = _ANY
        if (rows := by_track.get(track)) is None:
            return EMPTY
        if (cause, track) not in self._known:
            events = self._trace.events
            self._known[cause, track] = events.spans(rows)
        return self._known[cause, track]


def states_of(trace: Trace, kinds: tuple[EventKind, ...], tracks: tuple[int, ...]) -> Intervals:
    """When any of the threads is inside an event of one of the kinds."""
    rows = trace.rows(*kinds)
    rows = rows[is_in(trace.events.track[rows], tracks)]
    return trace.events.spans(rows)


def input_waits(trace: Trace, tracks: tuple[int, ...]) -> Intervals:
    """When the threads wait for input.

    TensorFlow's executor fetches on any free thread of its pool, so there fetches on all threads
    count.
    """
    rows = trace.rows(EventKind.INPUT_WAIT)
    if trace.source.framework != "tensorflow":
        rows = rows[is_in(trace.events.track[rows], tracks)]
    return trace.events.spans(rows)


_WAITS_FOR_PROGRAM = "ThunkExecutor::Execute (wait for completion)"
"""XLA's CPU client is in this event while its thread pool runs a program. Large matrix products
are split over the pool, and no other event covers their parts (openxla/xla,
xla/backends/cpu/runtime)."""


def running_programs(trace: Trace) -> Intervals:
    """When XLA programs run on the CPU, even if no event names the operation that runs."""
    if _WAITS_FOR_PROGRAM not in trace.strings:
        return EMPTY
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    rows = rows[events.name[rows] == trace.strings.index(_WAITS_FOR_PROGRAM)]
    return events.spans(rows)


_CLOSE_NS = 100_000
"""Events less than a tenth of a millisecond apart belong together: the executor works in
between."""


def first_fetches(trace: Trace, steps: Steps, work: Intervals) -> Intervals:
    """The first fetch of each step of a TensorFlow program on the CPU, if the step waits for it.

    TensorFlow fetches in the graph, and its executor runs beside the fetch what needs no input:
    variables, random numbers. Without the wait, these operators would run beside others. So the
    step waits for the fetch all along, if it ends after everything that runs beside it. XProf
    counts it as input, too.

    The step's operators run in `work`.
    """
    fetches = _together(input_waits(trace, ()))
    if trace.source.framework != "tensorflow" or not len(fetches) or not len(steps):
        return EMPTY
    slot = np.searchsorted(fetches[:, 0], steps.host_start_ns)
    in_step = slot < len(fetches)
    in_step[in_step] = fetches[slot[in_step], 0] < steps.host_end_ns[in_step]
    first = fetches[slot[in_step]]
    beside = _together(work)
    outlasts = contains(beside, first[:, 1])
    row = np.searchsorted(beside[:, 0], first[:, 1], side="right") - 1
    end = first[:, 1].copy()
    end[outlasts] = np.minimum(beside[row[outlasts], 0], end[outlasts])
    return union(first[:, 0], end)


def _together(intervals: Intervals) -> Intervals:
    """The intervals without the short gaps between them."""
    wider = union(intervals[:, 0], intervals[:, 1] + _CLOSE_NS)
    return np.column_stack((wider[:, 0], wider[:, 1] - _CLOSE_NS))
