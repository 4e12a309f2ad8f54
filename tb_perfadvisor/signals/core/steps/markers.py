"""Events that mark steps: the profile's own, else something that repeats once per step.

The sources in order: host step markers, the device's own `Steps` line, annotations of inference
servers, ranges called like steps, repeating XLA modules, calls of a jitted function, runs of
TensorFlow functions, optimizer steps, backward passes, repetitions of the device's work or of
operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.launched_work import (
    CpuRuns,
    FunctionCalls,
    calls_by_function,
    is_linked,
    most_costly_function,
    owner_by_time,
    program_of,
    runs_of_function,
)
from tb_perfadvisor.signals.core.steps.marker_rows import (
    MIN_PERIOD_NS,
    MIN_REPEATS,
    Markers,
    longest_group,
    markers_from_rows,
    not_overlapping,
    rows_by_name,
    without_number,
)
from tb_perfadvisor.signals.core.steps.periods import (
    backward_passes,
    optimizer_steps,
    repetitions,
    whole_iterations,
)
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import clip, last_before, total_ns
from tb_perfadvisor.trace.names import rows_named
from tb_perfadvisor.trace.tables import Int32, Int64

# A name with two leading underscores is a function: a compiled graph.
_FUNCTION_CALL = "EagerExecute: __"
_FUNCTION_RUN = regex(r"^FunctionRun$")
_ALIKE = 0.5
"""Runs of one function differ less in duration: a shorter run is of another one."""
_SHORT = 0.01
"""Programs with a smaller share of the time, such as those that draw random numbers, may run at any
time."""
_DOMINANT = 0.8
"""A TensorFlow function with a smaller share of the calls' time is one of many."""


def function_call_markers(trace: Trace) -> Markers | None:
    """Calls of the tf.function that takes nearly all time of such calls."""
    groups = rows_by_name(trace, function_calls(trace))
    total_ns = {key: int(trace.events.duration_ns[rows].sum()) for key, rows in groups.items()}
    if not groups or max(total_ns.values()) < _DOMINANT * sum(total_ns.values()):
        return None
    return longest_group(trace, groups, "repeats of {}")


def function_run_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Runs of the TensorFlow function that takes nearly all time of such runs; a single one counts.

    Their names are those of graphs or none, so runs of similar duration are of the same function.
    On the CPU, a call ends with its work. On a device, its work shows when it ends.
    """
    if trace.source.framework != "tensorflow" or timeline.is_missing:
        return None
    if timeline.index is not None and not is_linked(trace, timeline):
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
    rows = rows[not_overlapping(trace, rows)]
    duration_ns = trace.events.duration_ns[rows]
    is_long = duration_ns >= _ALIKE * int(duration_ns.max())
    if duration_ns[is_long].sum() < _DOMINANT * duration_ns.sum():
        return None
    if timeline.index is not None and is_long.sum() > 1:
        return None  # repeats on a device have better marks
    return markers_from_rows(
        trace,
        rows[is_long],
        source="runs of a TensorFlow function",
        is_inferred=True,
        track=track,
        marked_ends=False,
    )


def ends_of_functions(trace: Trace, markers: Int32) -> Int64:
    """Where the work of each step ends on the host: with its last call of the step's function.

    What follows inside a marker of Keras are callbacks: summaries, checkpoints, evaluation. A
    marker without such a call keeps its own end. `markers` are rows in order of start.
    """
    events = trace.events
    end_ns: Int64 = events.end_ns[markers].copy()
    calls = function_calls(trace)
    marker = owner_by_time(events.start_ns[markers], end_ns, events.start_ns[calls])
    inside = (marker >= 0) & (events.track[calls] == events.track[markers[0]])
    calls, marker = calls[inside], marker[inside]
    if not len(calls):
        return end_ns
    names, name = unique_inverse(events.name[calls])
    time_ns = np.bincount(name, weights=events.duration_ns[calls])
    costliest = without_number(trace.strings[names[int(time_ns.argmax())]])
    is_step = np.array([without_number(text) == costliest for text in trace.texts(names)])[name]
    last_ns = np.full(len(markers), -1, dtype=np.int64)
    np.maximum.at(last_ns, marker[is_step], events.end_ns[calls[is_step]])
    ends: Int64 = np.where(last_ns >= 0, np.minimum(last_ns, end_ns), end_ns)
    return ends


def function_calls(trace: Trace) -> Int32:
    """Calls of compiled TensorFlow functions, in order of start."""
    rows = trace.rows(EventKind.ANNOTATION)
    names = trace.events.name[rows]
    calls = [n for n in distinct(names).tolist() if trace.strings[n].startswith(_FUNCTION_CALL)]
    return rows[is_in(names, calls)]


_MOST_PENDING = 1.5
"""Steps' work that the device may still have to do when the last call returns: that of the last
step, and part of the one before. With more, the host runs ahead."""
_NEVER = np.iinfo(np.int64).max


def jitted_call_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Top-level calls of the jitted function that takes most time on the main thread.

    They come after modules, which run on the device, because a call may return long before its
    work begins. If the profile does not tell which call ran what, the runs of the program mark the
    steps.
    """
    calls = most_costly_function(trace, MIN_REPEATS, MIN_PERIOD_NS)
    if calls is None:
        return None
    runs = runs_of_function(trace, calls.function)
    called_ns, returned_ns = trace.events.start_ns[calls.rows], trace.events.end_ns[calls.rows]
    follow_calls = len(runs) == len(called_ns) and bool((runs.start_ns >= called_ns).all())
    programs = np.sort(np.concatenate([called.rows for called in calls_by_function(trace)]))
    if len(runs) >= MIN_REPEATS and not follow_calls and _is_late(runs.start_ns, returned_ns):
        markers = _markers_of_runs(trace, calls, runs)
        return whole_iterations(markers, trace, calls.rows, programs)
    if not is_linked(trace, timeline) and _runs_behind(timeline, returned_ns):
        return None
    markers = markers_from_rows(
        trace,
        calls.rows,
        source=f"repeats of {trace.name(int(calls.rows[0]))}",
        is_inferred=True,
        track=int(trace.events.track[calls.rows[0]]),
        marked_ends=False,
    )
    markers = replace(markers, end_ns=_ends_of_runs(markers, runs), ends_with_work=len(runs) > 0)
    return whole_iterations(markers, trace, calls.rows, programs)


