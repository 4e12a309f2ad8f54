"""Where each nanosecond of the used window goes: it has exactly one cause.

Device time goes first: compute (lowest precision first), then communication, then copies. Then
comes time in which the device worked on what was not recorded (see `soundness`). The rest is idle.
A gap is *queued* from the moment on at which the device's next work was launched
(see `idle_gaps`). Before that, its cause is what the launching thread was doing, in the order of
`Cause`. Without launch records, the step's thread is used.

On a CPU-only capture, the host's operators take the place of device work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import OF_PRECISION, Cause
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.host_activity import host_work
from tb_perfadvisor.signals.core.host_states import (
    first_fetches,
    judge,
    running_programs,
    states_of,
)
from tb_perfadvisor.signals.core.idle_gaps import (
    Idle,
    device_gaps,
    unlaunched_gaps,
    waits_for_batches,
)
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.trace import EventKind, KernelFamily, KernelTotal, Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    row_mask,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    shared_ns,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import BLOCKING_CALL, named
from tb_perfadvisor.trace.tables import Int32, Int64


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

    def within_ns(self, intervals: Intervals) -> dict[Cause, int]:
        """How long each cause lasts within some intervals."""
        return {cause: shared_ns(intervals, found) for cause, found in self.intervals.items()}

    def of(self, *causes: Cause) -> Intervals:
        """The intervals of some causes together."""
        return join(*(self.intervals[cause] for cause in causes))


def attribute(
    trace: Trace,
    timeline: DeviceTimeline,
    steps: Steps,
    precision: NDArray[np.uint8],
    between_steps: Intervals,
    step_track: int,
) -> Attribution:
    """Split the used window by cause.

    `precision` is the effective `Precision` of `timeline.rows`. No step code runs in
    `between_steps`. `step_track` is the host thread that runs the steps, or -1.
    """
    start, end = steps.window_start_ns, steps.window_end_ns
    parts: dict[Cause, Intervals] = dict.fromkeys(Cause, EMPTY)
    if timeline.index is not None:
        unassigned = _device_time(trace, timeline, precision, single(start, end), parts)
        parts[Cause.NOT_RECORDED] = intersect(unassigned, trace.soundness.not_recorded)
        unassigned = minus(unassigned, parts[Cause.NOT_RECORDED])
        idle = device_gaps(trace, timeline, start, end)
        parts[Cause.INPUT] = intersect(unassigned, timeline.waits)
        unassigned = minus(unassigned, parts[Cause.INPUT])
        _judge_idle(trace, idle, unassigned, between_steps, step_track, parts)
        _find_late_batches(trace, timeline, idle, step_track, parts)
    else:
        unassigned = _host_time(trace, steps, step_track, single(start, end), parts)
        idle = unlaunched_gaps(unassigned)
        judge(trace, {step_track: unassigned}, step_track, between_steps, parts)
        _move_to_input(_blocked(trace, (step_track,), parts), parts)
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
        part = intersect(idle, events.spans(cause_rows))
        parts[cause] = part
        idle = minus(idle, part)
    return idle


def _judge_idle(
    trace: Trace,
    idle: Idle,
    unassigned: Intervals,
    between_steps: Intervals,
    step_track: int,
    parts: dict[Cause, Intervals],
) -> None:
    """Give idle gaps their causes, judging the thread that launched the event at the gap's end."""
    events, launch = trace.events, idle.launch_row
    queued = union(idle.queued_from_ns, idle.end_ns)
    parts[Cause.QUEUED] = intersect(unassigned, queued)
    unassigned = minus(unassigned, queued)
    # From the start of the launch call until the work is queued, the gap counts as launching.
    called = np.where(launch >= 0, events.start_ns[launch], idle.end_ns)
    called = np.clip(called, idle.start_ns, idle.queued_from_ns)
    in_launch = intersect(unassigned, union(called, idle.queued_from_ns))
    unassigned = minus(unassigned, in_launch)
    thread = np.where(launch >= 0, events.track[launch], step_track)
    waiting = np.flatnonzero(~idle.is_queued)
    pieces = {}
    for track, places in places_by_value(thread[waiting]):
        gaps = waiting[places]
        gap_time = union(idle.start_ns[gaps], idle.end_ns[gaps])
        pieces[track] = intersect(gap_time, unassigned)
    rest = minus(unassigned, join(*pieces.values()))
    pieces[step_track] = join(pieces.get(step_track, EMPTY), rest)
    judge(trace, pieces, step_track, between_steps, parts)
    parts[Cause.LAUNCHING] = join(parts[Cause.LAUNCHING], in_launch)


_RECORDED = tuple(kind for kind in EventKind if kind not in (EventKind.STEP, EventKind.ANNOTATION))
"""Ranges around a step or a part of it do not say what the host does in it."""
_STARTS_THREAD = regex(r"\bthreading\.py(?:\(\d+\):|:\d+) start$")
"""Waits until the new thread runs."""
_LEAST_LATE = 0.02
"""Of the window: less than that is nothing to tell."""


