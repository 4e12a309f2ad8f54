"""The work of a device, and when the host launched it.

A step owns the work that it launched, so each event of the device needs the moment of its launch.
The first of these that the file has tells it:

1. the call that launched it, by correlation, run id or context, as the reader linked them;
2. the device's own line of steps, if its numbers are those of the host's markers;
3. the order, if one program ran exactly once per step or per call.

The threads on which XLA's CPU client runs programs count as a device.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.cpu_programs import runs_of_function
from tb_perfadvisor.signals.core.steps.jitted_calls import (
    FunctionCalls,
    calls_by_function,
    program_name,
    program_of,
)
from tb_perfadvisor.signals.core.steps.marker_rows import Markers
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

UNKNOWN = -1
_LINKED_SHARE = 0.5
"""If less of the device's time has a known launch, links say too little about whose work it is."""


class LaunchedWork(Struct, frozen=True):
    """Work of the device that stands for the rank, in order of start. Columns of shape (rows,)."""

    rows: Int32
    launched_ns: Int64
    """When the host launched it; -1 if unknown."""
    by_order: str = ""
    """The program whose runs were matched with steps or calls by their order; empty if the file
    says which call launched what."""


def launched_work(trace: Trace, timeline: DeviceTimeline, markers: Markers | None) -> LaunchedWork:
    """The work of a device, or of the threads of XLA's CPU client, and when it was launched."""
    if timeline.index is None:
        return _work_of_cpu_programs(trace)
    work = _linked(trace, timeline.rows)
    if (work.launched_ns >= 0).any() or markers is None or markers.is_on_device:
        return work
    return _by_step_line(trace, timeline, markers) or _by_modules(trace, timeline, markers) or work


def _linked(trace: Trace, rows: Int32) -> LaunchedWork:
    launch = trace.events.launched_by[rows]
    return LaunchedWork(rows, np.where(launch >= 0, trace.events.start_ns[launch], UNKNOWN))


def is_linked(trace: Trace, timeline: DeviceTimeline) -> bool:
    """Whether the file says which calls launched most of the device's work."""
    work = _linked(trace, timeline.rows)
    duration_ns = trace.events.duration_ns[work.rows]
    linked_ns = int(duration_ns[work.launched_ns >= 0].sum())
    return linked_ns > 0 and linked_ns >= _LINKED_SHARE * int(duration_ns.sum())


def _by_step_line(trace: Trace, timeline: DeviceTimeline, markers: Markers) -> LaunchedWork | None:
    """The work inside each step of the device's line, by the number of the step."""
    rows = trace.rows(EventKind.DEVICE_STEP)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    number = trace.events.step[rows].astype(np.int64)
    if len(rows) < len(markers.number) or not is_in(markers.number, number).all():
        return None
    own = is_in(number, markers.number)
    order = np.argsort(markers.number, kind="stable")
    marker = order[np.searchsorted(markers.number[order], number[own])]
    return _inside(trace, timeline.rows, rows[own], markers.start_ns[marker])


def _by_modules(trace: Trace, timeline: DeviceTimeline, markers: Markers) -> LaunchedWork | None:
    """The work inside each run of the costliest program, if it ran once for each marker."""
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if not len(rows):
        return None
    names, name = unique_inverse(trace.events.name[rows])
    costliest = int(np.bincount(name, weights=trace.events.duration_ns[rows]).argmax())
    runs = rows[name == costliest]
    start_ns = markers.start_ns
    if len(runs) != len(start_ns) or (trace.events.start_ns[runs] < start_ns).any():
        return None
    program = trace.text(int(names[costliest]))
    return _inside(trace, timeline.rows, runs, start_ns, by_order=program)


def _inside(
    trace: Trace, rows: Int32, spans: Int32, launched_ns: Int64, by_order: str = ""
) -> LaunchedWork:
    """The work that starts inside the n-th span was launched at the n-th time."""
    start_ns, end_ns = trace.events.start_ns[spans], trace.events.end_ns[spans]
    at_ns = trace.events.start_ns[rows]
    span = last_before(start_ns, at_ns)
    inside = (span >= 0) & (at_ns < end_ns[np.maximum(span, 0)])
    return LaunchedWork(rows, np.where(inside, launched_ns[span], UNKNOWN), by_order)


def _work_of_cpu_programs(trace: Trace) -> LaunchedWork:
    """The operations of XLA programs on the CPU.

    The n-th call of a function launched the n-th run of its program, if there are as many.
    """
    events, table = trace.events, trace.hlo_events
    order = np.argsort(events.start_ns[table.row], kind="stable")
    rows, op = table.row[order], table.op[order]
    launch = events.launched_by[rows]
    launched_ns = np.where(launch >= 0, events.start_ns[launch], UNKNOWN)
    if len(rows) == 0 or (launch >= 0).all():
        return LaunchedWork(rows, launched_ns)
    modules, module = unique_inverse(trace.hlo.module[op])
    names = [program_name(trace.text(string)) for string in modules.tolist()]
    matched = []
    for calls in calls_by_function(trace):
        program = program_of(calls.function)
        runs_ns = _runs_of(trace, calls)
        if runs_ns is None:
            continue
        is_own = np.array([name == program for name in names], dtype=bool)[module] & (launch < 0)
        run = last_before(runs_ns, events.start_ns[rows[is_own]])
        called_ns = events.start_ns[calls.rows]
        launched_ns[is_own] = np.where(run >= 0, called_ns[run], UNKNOWN)
        matched.append(program)
    return LaunchedWork(rows, launched_ns, matched[0] if matched else "")


def _runs_of(trace: Trace, calls: FunctionCalls) -> Int64 | None:
    """When the runs of a function's program start; None unless each follows its own call."""
    runs_ns = runs_of_function(trace, calls.function).start_ns
    called_ns = trace.events.start_ns[calls.rows]
    is_match = len(runs_ns) == len(called_ns) and bool((runs_ns >= called_ns).all())
    return runs_ns if is_match else None


def owner_by_time(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Int64:
    """The window that each time lies in; -1 for none.

    Args:
        start_ns: Start of each window. Shape (windows,), in order.
        end_ns: End of each window.
        at_ns: Times, of any shape.
    """
    window = last_before(start_ns, at_ns)
    inside: NDArray[np.bool_] = (window >= 0) & (at_ns < end_ns[np.maximum(window, 0)])
    owner: Int64 = np.where(inside, window, -1)
    return owner