def _is_late(run_ns: Int64, returned_ns: Int64) -> bool:
    """Whether several runs start only after all calls have returned."""
    return int((run_ns >= returned_ns[-1]).sum()) > 1


def _runs_behind(timeline: DeviceTimeline, returned_ns: Int64) -> bool:
    """Whether the device has more than one step left to execute when all calls have returned."""
    pending_ns = total_ns(clip(timeline.busy, int(returned_ns[-1]), _NEVER))
    return pending_ns > _MOST_PENDING * total_ns(timeline.busy) / len(returned_ns)


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
        is_on_device=True,
    )


def _ends_of_runs(markers: Markers, runs: CpuRuns) -> Int64:
    """The end of each call, or of its run if that is later; at most the start of the next call."""
    end_ns = markers.end_ns.copy()
    call = last_before(markers.start_ns, runs.start_ns)
    np.maximum.at(end_ns, call[call >= 0], runs.end_ns[call >= 0])
    limited: Int64 = np.minimum(end_ns, np.append(markers.start_ns[1:], _NEVER))
    return limited


# An annotation is a step only if its name says so: layers and phases repeat as well.
_WHOLE_STEP = regex(
    r"\bexecute_model\b|run_training_batch$|^train(?:ing)?[ _]step\b", re.IGNORECASE
)
_STEP_AT_END = regex(
    r"(?:step|batch|iter|iteration)s?[_ #:=(\[-]*(?:\d+(?:/\d+)?[\])# ]*)?$", re.IGNORECASE
)
# What follows `eval` and `val` is taken as a whole: the reference to it gives nothing back, so that
# no name is split in all possible ways.
_BEFORE_STEP = regex(
    r"(?:run|process|train|training|test|predict|inference|global|model|mini|epoch"
    r"|(?:eval|val)(?=(\w*))\1|[\d\[(# _.:,/-])*",
    re.IGNORECASE,
)
_NUMBER = regex(r"\d{1,9}")
_NOT_A_STEP = regex(r"^(Optimizer\.|nccl:|gloo:|enumerate\(|autograd::|aten::)")
_EVALUATES = regex(r"(?:^|[^a-z])(?:eval|val|test)", re.IGNORECASE)
_KERAS = "Profiled batch"
"""The marker of Keras's TensorBoard callback (keras/src/callbacks/tensorboard.py)."""


