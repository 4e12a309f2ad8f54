"""Steps: from markers where there are any, else inferred, else honestly none.

The order of the sources is the design's: host step markers, the device's own `Steps` line,
annotations that repeat, XLA module repeats, optimizer steps, periodicity of the kernel or
operator sequence. Window i runs from marker i to marker i+1, the last to its marker's end, so
windows partition time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.device import DeviceTimeline
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.intervals import overlap_ns, union
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

MIN_REPEATS = 3
"""Fewer repeats than three could be chance."""

# An annotation that repeats is a step only if its name says so: layers and phases repeat too.
_STEP_NAME = re.compile(
    r"^(.*\bexecute_model\b.*|.*run_training_batch|"
    r"((run|process|train|training|eval\w*|val\w*|test|predict|inference|global|model)[_ .-]?)*"
    r"(step|batch|iter|iteration)s?[_ #:(-]*\d*\)?)$",
    re.IGNORECASE,
)
_NOT_A_STEP = re.compile(r"^(Optimizer\.|nccl:|gloo:|enumerate\(|autograd::|aten::)")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
_PROGRAM_ID = re.compile(r"\(\d+\)$")
_MODULE_LOAD = re.compile(r"^(cu|hip|cuda)(Module|Library)(Load|GetFunction)", re.IGNORECASE)

_PERIOD_MATCH = 0.95
"""Share of the sequence that must repeat: autotuning changes a kernel here and there."""
_PERIOD_MIN_EVENTS = 100
"""A transformer's layer takes a few dozen kernels, and layers repeat too; a step takes more."""
_PERIOD_MIN_NS = 500_000
"""A period below half a millisecond is a layer, not a step."""
_DOMINANT = 0.8
"""A program with less of the work is one of many (op-by-op dispatch), not the step."""
_WARM_UP_FACTOR = 2.0
"""A first step that loads modules or compiles and takes twice the median is warm-up."""
_LOST_LAUNCHES = 0.15
"""Share of a step's launches without a device event above which the recording cut it."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A step that is not used, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Steps:
    """The used steps. Without any, `source` is `none` and the window is the whole trace."""

    source: str
    is_inferred: bool
    number: Int64
    """Shape (used,)."""
    start_ns: Int64
    end_ns: Int64
    marker_end_ns: Int64
    """Where each step's own marker ends; at the latest where the window ends."""
    marked_ends: bool
    """Whether a marker covers its step's own work and time may lie between markers (Keras,
    JAX); `ProfilerStep` covers everything between two calls."""
    track: int
    """Host track of the markers, -1 when they come from elsewhere."""
    excluded: tuple[Excluded, ...]
    window_start_ns: int
    window_end_ns: int

    def __len__(self) -> int:
        """Number of used steps; 0 when none are known."""
        return len(self.start_ns)

    @property
    def count(self) -> int:
        """What totals are divided by: the used steps, 1 when none are known."""
        return max(len(self), 1)

    @property
    def window_ns(self) -> int:
        """Length of the used window."""
        return self.window_end_ns - self.window_start_ns

    @property
    def duration_ns(self) -> Int64:
        """Of each used step; shape (used,)."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class _Markers:
    """Candidate markers in order of start."""

    source: str
    is_inferred: bool
    number: Int64
    start_ns: Int64
    end_ns: Int64
    marked_ends: bool
    track: int


def find_steps(trace: Trace, timeline: DeviceTimeline) -> Steps:
    """The steps of one trace, by the first source that has any."""
    sources: tuple[Callable[[Trace, DeviceTimeline], _Markers | None], ...] = (
        _host_markers,
        _device_step_line,
        _repeating_annotations,
        _module_repeats,
        _optimizer_steps,
        _periodicity,
    )
    for source in sources:
        markers = source(trace, timeline)
        if markers is not None:
            return _windows(trace, timeline, markers)
    start, end = _whole_window(trace, timeline)
    none = np.empty(0, dtype=np.int64)
    return Steps("none", False, none, none, none, none, False, -1, (), start, end)


def _whole_window(trace: Trace, timeline: DeviceTimeline) -> tuple[int, int]:
    """The span of the work: idle time at a profile's ends is an artefact of its recording."""
    if len(timeline.busy):
        return int(timeline.busy[0, 0]), int(timeline.busy[-1, 1])
    rows = trace.rows(EventKind.OPERATOR)
    if len(rows) == 0:
        rows = np.arange(len(trace.events), dtype=np.int32)
    if len(rows) == 0:
        return 0, 0
    return int(trace.events.start_ns[rows].min()), int(trace.events.end_ns[rows].max())


