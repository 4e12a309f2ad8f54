"""Steps: windows that partition time, from step markers or their substitutes.

Window i runs from marker i to marker i+1; the last one ends with its marker. Partial and warm-up
steps are excluded, each with its number and reason; outliers are not. If markers leave time between
them, the last step is partial: the time after its marker was not recorded, and n-1 gaps must not be
divided by n steps. If unrecorded work still ran when the recording began, the window begins after
it, and the steps that it ran in are partial.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.jitted_calls import is_jitted_call
from tb_perfadvisor.signals.core.steps.marker_rows import MIN_REPEATS, Markers, rows_named
from tb_perfadvisor.signals.core.steps.markers import find_markers
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, last_before, overlap_ns, union
from tb_perfadvisor.trace.tables import Float64, Int64

LOADS_CODE = re.compile(r"^(cu|hip|cuda)(Module|Library)(Load|GetFunction)", re.IGNORECASE)
"""Calls that load device code, which happens when a kernel is used for the first time."""
_CAPTURES = re.compile(r"StreamBeginCapture|GraphInstantiate")
EARLIER_WORK = "partial: earlier work, which was not recorded, still ran in it"

_WARM_UP_FACTOR = 2.0
"""A first step that loads modules or compiles, and takes twice the median, is warm-up."""
_LOST_LAUNCHES = 0.15
"""A step that lacks a larger share of device events for its launches was not fully recorded."""

_GAP_SHARE = 0.005
"""If gaps between markers take at least this share, the missing gap of the last step matters. Below
it,
one missing gap in five is a thousandth of a step, less than two recordings differ by."""


class Excluded(Struct, frozen=True):
    """A step that is not used, and why."""

    number: int
    reason: str


class Steps(Struct, frozen=True):
    """The used steps. Without any, `source` is `none` and the window is the whole trace.

    The window begins after unrecorded work, with or without steps.
    """

    source: str
    is_inferred: bool
    number: Int64
    """Shape (used,)."""
    start_ns: Int64
    end_ns: Int64
    marker_end_ns: Int64
    """End of each step's own marker, at most the end of its window."""
    marked_ends: bool
    """Whether each marker ends with its step's work, so that time may lie between markers (Keras,
    JAX). PyTorch's `ProfilerStep` covers everything up to the next one."""
    track: int
    """Host track of the markers; -1 if they are not on a host track."""
    excluded: tuple[Excluded, ...]
    window_start_ns: int
    window_end_ns: int
    is_on_device: bool = False
    """Whether the times are those of the device's work, which runs behind markers on the host."""

    def __len__(self) -> int:
        """Number of used steps; 0 when none are known."""
        return len(self.start_ns)

    @property
    def count(self) -> int:
        """Divisor for per-step numbers: the number of used steps, or 1 if none are known."""
        return max(len(self), 1)

    @property
    def window_ns(self) -> int:
        """Length of the used window."""
        return self.window_end_ns - self.window_start_ns

    @property
    def duration_ns(self) -> Int64:
        """Of each used step; shape (used,)."""
        return self.end_ns - self.start_ns


def find_steps(trace: Trace, timeline: DeviceTimeline, recorded_from_ns: int = 0) -> Steps:
    """The steps of one trace; without any, the whole window as one.

    Args:
        trace: The trace.
        timeline: The device that stands for the rank.
        recorded_from_ns: From when on the work of the device was recorded.
    """
    markers = find_markers(trace, timeline)
    excluded: tuple[Excluded, ...] = ()
    if markers is not None:
        whole = int(np.searchsorted(markers.start_ns, recorded_from_ns))
        excluded = tuple(Excluded(int(number), EARLIER_WORK) for number in markers.number[:whole])
        if whole < len(markers.number):
            return _windows(trace, timeline, markers, whole, excluded)
    start, end = _whole_window(trace, timeline)
    start = min(max(start, recorded_from_ns), end)
    none = np.empty(0, dtype=np.int64)
    return Steps("none", False, none, none, none, none, False, -1, excluded, start, end)


def _whole_window(trace: Trace, timeline: DeviceTimeline) -> tuple[int, int]:
    """The span of the work: idle time at both ends of a profile comes from how it was recorded."""
    if len(timeline.busy):
        return int(timeline.busy[0, 0]), int(timeline.busy[-1, 1])
    rows = trace.rows(EventKind.OPERATOR)
    if len(rows) == 0:
        rows = np.arange(len(trace.events), dtype=np.int32)
    if len(rows) == 0:
        return 0, 0
    return int(trace.events.start_ns[rows].min()), int(trace.events.end_ns[rows].max())


