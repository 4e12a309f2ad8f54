"""Step markers: the profile's own if it has any, else something that repeats once per step.

The sources in order: host step markers, the device's own `Steps` line, repeating annotations,
repeating XLA modules, calls of a jitted function, runs of TensorFlow functions, optimizer steps,
the period of the kernel or operator sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.asynchronous_dispatch import runs_behind, work_of_dispatches
from tb_perfadvisor.signals.core.cpu_programs import CpuRuns, runs_of_function
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.jitted_calls import FunctionCalls, most_costly_function, program_of
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

MIN_REPEATS = 3
"""Two repeats could be chance."""

# A repeating annotation is a step only if its name says so: layers and phases repeat as well.
_STEP_NAME = re.compile(
    r"^(.*\bexecute_model\b.*|.*run_training_batch|"
    r"((run|process|train|training|eval\w*|val\w*|test|predict|inference|global|model)[_ .-]?)*"
    r"(step|batch|iter|iteration)s?[_ #:(-]*\d*\)?)$",
    re.IGNORECASE,
)
_NOT_A_STEP = re.compile(r"^(Optimizer\.|nccl:|gloo:|enumerate\(|autograd::|aten::)")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
# A name with two leading underscores is a function: a compiled graph.
_FUNCTION_CALL = "EagerExecute: __"
_FUNCTION_RUN = re.compile(r"^FunctionRun$")

_PERIOD_MATCH = 0.95
"""Share of the sequence that must repeat: autotuning changes a kernel here and there."""
_PERIOD_MIN_EVENTS = 100
"""A step takes more kernels than a transformer layer, which repeats as well: a few dozen."""
_PERIOD_MIN_NS = 500_000
"""A shorter period is a layer, not a step."""
_ALIKE = 0.5
"""Runs of one function differ less in duration: a shorter run is of another one."""
_DOMINANT = 0.8
"""A TensorFlow function with a smaller share of the calls' time is one of many."""
_NEVER = np.iinfo(np.int64).max


class Markers(Struct, frozen=True):
    """Candidate markers in order of start."""

    source: str
    is_inferred: bool
    number: Int64
    start_ns: Int64
    end_ns: Int64
    marked_ends: bool
    track: int
    ends_with_work: bool = False
    """Whether markers that were inferred end with the work of their step, so that time may lie
    between them."""


