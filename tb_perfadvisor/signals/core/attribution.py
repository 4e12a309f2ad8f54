"""Exclusive attribution: every nanosecond of the used window has exactly one cause.

Device time goes first: compute (lowest precision first), then communication, then copies.
The rest is idle. The cause of a gap is looked up on the thread that launched the next device
event: *queued* if that event was launched before the gap began, otherwise what the thread was
doing, in the order of `Cause`. Without launch records, the step's thread is used.

On a CPU-only capture, the host's operators take the place of device work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps import Steps
from tb_perfadvisor.trace import EventKind, Precision, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    complement,
    intersect,
    join,
    minus,
    overlap_ns,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64


class Cause(Enum):
    """Causes in order of precedence: where several apply, the first one gets the time."""

    COMPUTE_8 = "compute-8"
    COMPUTE_16 = "compute-16"
    COMPUTE_32 = "compute-32"
    COMPUTE_64 = "compute-64"
    COMPUTE_UNKNOWN = "compute-unknown"
    HOST_COMPUTE = "host-compute"
    COMMUNICATION = "communication"
    COPIES = "copies"
    QUEUED = "queued"
    INPUT = "input"
    BETWEEN_STEPS = "between-steps"
    COMPILING = "compiling"
    ALLOCATING = "allocating"
    SYNCHRONIZATION = "synchronization"
    LAUNCHING = "launching"
    FRAMEWORK = "framework"
    PYTHON = "python"
    UNEXPLAINED = "unexplained"


HOST_CAUSED = (
    Cause.SYNCHRONIZATION,
    Cause.LAUNCHING,
    Cause.FRAMEWORK,
    Cause.PYTHON,
    Cause.UNEXPLAINED,
)
"""Idle that the host causes in the middle of a step."""

LABELS: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.COMPUTE_8: "Compute, 8-bit",
        Cause.COMPUTE_16: "Compute, 16-bit",
        Cause.COMPUTE_32: "Compute, 32-bit",
        Cause.COMPUTE_64: "Compute, 64-bit",
        Cause.COMPUTE_UNKNOWN: "Compute, precision unknown",
        Cause.HOST_COMPUTE: "Operators on the host",
        Cause.COMMUNICATION: "Exposed communication",
        Cause.COPIES: "Exposed copies",
        Cause.QUEUED: "Idle, work queued",
        Cause.INPUT: "Waiting for input",
        Cause.BETWEEN_STEPS: "Between steps",
        Cause.COMPILING: "Compiling",
        Cause.ALLOCATING: "Allocating memory",
        Cause.SYNCHRONIZATION: "Inside a synchronization",
        Cause.LAUNCHING: "Launching",
        Cause.FRAMEWORK: "Framework overhead",
        Cause.PYTHON: "Python",
        Cause.UNEXPLAINED: "Unexplained",
    }
)

COMPUTE = (
    Cause.COMPUTE_8,
    Cause.COMPUTE_16,
    Cause.COMPUTE_32,
    Cause.COMPUTE_64,
    Cause.COMPUTE_UNKNOWN,
)
LAUNCH_LATENCY_NS = 20_000
"""From the return of a launch to the kernel's start: 2-10 microseconds on an idle GPU (NVIDIA,
"CUDA Graphs" developer documentation, measured launch latencies), twice that with margin."""
BUSY = (*COMPUTE, Cause.COMMUNICATION, Cause.COPIES)
OF_PRECISION = {
    Precision.BITS_8: Cause.COMPUTE_8,
    Precision.BITS_16: Cause.COMPUTE_16,
    Precision.BITS_32: Cause.COMPUTE_32,
    Precision.BITS_64: Cause.COMPUTE_64,
    Precision.UNKNOWN: Cause.COMPUTE_UNKNOWN,
}
_THREAD_STATES = (
    (Cause.COMPILING, (EventKind.COMPILE,)),
    (Cause.ALLOCATING, (EventKind.ALLOCATE,)),
    (Cause.SYNCHRONIZATION, (EventKind.SYNCHRONIZE,)),
    (Cause.LAUNCHING, (EventKind.LAUNCH, EventKind.RUNTIME)),
    (Cause.FRAMEWORK, (EventKind.OPERATOR, EventKind.HOST_COLLECTIVE)),
    (Cause.PYTHON, (EventKind.PYTHON,)),
)


class Attribution(Struct, frozen=True):
    """The used window, split by cause. The intervals are disjoint and cover it exactly."""

    intervals: Mapping[Cause, Intervals]
    window_start_ns: int
    window_end_ns: int
    step_total_ns: Mapping[Cause, Int64]
    """Per used step; shape (used,)."""
    idle: Idle

    @property
    def window_ns(self) -> int:
        """Length of the used window."""
        return self.window_end_ns - self.window_start_ns

    def total_ns(self, *causes: Cause) -> int:
        """Total time of some causes in the window."""
        return sum(total_ns(self.intervals[cause]) for cause in causes)

    def share(self, *causes: Cause) -> float | None:
        """Share of the window that some causes take; None for an empty window."""
        return self.total_ns(*causes) / self.window_ns if self.window_ns else None

    def of(self, *causes: Cause) -> Intervals:
        """The intervals of some causes together."""
        return join(*(self.intervals[cause] for cause in causes))


class Idle(Struct, frozen=True):
    """Gaps in the device's work within the used window, and what ended them.

    Columns have shape (gaps,); rows are -1 for none.
    """

    start_ns: Int64
    end_ns: Int64
    next_row: Int32
    """The device event that ended the gap."""
    launch_row: Int32
    """The runtime call that launched it."""
    is_queued: NDArray[np.bool_]


def attribute(
    trace: Trace,
    timeline: DeviceTimeline,
    steps: Steps,
    precision: NDArray[np.uint8],
    between_steps: Intervals,
    step_track: int,
) -> Attribution:
    """Split the used window by cause.

    Args:
        trace: The trace.
        timeline: The device that stands for the rank.
        steps: The steps; their window is split.
        precision: Effective `Precision` of `timeline.rows`; shape (rows,).
        between_steps: Where no step code runs.
        step_track: The host thread that runs the steps; -1 when unknown.
    """
    start, end = steps.window_start_ns, steps.window_end_ns
    parts: dict[Cause, Intervals] = dict.fromkeys(Cause, EMPTY)
    if timeline.index is not None:
        unassigned = _device_time(trace, timeline, precision, single(start, end), parts)
        idle = _idle(trace, timeline, start, end)
        parts[Cause.INPUT] = intersect(unassigned, timeline.waits)
        unassigned = minus(unassigned, parts[Cause.INPUT])
        _judge_idle(trace, idle, unassigned, between_steps, step_track, parts)
    else:
        unassigned = _host_time(trace, step_track, single(start, end), parts)
        idle = _gaps(unassigned)
        _judge(trace, unassigned, (step_track,), between_steps, parts)
    return Attribution(
        intervals=MappingProxyType(parts),
        window_start_ns=start,
        window_end_ns=end,
        step_total_ns=MappingProxyType(
            {cause: overlap_ns(part, steps.start_ns, steps.end_ns) for cause, part in parts.items()}
        ),
        idle=idle,
    )


def _device_time(
    trace: Trace,
    timeline: DeviceTimeline,
    precision: NDArray[np.uint8],
    window: Intervals,
    parts: dict[Cause, Intervals],
) -> Intervals:
    """Give the device's work its causes; return the idle time."""
    events, rows = trace.events, timeline.rows
    kind = events.kind[rows]
    is_compute = kind == EventKind.KERNEL
    rows_by_cause = [
        (cause, rows[is_compute & (precision == width)]) for width, cause in OF_PRECISION.items()
    ]
    rows_by_cause += [
        (Cause.COMMUNICATION, rows[kind == EventKind.COLLECTIVE]),
        (Cause.COPIES, rows[(kind == EventKind.COPY) | (kind == EventKind.MEMSET)]),
    ]
    idle = window
    for cause, cause_rows in rows_by_cause:
        part = intersect(idle, union(events.start_ns[cause_rows], events.end_ns[cause_rows]))
        parts[cause] = part
        idle = minus(idle, part)
    return idle