def _windows(
    trace: Trace,
    timeline: DeviceTimeline,
    markers: Markers,
    first: int,
    already_excluded: tuple[Excluded, ...],
) -> Steps:
    """The windows of the markers from `first` on, without partial and warm-up steps."""
    start = markers.start_ns
    end = np.append(start[1:], markers.end_ns[-1])
    excluded = list(already_excluded)
    last = len(start)
    # Sums don't show whether all their events were recorded.
    if timeline.index is not None and trace.totals is None:
        lost = _lost_launches(trace, start, end)
        busy = overlap_ns(timeline.busy, start, end)
        while last - first > 1 and (lost[last - 1] > _LOST_LAUNCHES or busy[last - 1] == 0):
            last -= 1
            excluded.append(
                Excluded(int(markers.number[last]), "partial: its device events were not recorded")
            )
        while last - first > 1 and busy[first] == 0:
            excluded.append(
                Excluded(int(markers.number[first]), "partial: no device work was recorded in it")
            )
            first += 1
    elif any(note.id == "truncated-file" for note in trace.notes):
        cut = _cut_off(trace, start, end)
        while last - first > 1 and cut[last - 1]:
            last -= 1
            excluded.append(
                Excluded(int(markers.number[last]), "partial: the file breaks off in it")
            )
    if last - first >= MIN_REPEATS:
        reason = _warm_up(trace, start[first:last], end[first:last])
        if reason:
            excluded.append(Excluded(int(markers.number[first]), f"warm-up: {reason}"))
            first += 1
    if last == len(start) and last - first >= MIN_REPEATS and _leave_gaps(markers):
        last -= 1
        excluded.append(
            Excluded(int(markers.number[last]), "partial: what followed its marker is not known")
        )
    used = slice(first, last)
    return Steps(
        source=markers.source,
        is_inferred=markers.is_inferred,
        number=markers.number[used],
        start_ns=start[used],
        end_ns=end[used],
        marker_end_ns=np.minimum(markers.end_ns[used], end[used]),
        marked_ends=markers.marked_ends,
        track=markers.track,
        excluded=tuple(sorted(excluded, key=lambda step: step.number)),
        window_start_ns=int(start[first]),
        window_end_ns=int(end[last - 1]),
        is_on_device=markers.is_on_device,
    )


def _leave_gaps(markers: Markers) -> bool:
    """Whether the gaps between markers, which belong to the steps, take measurable time."""
    gap_ns = int((markers.start_ns[1:] - markers.end_ns[:-1]).sum())
    span_ns = int(markers.start_ns[-1] - markers.start_ns[0])
    shows_ends = markers.marked_ends or markers.ends_with_work
    return shows_ends and gap_ns >= _GAP_SHARE * span_ns


def _lost_launches(trace: Trace, start: Int64, end: Int64) -> Float64:
    """Share of each step's launches without a device event, compared with the best step."""
    launches = trace.rows(EventKind.LAUNCH)
    has_event = np.zeros(len(trace.events), dtype=bool)
    launched_by = trace.events.launched_by
    has_event[launched_by[launched_by >= 0]] = True
    at = trace.events.start_ns[launches]
    step = last_before(start, at)
    inside = (step >= 0) & (at < end[np.maximum(step, 0)])
    total = np.bincount(step[inside], minlength=len(start))
    seen = np.bincount(step[inside], weights=has_event[launches[inside]], minlength=len(start))
    share = np.divide(seen, total, out=np.ones(len(start)), where=total > 0)
    # Some launches never have an event, because an activity was disabled.
    return np.asarray(share.max() - share)


def _cut_off(trace: Trace, start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Mask of the steps with clearly fewer operators than the fullest step."""
    at = trace.events.start_ns[trace.rows(EventKind.OPERATOR)]
    count = np.searchsorted(at, end) - np.searchsorted(at, start)
    return np.asarray(count < (1 - _LOST_LAUNCHES) * count.max())


def _warm_up(trace: Trace, start: Int64, end: Int64) -> str:
    """Why the first step is warm-up; empty if it is not."""
    duration = end - start
    usual_ns = _WARM_UP_FACTOR * float(np.median(duration[1:]))
    if duration[0] < usual_ns:
        return ""
    compiles = trace.rows(EventKind.COMPILE)
    intervals = union(trace.events.start_ns[compiles], trace.events.end_ns[compiles])
    compiling = overlap_ns(intervals, start, end)
    if compiling[0] > 0 and float(np.median(compiling[1:])) == 0:
        again_ns = int(overlap_ns(_compiled_again(trace, start, end), start[:1], end[:1])[0])
        return "" if duration[0] - again_ns < usual_ns else "it compiles, the others don't"
    for pattern, what in ((LOADS_CODE, "loads device code"), (_CAPTURES, "captures a graph")):
        calls = rows_named(trace, pattern, EventKind.RUNTIME, EventKind.LAUNCH)
        at = trace.events.start_ns[calls]
        first = ((at >= start[0]) & (at < end[0])).sum()
        later = ((at >= start[1]) & (at < end[-1])).sum()
        if first > 0 and later == 0:
            return f"it {what}, the others don't"
    return ""


def _compiled_again(trace: Trace, start: Int64, end: Int64) -> Intervals:
    """Compilation in the first step of jitted functions that a later step compiles again.

    It is no warm-up: whatever made the later step compile them made the first one do so.
    """
    events, rows = trace.events, trace.rows(EventKind.COMPILE)
    rows = rows[is_jitted_call(trace, rows)]
    step = last_before(start, events.start_ns[rows])
    inside = (step >= 0) & (events.start_ns[rows] < end[-1])
    rows, step = rows[inside], step[inside]
    later = distinct(events.name[rows[step > 0]])
    again = rows[(step == 0) & is_in(events.name[rows], later)]
    return union(events.start_ns[again], events.end_ns[again])