def _find_late_batches(
    trace: Trace,
    timeline: DeviceTimeline,
    idle: Idle,
    step_track: int,
    parts: dict[Cause, Intervals],
) -> None:
    """Move idle time to input in which the next batch is late."""
    launch = idle.launch_row[idle.launch_row >= 0]
    tracks = (step_track, *distinct(trace.events.track[launch]).tolist())
    between = minus(parts[Cause.BETWEEN_STEPS], states_of(trace, _RECORDED, tracks))
    nameless = join(parts[Cause.UNEXPLAINED], between)
    blocked = _blocked(trace, tracks, parts)
    _move_to_input(waits_for_batches(trace, timeline, idle, nameless, blocked), parts)


def _blocked(trace: Trace, tracks: tuple[int, ...], parts: Mapping[Cause, Intervals]) -> Intervals:
    """Idle time in which the threads wait for other threads or processes."""
    events, calls = trace.events, trace.rows(EventKind.PYTHON)
    calls = calls[is_in(events.track[calls], tracks)]
    starts = calls[named(trace, calls, _STARTS_THREAD)]
    calls = calls[named(trace, calls, BLOCKING_CALL)]
    waits = minus(
        events.spans(calls),
        events.spans(starts),
    )
    return intersect(join(parts[Cause.PYTHON], parts[Cause.BETWEEN_STEPS]), waits)


def _move_to_input(late: Intervals, parts: dict[Cause, Intervals]) -> None:
    if total_ns(late) < _LEAST_LATE * sum(map(total_ns, parts.values())):
        return
    for cause in (Cause.UNEXPLAINED, Cause.PYTHON, Cause.BETWEEN_STEPS):
        parts[cause] = minus(parts[cause], late)
    parts[Cause.INPUT] = join(parts[Cause.INPUT], late)


def _host_time(
    trace: Trace,
    steps: Steps,
    step_track: int,
    window: Intervals,
    parts: dict[Cause, Intervals],
) -> Intervals:
    """On a CPU-only capture, give operators and collectives their causes; return the idle time."""
    work = host_work(trace, step_track)
    work = minus(work, first_fetches(trace, steps, work))
    idle = minus(window, work)
    collectives = trace.rows(EventKind.HOST_COLLECTIVE)
    events = trace.events
    busy = events.spans(collectives)
    parts[Cause.COMMUNICATION] = intersect(idle, busy)
    idle = minus(idle, busy)
    running = intersect(idle, running_programs(trace))
    parts[Cause.HOST_COMPUTE] = join(intersect(window, work), running)
    return minus(idle, running)


def kernel_totals(
    trace: Trace, rows: Int32, window_start_ns: int, window_end_ns: int
) -> tuple[KernelTotal, ...]:
    """Time of compute kernels in the used window by name, the costliest first.

    If the recorder summed them up, these are its sums over everything that it recorded.
    """
    if trace.totals is not None:
        return trace.totals.kernels
    events = trace.events
    rows = rows[events.kind[rows] == EventKind.KERNEL]
    start = np.maximum(events.start_ns[rows], window_start_ns)
    end = np.minimum(events.end_ns[rows], window_end_ns)
    rows, duration = rows[end > start], (end - start)[end > start]
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    first, inverse = group_rows(events.name[rows])
    names, count = events.name[rows[first]], np.bincount(inverse, minlength=len(first))
    # Exact: float64 holds integers up to 2^53 ns, 104 days of kernel time.
    total = np.bincount(inverse, weights=duration, minlength=len(first)).astype(np.int64)
    order = np.lexsort((first, -total))  # on a tie, the kernel that ran first
    return tuple(
        KernelTotal(
            name=trace.strings[names[i]],
            family=KernelFamily(int(family[rows[first[i]]])).name.lower(),
            count=int(count[i]),
            total_ns=int(total[i]),
        )
        for i in order.tolist()
    )


class HloTotals(Struct, frozen=True):
    """Executions of each XLA operation in the used window; columns of shape (ops,)."""

    op: Int32
    """Row of the `HloTable`."""
    count: Int64
    total_ns: Int64
    """Total duration of the executions."""


def hlo_totals(trace: Trace, device_rows: Int32) -> HloTotals:
    """Time by XLA operation of some work of a device, the costliest first."""
    events, table = trace.events, trace.hlo_events
    on_device = row_mask(len(events), device_rows)
    keep = on_device[table.row]
    ops, code = unique_inverse(table.op[keep])
    count = np.bincount(code, minlength=len(ops))
    duration = events.duration_ns[table.row[keep]]
    total = np.bincount(code, weights=duration, minlength=len(ops)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return HloTotals(ops[order], count[order].astype(np.int64), total[order])