def _idle(trace: Trace, timeline: DeviceTimeline, start_ns: int, end_ns: int) -> Idle:
    """The gaps between the device's events, with what ended each.

    A gap inside a container, such as an XLA loop, is a gap like any other.
    """
    events, busy = trace.events, timeline.busy
    first = min(start_ns, int(busy[0, 0])) if len(busy) else start_ns
    last = max(end_ns, int(busy[-1, 1])) if len(busy) else end_ns
    gaps = complement(busy, first, last)
    starts = events.start_ns[timeline.rows]
    # `rows` are sorted by start: the first one that starts at a gap's end or later ended it.
    slot = np.searchsorted(starts, gaps[:, 1], side="left")
    in_range = slot < len(starts)
    next_row = np.where(in_range, timeline.rows[np.minimum(slot, len(starts) - 1)], -1)
    launch = np.where(next_row >= 0, events.launched_by[next_row], -1)
    knows_launches = bool((events.launched_by[timeline.rows] >= 0).any())
    if knows_launches:
        # An event that was launched before the gap began waited for the device, not for the host.
        # An event without a launch was launched before the recording began.
        launched_at = np.where(launch >= 0, events.start_ns[launch], np.iinfo(np.int64).min)
        queued = (next_row >= 0) & (launched_at < gaps[:, 0])
    else:
        queued = np.zeros(len(gaps), dtype=np.bool_)
    keep = (gaps[:, 1] > start_ns) & (gaps[:, 0] < end_ns)
    return Idle(
        start_ns=np.maximum(gaps[keep, 0], start_ns),
        end_ns=np.minimum(gaps[keep, 1], end_ns),
        next_row=next_row[keep].astype(np.int32),
        launch_row=launch[keep].astype(np.int32),
        is_queued=queued[keep],
    )