def _host_markers(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    rows = trace.rows(EventKind.STEP)
    if len(rows) == 0:
        return None
    # Several loops may mark steps (train and eval, Keras over tf.profiler): the one with most.
    keys = [
        (_without_number(trace.name(row)), int(trace.events.track[row])) for row in rows.tolist()
    ]
    counts = {key: keys.count(key) for key in set(keys)}
    best = max(counts, key=lambda key: (counts[key], -keys.index(key)))
    own = rows[np.array([key == best for key in keys])]
    own = own[_not_overlapping(trace, own)]
    name = best[0] or trace.name(int(own[0]))
    return _from_rows(
        trace,
        own,
        source=name,
        is_inferred=False,
        track=best[1],
        marked_ends=not name.startswith("ProfilerStep"),
    )


def _device_step_line(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    rows = trace.rows(EventKind.DEVICE_STEP)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows) == 0:
        return None
    return _from_rows(
        trace,
        rows,
        source="the device's Steps line",
        is_inferred=False,
        track=-1,
        marked_ends=False,
    )


def _repeating_annotations(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    rows = trace.rows(EventKind.ANNOTATION)
    if len(rows) == 0:
        return None
    names = trace.events.name[rows]
    groups: dict[tuple[str, int], list[int]] = {}
    for name in np.unique(names).tolist():
        text = trace.strings[name]
        if _STEP_NAME.search(text) and not _NOT_A_STEP.search(text):
            for row in rows[names == name].tolist():
                key = (_without_number(text), int(trace.events.track[row]))
                groups.setdefault(key, []).append(row)
    return _longest_group(trace, groups, "repeats of {}")


def _module_repeats(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows):
        return _longest_group(trace, _by_name(trace, rows), "repeats of the XLA module {}")
    # Without a module line, the calls of the jitted function whose program does nearly all work.
    name = _dominant_program(trace)
    if not name.startswith("jit_"):
        return None
    call = f"PjitFunction({name.removeprefix('jit_')})"
    rows = trace.rows(EventKind.ANNOTATION)
    if call not in trace.strings:
        return None
    rows = rows[trace.events.name[rows] == trace.strings.index(call)]
    return _longest_group(trace, _by_name(trace, rows), "repeats of {}")


def _dominant_program(trace: Trace) -> str:
    """The XLA program whose operations take nearly all of all programs' time; else empty."""
    table = trace.hlo_events
    if len(table.row) == 0:
        return ""
    programs = trace.hlo.module[table.op]
    known, inverse = np.unique(programs, return_inverse=True)
    names = [_PROGRAM_ID.sub("", trace.text(int(program))) for program in known.tolist()]
    total: dict[str, float] = {}
    weight = np.bincount(inverse, weights=trace.events.duration_ns[table.row])
    for name, share in zip(names, weight.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + share
    name = max(total, key=lambda key: total[key])
    return name if total[name] >= _DOMINANT * sum(total.values()) else ""


def _by_name(trace: Trace, rows: Int32) -> dict[tuple[str, int], list[int]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for row in rows.tolist():
        key = (_without_number(trace.name(row)), int(trace.events.track[row]))
        groups.setdefault(key, []).append(row)
    return groups


def _longest_group(
    trace: Trace,
    groups: dict[tuple[str, int], list[int]],
    source: str,
) -> _Markers | None:
    """The group of repeating events with the largest total time."""
    best: tuple[int, Int32, str, int] | None = None
    for (name, track), members in groups.items():
        rows = np.array(members, dtype=np.int32)
        rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
        rows = rows[_not_overlapping(trace, rows)]
        total = int(trace.events.duration_ns[rows].sum())
        if len(rows) >= MIN_REPEATS and (best is None or total > best[0]):
            on_host = trace.tracks.kind[track] == TrackKind.HOST_THREAD
            best = (total, rows, name, track if on_host else -1)
    if best is None:
        return None
    _, rows, name, track = best
    return _from_rows(
        trace, rows, source=source.format(name), is_inferred=True, track=track, marked_ends=False
    )


def _optimizer_steps(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    rows = _rows_named(trace, _OPTIMIZER_STEP, EventKind.ANNOTATION, EventKind.OPERATOR)
    if len(rows) == 0:
        return None
    rows = rows[_not_overlapping(trace, rows)]
    if len(rows) < MIN_REPEATS:
        return None
    # The optimizer closes a step: step i runs from the end of one to the end of the next.
    ends = trace.events.end_ns[rows]
    return _Markers(
        source=f"repeats of {trace.name(int(rows[0]))}",
        is_inferred=True,
        number=np.arange(1, len(rows), dtype=np.int64),
        start_ns=ends[:-1],
        end_ns=ends[1:],
        marked_ends=False,
        track=int(trace.events.track[rows[0]]),
    )


def _periodicity(trace: Trace, timeline: DeviceTimeline) -> _Markers | None:
    """The period of the sequence of kernels, or of operators when there are no kernels."""
    rows, what = timeline.rows, "kernel"
    if len(rows) == 0:
        rows, what = trace.rows(EventKind.OPERATOR), "operator"
        rows = rows[trace.events.track[rows] == busiest_host_track(trace)]
        rows = rows[trace.events.parent[rows] < 0]
    names, start = trace.events.name[rows], trace.events.start_ns[rows]
    count = len(names)
    if count < MIN_REPEATS * _PERIOD_MIN_EVENTS:
        return None
    unique, occurrences = np.unique(names, return_counts=True)
    candidates = unique[occurrences >= MIN_REPEATS]
    # The rarest names repeat once per step; common ones repeat within it.
    rarest = candidates[np.argsort(occurrences[occurrences >= MIN_REPEATS], kind="stable")][:8]
    for name in rarest.tolist():
        at = np.flatnonzero(names == name)
        period = int(np.median(np.diff(at)))
        if period < _PERIOD_MIN_EVENTS or count < MIN_REPEATS * period:
            continue
        if float((names[period:] == names[:-period]).mean()) < _PERIOD_MATCH:
            continue
        regular = at[: 1 + int(np.argmax(np.append(np.diff(at) != period, True)))]
        if len(regular) < MIN_REPEATS or float(np.median(np.diff(start[regular]))) < _PERIOD_MIN_NS:
            continue
        bounds = start[regular]
        return _Markers(
            source=f"the period of the {what} sequence ({period} {what}s)",
            is_inferred=True,
            number=np.arange(len(bounds) - 1, dtype=np.int64),
            start_ns=bounds[:-1],
            end_ns=bounds[1:],
            marked_ends=False,
            track=-1,
        )
    return None


def _windows(trace: Trace, timeline: DeviceTimeline, markers: _Markers) -> Steps:
    start = markers.start_ns
    end = np.append(start[1:], markers.end_ns[-1])
    excluded: list[Excluded] = []
    first, last = 0, len(start)
    if timeline.index is not None:
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
    )


def _lost_launches(trace: Trace, start: Int64, end: Int64) -> Float64:
    """Per step, the share of its launches that have no device event, against the best step."""
    launches = trace.rows(EventKind.LAUNCH)
    launched = np.zeros(len(trace.events), dtype=bool)
    by = trace.events.launched_by
    launched[by[by >= 0]] = True
    at = trace.events.start_ns[launches]
    step = np.searchsorted(start, at, side="right") - 1
    inside = (step >= 0) & (at < end[np.maximum(step, 0)])
    total = np.bincount(step[inside], minlength=len(start))
    seen = np.bincount(step[inside], weights=launched[launches[inside]], minlength=len(start))
    share = np.divide(seen, total, out=np.ones(len(start)), where=total > 0)
    # Some launches never have an event (disabled activities): compare with the best step.
    return np.asarray(share.max() - share)


def _cut_off(trace: Trace, start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Per step, whether it holds clearly fewer operators than the fullest one."""
    at = trace.events.start_ns[trace.rows(EventKind.OPERATOR)]
    count = np.searchsorted(at, end) - np.searchsorted(at, start)
    return np.asarray(count < (1 - _LOST_LAUNCHES) * count.max())


def _warm_up(trace: Trace, start: Int64, end: Int64) -> str:
    """Why the first step is warm-up; empty when it is not."""
    duration = end - start
    if duration[0] < _WARM_UP_FACTOR * float(np.median(duration[1:])):
        return ""
    compiles = trace.rows(EventKind.COMPILE)
    intervals = union(trace.events.start_ns[compiles], trace.events.end_ns[compiles])
    compiling = overlap_ns(intervals, start, end)
    if compiling[0] > 0 and float(np.median(compiling[1:])) == 0:
        return "it compiles, the others don't"
    loads = _rows_named(trace, _MODULE_LOAD, EventKind.RUNTIME, EventKind.LAUNCH)
    at = trace.events.start_ns[loads]
    first = ((at >= start[0]) & (at < end[0])).sum()
    later = ((at >= start[1]) & (at < end[-1])).sum()
    return "it loads device code, the others don't" if first > 0 and later == 0 else ""


def _from_rows(
    trace: Trace, rows: Int32, *, source: str, is_inferred: bool, track: int, marked_ends: bool
) -> _Markers:
    number = trace.events.step[rows].astype(np.int64)
    if (number < 0).any() or len(np.unique(number)) != len(number):
        number = np.arange(len(rows), dtype=np.int64)
    return _Markers(
        source=source,
        is_inferred=is_inferred,
        number=number,
        start_ns=trace.events.start_ns[rows],
        end_ns=trace.events.end_ns[rows],
        marked_ends=marked_ends,
        track=track,
    )


def _rows_named(trace: Trace, pattern: re.Pattern[str], *kinds: EventKind) -> Int32:
    """Rows of some kinds whose name matches: the pattern runs once per distinct name."""
    rows = trace.rows(*kinds)
    names = trace.events.name[rows]
    matching = [name for name in np.unique(names).tolist() if pattern.search(trace.strings[name])]
    return rows[np.isin(names, matching)]


def _not_overlapping(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Mask of the rows that start after all earlier ones have ended: nested repeats count once."""
    end = trace.events.end_ns[rows]
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1]))
    return np.asarray(trace.events.start_ns[rows] >= reach)


def busiest_host_track(trace: Trace) -> int:
    """The host thread with most operator time, launches before all; -1 without host events."""
    for kinds in (
        (EventKind.LAUNCH,),
        (EventKind.OPERATOR,),
        (EventKind.ANNOTATION,),
        (EventKind.PYTHON,),
    ):
        rows = trace.rows(*kinds)
        rows = rows[trace.tracks.kind[trace.events.track[rows]] == TrackKind.HOST_THREAD]
        if len(rows):
            top = rows[trace.events.parent[rows] < 0] if kinds[0] != EventKind.LAUNCH else rows
            top = top if len(top) else rows
            weight = trace.events.duration_ns[top].astype(np.float64) + 1.0
            return int(np.argmax(np.bincount(trace.events.track[top], weights=weight)))
    return -1


def _without_number(name: str) -> str:
    """A marker's name without the number that tells steps apart."""
    return re.sub(r"[#\s(_]*\d+\)?$", "", name).strip()
