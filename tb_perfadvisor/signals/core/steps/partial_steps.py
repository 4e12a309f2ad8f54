"""Markers at the edges of a recording that are no whole steps, and the first steps of a program.

Each comes with a reason in plain words. Outliers are steps.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.launched_work import is_jitted_call, owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import MIN_REPEATS, Markers
from tb_perfadvisor.signals.core.steps.windows import Windows
from tb_perfadvisor.soundness.lost import is_captured
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, quantile
from tb_perfadvisor.trace.intervals import Intervals, last_before, overlap_ns
from tb_perfadvisor.trace.names import rows_named
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import format_duration, format_share

LOADS_CODE = regex(r"^(cu|hip|cuda)(Module|Library)(Load|GetFunction)", re.IGNORECASE)
"""Calls that load device code, which happens when a kernel is used for the first time."""
_CAPTURES = regex(r"StreamBeginCapture|GraphInstantiate")
LOST_EVENTS = "partial: its device events were not recorded"
BETWEEN_LOST = "partial: the device events of steps beside it were not recorded"
OTHER_LOOP = "it belongs to another loop of the same recording"
EARLIER_WORK = "partial: earlier work, which was not recorded, still ran in it"

_WARM_UP_FACTOR = 2.0
"""A first step that loads modules or compiles, and takes twice the median, is warm-up."""
_LOST_LAUNCHES = 0.15
"""A step that lacks a larger share of device events for its launches was not fully recorded."""
_LEAST_WORK = 0.5
"""A whole step has at least this share of the median work of its kind."""
_ALIKE = 1.25
"""Steps of one kind differ by less in their work."""
_LEAST_OF_INFERRED = 0.05
"""Ranges of the program that repeat have both ends in the recording, so that only those that hold
almost nothing are no steps."""
_GAP_SHARE = 0.005
"""If gaps between markers take at least this share, the missing gap of the last step matters. Below
it, one missing gap in five is a thousandth of a step, less than two recordings differ by."""


class Excluded(Struct, frozen=True):
    """A step that is not used, and why."""

    number: int
    reason: str


class Used(Struct, frozen=True):
    """The markers from `first` to `last` (exclusive) are steps; the others are excluded."""

    first: int
    last: int
    excluded: tuple[Excluded, ...] = ()

    @property
    def slice(self) -> slice:
        """Of the columns of markers."""
        return slice(self.first, self.last)

    def without(self, markers: Markers, *, begin: int = 0, end: int = 0, reason: str) -> Used:
        """Leave out markers at the beginning or at the end."""
        out = [
            *range(self.first, self.first + begin),
            *range(self.last - end, self.last),
        ]
        more = tuple(Excluded(int(markers.number[place]), reason) for place in out)
        return Used(self.first + begin, self.last - end, (*self.excluded, *more))

    def __len__(self) -> int:
        """Number of markers that are used."""
        return self.last - self.first


def whole_steps(
    trace: Trace,
    timeline: DeviceTimeline,
    markers: Markers,
    windows: Windows,
    kind: Int64,
    recorded_from_ns: int,
) -> Used:
    """The markers without those that are cut off, or hold almost nothing.

    `kind` is the kind of step of each marker. The work of the device was recorded from
    `recorded_from_ns` on.
    """
    others = tuple(Excluded(number, OTHER_LOOP) for number in markers.left_out.tolist())
    used = _without_gap_in_numbers(markers, Used(0, len(markers.number), others))
    work_ns = windows.work_ns
    # Sums don't show whether all their events were recorded.
    if timeline.index is not None and trace.totals is None:
        start_ns, end_ns = windows.host_start_ns, windows.host_end_ns
        if not windows.is_linked:
            work_ns = overlap_ns(timeline.busy, start_ns, end_ns)
        used = _without_lost_events(markers, used, _lost_launches(trace, start_ns, end_ns))
    elif any(note.id == "truncated-file" for note in trace.notes):
        cut = _cut_off(trace, windows.host_start_ns, windows.host_end_ns)
        while len(used) > 1 and cut[used.last - 1]:
            used = used.without(markers, end=1, reason="partial: the file breaks off in it")
    is_pytorch = trace.source.framework == "pytorch"
    if len(used) == 1 and is_pytorch and not _has_work(trace, windows, used):
        reason = "partial: no work was recorded in it"
        return used.without(markers, end=len(used), reason=reason)
    late = int(np.searchsorted(windows.host_start_ns, recorded_from_ns))
    counts = timeline.is_host_only and not windows.is_linked and trace.totals is None
    work = _operators(trace, windows) if counts else work_ns
    return _without_fragments(markers, used, work, kind, late, unit="operators" if counts else "")


def _operators(trace: Trace, windows: Windows) -> Int64:
    """How many operators start in each window.

    On a host, other programs hold up a step at times, which does not change what it does.
    """
    at_ns = trace.events.start_ns[trace.rows(EventKind.OPERATOR)]
    owner = owner_by_time(windows.host_start_ns, windows.host_end_ns, at_ns)
    count: Int64 = np.bincount(owner[owner >= 0], minlength=len(windows.host_start_ns))
    return count


_WORK = (
    *(EventKind.OPERATOR, EventKind.LAUNCH, EventKind.HOST_COLLECTIVE),
    *(EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.COPY),
)


def _has_work(trace: Trace, windows: Windows, used: Used) -> bool:
    """Whether operators, launches or device work lie in the steps."""
    rows = trace.rows(*_WORK)
    is_later = trace.events.end_ns[rows] > windows.host_start_ns[used.slice].min()
    is_earlier = trace.events.start_ns[rows] < windows.host_end_ns[used.slice].max()
    return bool((is_later & is_earlier).any())


def _without_gap_in_numbers(markers: Markers, used: Used) -> Used:
    """The longest run of markers whose numbers follow each other.

    Between two others, steps were not recorded, but time passed.
    """
    distance = np.diff(markers.number)
    if len(distance) < 2:
        return used
    jumps = np.flatnonzero(distance > quantile(distance, 0.5))
    if not len(jumps) or len(jumps) > len(distance) // 2:
        return used
    bounds = np.concatenate(([0], jumps + 1, [len(markers.number)]))
    longest = int(np.diff(bounds)[::-1].argmax())
    at = len(bounds) - 2 - longest
    first, last = int(bounds[at]), int(bounds[at + 1])
    used = used.without(
        markers, begin=first, reason="partial: the steps after it were not recorded"
    )
    return used.without(
        markers, end=used.last - last, reason="partial: the steps before it were not recorded"
    )


def _without_lost_events(markers: Markers, used: Used, lost_share: Float64) -> Used:
    """The longest run of markers whose device events were recorded.

    Steps that lost their events are no whole steps, wherever they lie, and steps on both sides of
    them don't follow each other. If such runs are short, events are missing everywhere: then only
    steps at the edges are left out.
    """
    is_whole = lost_share[used.slice] <= _LOST_LAUNCHES
    if is_whole.all() or not is_whole.any():
        return used
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_whole.astype(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    longest = len(starts) - 1 - int((ends - starts)[::-1].argmax())
    first, last = int(starts[longest]), int(ends[longest])
    if last - first < min(MIN_REPEATS, int(is_whole.sum())):
        first, last = int(starts[0]), int(ends[-1])
    for place in (*range(first - 1, -1, -1), *range(last, len(is_whole))):
        reason = BETWEEN_LOST if is_whole[place] else LOST_EVENTS
        used = replace(
            used,
            excluded=(*used.excluded, Excluded(int(markers.number[used.first + place]), reason)),
        )
    return replace(used, first=used.first + first, last=used.first + last)


def _without_fragments(
    markers: Markers, used: Used, work: Int64, kind: Int64, late: int, *, unit: str
) -> Used:
    """Without first and last markers that lack the work that others of their kind have.

    Work is a time, or a number of what `unit` says. The first `late` of them lack it because
    earlier work still ran.
    """
    least = _LEAST_OF_INFERRED if markers.is_inferred or markers.is_range else _LEAST_WORK
    while len(used) > 1 and (usual := _lacks(work, kind, used, used.last - 1, least)):
        reason = _fragment(int(work[used.last - 1]), usual, unit)
        used = used.without(markers, end=1, reason=reason)
    while len(used) > 1 and (usual := _lacks(work, kind, used, used.first, least)):
        is_late = used.first < late
        reason = EARLIER_WORK if is_late else _fragment(int(work[used.first]), usual, unit)
        used = used.without(markers, begin=1, reason=reason)
    return used


def _fragment(work: int, usual: float, unit: str) -> str:
    if work == 0:
        return "partial: no work was recorded in it"
    amount = f"{work} {unit}" if unit else f"{format_duration(work)} of work"
    return f"partial: it holds {amount}, {format_share(work / usual)} of what others have"


def _lacks(work: Int64, kind: Int64, used: Used, place: int, least: float) -> float:
    """The median work of the others of a marker's kind, if the marker has too little; else 0."""
    others = np.arange(used.first, used.last)
    others = others[others != place]
    of_kind = others[kind[others] == kind[place]]
    usual = quantile(work[of_kind if len(of_kind) else others], 0.5)
    inner = work[used.first + 1 : used.last - 1]
    # The recording did not cut off the steps in the middle: one with as little work is a step.
    is_usual = work[place] > 0 and (inner <= _ALIKE * work[place]).any()
    return 0.0 if is_usual or work[place] >= least * usual else usual