def _gaps(idle: Intervals) -> Idle:
    none = np.full(len(idle), -1, dtype=np.int32)
    return Idle(idle[:, 0], idle[:, 1], none, none, np.zeros(len(idle), dtype=np.bool_))


def _judge_idle(
    trace: Trace,
    idle: Idle,
    unassigned: Intervals,
    between_steps: Intervals,
    step_track: int,
    parts: dict[Cause, Intervals],
) -> None:
    """Give idle gaps their causes, judging the thread that launched the event at the gap's end."""
    events = trace.events
    queued = idle.is_queued
    parts[Cause.QUEUED] = intersect(unassigned, union(idle.start_ns[queued], idle.end_ns[queued]))
    unassigned = minus(unassigned, parts[Cause.QUEUED])
    # From the start of that launch call on, the gap counts as launching. Once the call has
    # returned and the launch latency has passed, the work counts as queued.
    launch = idle.launch_row
    launched = (launch >= 0) & ~queued
    begun = np.where(launched, np.maximum(events.start_ns[launch], idle.start_ns), idle.end_ns)
    arrived = np.minimum(events.end_ns[launch] + LAUNCH_LATENCY_NS, idle.end_ns)
    in_launch = intersect(unassigned, union(begun[launched], arrived[launched]))
    unassigned = minus(unassigned, in_launch)
    after_launch = intersect(
        unassigned, union(np.maximum(arrived, begun)[launched], idle.end_ns[launched])
    )
    parts[Cause.QUEUED] = join(parts[Cause.QUEUED], after_launch)
    unassigned = minus(unassigned, after_launch)
    thread = np.where(launch >= 0, events.track[launch], step_track)
    for track in distinct(thread[~queued]).tolist():
        on_thread = ~queued & (thread == track)
        piece = intersect(unassigned, union(idle.start_ns[on_thread], idle.end_ns[on_thread]))
        _judge(trace, piece, (track, step_track), between_steps, parts)
        unassigned = minus(unassigned, piece)
    _judge(trace, unassigned, (step_track,), between_steps, parts)
    parts[Cause.LAUNCHING] = join(parts[Cause.LAUNCHING], in_launch)