def find_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Markers of the first source that has any; None if nothing marks or implies steps."""
    sources: tuple[Callable[[Trace, DeviceTimeline], Markers | None], ...] = (
        _host_markers,
        _device_step_line,
        _server_steps,
        _named_steps,
        _module_repeats,
        jitted_call_markers,
        function_run_markers,
        optimizer_steps,
        backward_passes,
        repetitions,
    )
    candidates = (source(trace, timeline) for source in sources)
    return next((markers for markers in candidates if markers is not None), None)


def _host_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.STEP)
    if len(rows) == 0:
        return None
    # Several loops may mark steps (training and evaluation, Keras and tf.profiler): take the one
    # that is not called evaluation, with the most markers.
    names, place = unique_inverse(trace.events.name[rows])
    texts: dict[str, int] = {}
    text = [
        texts.setdefault(without_number(trace.strings[name]), len(texts)) for name in names.tolist()
    ]
    first, loop = group_rows(np.array(text)[place], trace.events.track[rows])
    evaluates = [_EVALUATES.search(trace.name(int(rows[row]))) is not None for row in first]
    many = -np.bincount(loop)
    best = min(range(len(first)), key=lambda group: (evaluates[group], many[group], first[group]))
    in_loop = rows[loop == best]
    in_loop = in_loop[not_overlapping(trace, in_loop)]
    source = trace.name(int(in_loop[0]))
    source = without_number(source) or source
    markers = markers_from_rows(
        trace,
        in_loop,
        source=source,
        is_inferred=False,
        track=int(trace.events.track[in_loop[0]]),
        # Steps of sums lie end to end, without the time between them.
        marked_ends=not source.startswith("ProfilerStep") and trace.totals is None,
        others_ns=trace.events.start_ns[rows[loop != best]],
    )
    is_keras = trace.source.framework == "tensorflow" and source == _KERAS
    if is_keras or (trace.source.framework == "tensorflow" and len(in_loop) == 1):
        chosen = in_loop[np.isin(trace.events.start_ns[in_loop], markers.start_ns)]
        return replace(markers, work_end_ns=ends_of_functions(trace, chosen))
    return markers


def _device_step_line(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.DEVICE_STEP)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows) == 0:
        return None
    if len(rows) == 1 and function_run_markers(trace, timeline) is not None:
        # TensorFlow derives the line from all that ran, callbacks included.
        return None
    markers = markers_from_rows(
        trace,
        rows,
        source="the device's Steps line",
        is_inferred=False,
        track=-1,
        marked_ends=False,
    )
    return replace(markers, is_on_device=True)


def _server_steps(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = server_annotations(trace).row
    if len(rows) < MIN_REPEATS:
        return None
    return markers_from_rows(
        trace,
        rows,
        source="the server's annotations",
        is_inferred=False,
        track=int(trace.events.track[rows[0]]),
        marked_ends=True,
    )


def _names_step(name: str) -> bool:
    """Whether an annotation is called like a step: `train_step 7`, `evaluate batch`."""
    end = _STEP_AT_END.search(name)
    if end is not None and _BEFORE_STEP.fullmatch(name, 0, end.start()):
        return True
    return _WHOLE_STEP.search(name) is not None


def _named_steps(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Ranges called like steps; those with a number count even if there is only one."""
    rows = trace.rows(EventKind.ANNOTATION)
    if len(rows) == 0:
        return None
    groups: dict[tuple[str, int], list[int]] = {}
    numbers: dict[int, int] = {}
    certain = set()
    for name, places in places_by_value(trace.events.name[rows]):
        text = trace.strings[name]
        if not _names_step(text) or _NOT_A_STEP.search(text):
            continue
        digits = _NUMBER.findall(text)
        for row in rows[places].tolist():
            key = (_NUMBER.sub("", text).strip(" _#:=([-])/,"), int(trace.events.track[row]))
            groups.setdefault(key, []).append(row)
            numbers[row] = int(digits[-1]) if digits else -1
            if digits or _WHOLE_STEP.search(text):
                certain.add(key)
    fewer = {key: rows for key, rows in groups.items() if key in certain}
    markers = longest_group(trace, groups, "repeats of {}", numbers=numbers)
    markers = markers or longest_group(trace, fewer, "{}", numbers=numbers, fewest=1)
    if markers is None:
        return None
    return replace(markers, is_inferred=False, is_range=True, ends_with_work=True)


def _is_short(trace: Trace, runs: list[int], all_runs: Int32) -> bool:
    """Whether the runs of a program take next to nothing of the time of all."""
    duration_ns = trace.events.duration_ns
    return int(duration_ns[runs].sum()) < _SHORT * int(duration_ns[all_runs].sum())


def _module_repeats(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows):
        groups = rows_by_name(trace, rows)
        markers = longest_group(trace, groups, "repeats of the XLA module {}")
        if markers is None:
            return None
        own = rows[is_in(trace.events.start_ns[rows], markers.start_ns)]
        short = [name for name, of_name in groups.items() if _is_short(trace, of_name, rows)]
        programs = rows[~is_in(rows, [row for name in short for row in groups[name]])]
        return whole_iterations(markers, trace, own, programs)
    return function_call_markers(trace) if trace.source.framework == "tensorflow" else None