def find_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Markers of the first source that has any; None if nothing marks or implies steps."""
    sources: tuple[Callable[[Trace, DeviceTimeline], Markers | None], ...] = (
        _host_markers,
        _device_step_line,
        _repeating_annotations,
        _module_repeats,
        _jitted_calls,
        _function_runs,
        _optimizer_steps,
        _periodicity,
    )
    candidates = (source(trace, timeline) for source in sources)
    return next((markers for markers in candidates if markers is not None), None)


def _host_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.STEP)
    if len(rows) == 0:
        return None
    # Several loops may mark steps (training and evaluation, Keras and tf.profiler): take the one
    # with the most markers.
    names, place = unique_inverse(trace.events.name[rows])
    texts: dict[str, int] = {}
    text = [
        texts.setdefault(_without_number(trace.strings[name]), len(texts))
        for name in names.tolist()
    ]
    first, loop = group_rows(np.array(text)[place], trace.events.track[rows])
    best = min(zip((-np.bincount(loop)).tolist(), first.tolist(), range(len(first)), strict=True))[
        2
    ]
    in_loop = rows[loop == best]
    in_loop = in_loop[_not_overlapping(trace, in_loop)]
    source = trace.name(int(in_loop[0]))
    source = _without_number(source) or source
    markers = _from_rows(
        trace,
        in_loop,
        source=source,
        is_inferred=False,
        track=int(trace.events.track[in_loop[0]]),
        # Steps of sums lie end to end, without the time between them.
        marked_ends=not source.startswith("ProfilerStep") and trace.totals is None,
    )
    if len(in_loop) < MIN_REPEATS or not runs_behind(timeline, markers.end_ns):
        return markers
    on_device = _device_step_line(trace, timeline)
    if on_device is not None:
        return replace(on_device, track=markers.track)
    work = work_of_dispatches(trace, timeline, markers.start_ns, markers.end_ns)
    if work is None:
        return markers
    source = f"the work that each {source} dispatched"
    return replace(markers, source=source, start_ns=work[0], end_ns=work[1], marked_ends=False)


def _device_step_line(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
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


def _repeating_annotations(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.ANNOTATION)
    if len(rows) == 0:
        return None
    names = trace.events.name[rows]
    groups: dict[tuple[str, int], list[int]] = {}
    for name in distinct(names).tolist():
        text = trace.strings[name]
        if _STEP_NAME.search(text) and not _NOT_A_STEP.search(text):
            for row in rows[names == name].tolist():
                key = (_without_number(text), int(trace.events.track[row]))
                groups.setdefault(key, []).append(row)
    return _longest_group(trace, groups, "repeats of {}")


def _module_repeats(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows):
        return _longest_group(trace, _by_name(trace, rows), "repeats of the XLA module {}")
    return _function_repeats(trace) if trace.source.framework == "tensorflow" else None


def _jitted_calls(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Top-level calls of the jitted function that takes most time on the main thread.

    They come after modules, which run on the device, because a call may return long before its
    work begins.
    """
    calls = most_costly_function(trace, MIN_REPEATS, _PERIOD_MIN_NS)
    if calls is None:
        return None
    runs = runs_of_function(trace, calls.function)
    returned_ns = int(trace.events.end_ns[calls.rows[-1]])
    if len(runs) >= MIN_REPEATS and int((runs.start_ns >= returned_ns).sum()) > 1:
        return _markers_of_runs(trace, calls, runs)
    if runs_behind(timeline, trace.events.end_ns[calls.rows]):
        return None
    markers = _from_rows(
        trace,
        calls.rows,
        source=f"repeats of {trace.name(int(calls.rows[0]))}",
        is_inferred=True,
        track=int(trace.events.track[calls.rows[0]]),
        marked_ends=False,
    )
    return replace(markers, end_ns=_ends_of_runs(markers, runs), ends_with_work=len(runs) > 0)


def _markers_of_runs(trace: Trace, calls: FunctionCalls, runs: CpuRuns) -> Markers:
    """Markers from the runs of a program whose calls return long before."""
    return Markers(
        source=f"runs of {program_of(calls.function)}",
        is_inferred=True,
        number=np.arange(len(runs), dtype=np.int64),
        start_ns=runs.start_ns,
        end_ns=runs.end_ns,
        marked_ends=False,
        track=int(trace.events.track[calls.rows[0]]),
        ends_with_work=True,
    )


def _ends_of_runs(markers: Markers, runs: CpuRuns) -> Int64:
    """The end of each call, or of its run if that is later; at most the start of the next call."""
    end_ns = markers.end_ns.copy()
    call = last_before(markers.start_ns, runs.start_ns)
    np.maximum.at(end_ns, call[call >= 0], runs.end_ns[call >= 0])
    limited: Int64 = np.minimum(end_ns, np.append(markers.start_ns[1:], _NEVER))
    return limited


def _function_repeats(trace: Trace) -> Markers | None:
    """Calls of the tf.function that takes nearly all time of such calls."""
    groups = _by_name(trace, function_calls(trace))
    total_ns = {key: int(trace.events.duration_ns[rows].sum()) for key, rows in groups.items()}
    if not groups or max(total_ns.values()) < _DOMINANT * sum(total_ns.values()):
        return None
    return _longest_group(trace, groups, "repeats of {}")


def function_calls(trace: Trace) -> Int32:
    """Calls of compiled TensorFlow functions, in order of start."""
    rows = trace.rows(EventKind.ANNOTATION)
    names = trace.events.name[rows]
    calls = [n for n in distinct(names).tolist() if trace.strings[n].startswith(_FUNCTION_CALL)]
    return rows[is_in(names, calls)]


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
) -> Markers | None:
    """Markers from the group of repeating events with the largest total time."""
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