def _judge(
    trace: Trace,
    unassigned: Intervals,
    tracks: tuple[int, ...],
    between_steps: Intervals,
    parts: dict[Cause, Intervals],
) -> None:
    """Split idle time by what some threads were doing, in order of precedence."""
    if len(unassigned) == 0:
        return
    start, end = int(unassigned[0, 0]), int(unassigned[-1, 1])
    states: list[tuple[Cause, Intervals]] = [
        (Cause.INPUT, input_waits(trace, tracks)),
        (Cause.BETWEEN_STEPS, between_steps),
    ]
    states += [(cause, states_of(trace, kinds, tracks)) for cause, kinds in _THREAD_STATES]
    for cause, state in states:
        part = intersect(unassigned, clip(state, start, end))
        if len(part):
            parts[cause] = join(parts[cause], part)
            unassigned = minus(unassigned, part)
    parts[Cause.UNEXPLAINED] = join(parts[Cause.UNEXPLAINED], unassigned)


def states_of(trace: Trace, kinds: tuple[EventKind, ...], tracks: tuple[int, ...]) -> Intervals:
    """When any of the threads is inside an event of one of the kinds."""
    rows = trace.rows(*kinds)
    rows = rows[is_in(trace.events.track[rows], tracks)]
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])


def input_waits(trace: Trace, tracks: tuple[int, ...]) -> Intervals:
    """When the threads wait for input.

    TensorFlow's executor fetches on any free thread of its pool, so there fetches on all threads
    count.
    """
    rows = trace.rows(EventKind.INPUT_WAIT)
    if trace.source.framework != "tensorflow":
        rows = rows[is_in(trace.events.track[rows], tracks)]
    return union(trace.events.start_ns[rows], trace.events.end_ns[rows])


def _host_time(
    trace: Trace, step_track: int, window: Intervals, parts: dict[Cause, Intervals]
) -> Intervals:
    """On a CPU-only capture, give operators and collectives their causes; return the idle time."""
    work = host_work(trace, step_track)
    idle = minus(window, work)
    collectives = trace.rows(EventKind.HOST_COLLECTIVE)
    events = trace.events
    busy = union(events.start_ns[collectives], events.end_ns[collectives])
    parts[Cause.COMMUNICATION] = intersect(idle, busy)
    idle = minus(idle, busy)
    running = intersect(idle, _running_programs(trace))
    parts[Cause.HOST_COMPUTE] = join(intersect(window, work), running)
    return minus(idle, running)


_WAITS_FOR_PROGRAM = "ThunkExecutor::Execute (wait for completion)"
"""XLA's CPU client is in this event while its thread pool runs a program. Large matrix products
are split over the pool, and no other event covers their parts (openxla/xla,
xla/backends/cpu/runtime)."""


def _running_programs(trace: Trace) -> Intervals:
    """When XLA programs run on the CPU, even if no event names the operation that runs."""
    if _WAITS_FOR_PROGRAM not in trace.strings:
        return EMPTY
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    rows = rows[events.name[rows] == trace.strings.index(_WAITS_FOR_PROGRAM)]
    return union(events.start_ns[rows], events.end_ns[rows])


def host_work(trace: Trace, step_track: int) -> Intervals:
    """The work of a CPU-only capture.

    In PyTorch, the operators of the step thread. In TensorFlow and JAX, those of the executor on
    every thread. Operators inside the input pipeline are input, not work. Operators that
    torch.compile calls while tracing compute nothing.
    """
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    if trace.source.framework == "pytorch":
        rows = rows[events.track[rows] == step_track]
        feeding = trace.rows(EventKind.INPUT_WAIT, EventKind.COMPILE)
        feeding = feeding[events.track[feeding] == step_track]
        waits = union(events.start_ns[feeding], events.end_ns[feeding])
        return minus(union(events.start_ns[rows], events.end_ns[rows]), waits)
    busy = EMPTY
    for track in distinct(events.track[rows]).tolist():
        own = rows[events.track[rows] == track]
        input_rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INPUT_WORK)
        input_rows = input_rows[events.track[input_rows] == track]
        feeding_time = union(events.start_ns[input_rows], events.end_ns[input_rows])
        busy = join(busy, minus(union(events.start_ns[own], events.end_ns[own]), feeding_time))
    return busy