def has_end(markers: Markers, used: Used) -> bool:
    """Whether it is known where the last step ends: with the next marker, or with its own."""
    return used.last < len(markers.number) or not _leave_gaps(markers)


def without_missing_end(markers: Markers, used: Used) -> Used:
    """Without the last step, if what follows its marker belongs to it and was not recorded."""
    if len(used) >= MIN_REPEATS and not has_end(markers, used):
        reason = "partial: what followed its marker is not known"
        return used.without(markers, end=1, reason=reason)
    return used


def _leave_gaps(markers: Markers) -> bool:
    """Whether the gaps between markers, which belong to the steps, take measurable time."""
    gap_ns = int((markers.start_ns[1:] - markers.end_ns[:-1]).sum())
    span_ns = int(markers.start_ns[-1] - markers.start_ns[0])
    shows_ends = markers.marked_ends or markers.ends_with_work
    return shows_ends and gap_ns >= _GAP_SHARE * span_ns


def _lost_launches(trace: Trace, start: Int64, end: Int64) -> Float64:
    """Share of each step's launches without a device event, compared with the best step."""
    launches = trace.rows(EventKind.LAUNCH)
    launches = launches[~is_captured(trace, launches)]
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


def warm_up(trace: Trace, start: Int64, end: Int64, is_inferred: bool) -> str:
    """Why the first step is warm-up; empty if it is not."""
    duration = end - start
    usual_ns = quantile(duration[1:], 0.5) * (_ALIKE if is_inferred else _WARM_UP_FACTOR)
    if duration[0] < usual_ns:
        return ""
    compiles = trace.rows(EventKind.COMPILE)
    intervals = trace.events.spans(compiles)
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
    launches = trace.rows(EventKind.LAUNCH)
    launching = trace.events.spans(launches)
    launching_ns = overlap_ns(launching, start, end)
    longer_ns = launching_ns[0] - np.median(launching_ns[1:])
    if is_inferred and 2 * longer_ns >= duration[0] - np.median(duration[1:]):
        return "its launches take far longer, as the first ones of a program do"
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
    return events.spans(again)