def _function_runs(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Runs of the TensorFlow function that takes nearly all time of such runs; a single one counts.

    Their names are those of graphs or none, so runs of similar duration are of the same function.
    On the CPU, a call ends with its work.
    """
    if trace.source.framework != "tensorflow" or not timeline.is_host_only:
        return None
    calls, rows = function_calls(trace), rows_named(trace, _FUNCTION_RUN, EventKind.ANNOTATION)
    duration_ns = trace.events.duration_ns
    # Until TensorFlow 2.3, `FunctionRun` waited for the run, and the call around it prepared the
    # function first. Since then, it only begins the run.
    if duration_ns[rows].sum() < _ALIKE * duration_ns[calls].sum():
        rows = calls
    if not trace.events.duration_ns[rows].any():
        return None
    weight = trace.events.duration_ns[rows].astype(np.float64)
    track = int(np.argmax(np.bincount(trace.events.track[rows], weights=weight)))
    rows = rows[trace.events.track[rows] == track]
    rows = rows[_not_overlapping(trace, rows)]
    duration_ns = trace.events.duration_ns[rows]
    is_long = duration_ns >= _ALIKE * int(duration_ns.max())
    if duration_ns[is_long].sum() < _DOMINANT * duration_ns.sum():
        return None
    return _from_rows(
        trace,
        rows[is_long],
        source="runs of a TensorFlow function",
        is_inferred=True,
        track=track,
        marked_ends=False,
    )


def _optimizer_steps(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = rows_named(trace, _OPTIMIZER_STEP, EventKind.ANNOTATION, EventKind.OPERATOR)
    if len(rows) == 0:
        return None
    rows = rows[_not_overlapping(trace, rows)]
    if len(rows) < MIN_REPEATS:
        return None
    # The optimizer ends a step: step i runs from the end of optimizer step i to the end of the
    # next.
    ends = trace.events.end_ns[rows]
    return Markers(
        source=f"repeats of {trace.name(int(rows[0]))}",
        is_inferred=True,
        number=np.arange(1, len(rows), dtype=np.int64),
        start_ns=ends[:-1],
        end_ns=ends[1:],
        marked_ends=False,
        track=int(trace.events.track[rows[0]]),
    )


def _periodicity(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """The period of the sequence of kernels, or of operators without kernels."""
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
    # The rarest names occur once per step; common names occur many times in it.
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
        return Markers(
            source=f"the period of the {what} sequence ({period} {what}s)",
            is_inferred=True,
            number=np.arange(len(bounds) - 1, dtype=np.int64),
            start_ns=bounds[:-1],
            end_ns=bounds[1:],
            marked_ends=False,
            track=-1,
        )
    return None


def _from_rows(
    trace: Trace, rows: Int32, *, source: str, is_inferred: bool, track: int, marked_ends: bool
) -> Markers:
    number = trace.events.step[rows].astype(np.int64)
    if (number < 0).any() or len(distinct(number)) != len(number):
        number = np.arange(len(rows), dtype=np.int64)
    return Markers(
        source=source,
        is_inferred=is_inferred,
        number=number,
        start_ns=trace.events.start_ns[rows],
        end_ns=trace.events.end_ns[rows],
        marked_ends=marked_ends,
        track=track,
    )


def _not_overlapping(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Mask of the rows that start after all earlier rows have ended: nested repeats count once."""
    end = trace.events.end_ns[rows]
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1]))
    return np.asarray(trace.events.start_ns[rows] >= reach)


def rows_named(trace: Trace, pattern: re.Pattern[str], *kinds: EventKind) -> Int32:
    """Rows of some kinds whose name matches a pattern, which is applied once per distinct name."""
    rows = trace.rows(*kinds)
    names = trace.events.name[rows]
    matching = [name for name in distinct(names).tolist() if pattern.search(trace.strings[name])]
    return rows[is_in(names, matching)]


def busiest_host_track(trace: Trace) -> int:
    """The host thread with the most launch time, else operator time; -1 without host events."""
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
    """A marker's name without the number of the step."""
    return re.sub(r"[#\s(_]*\d+\)?$", "", name).strip()
