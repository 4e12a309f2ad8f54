"""Step markers: the profile's own if it has any, else something that repeats once per step.

The sources in order: host step markers, the device's own `Steps` line, annotations of inference
servers, other repeating annotations, repeating XLA modules, calls of a jitted function, runs of
TensorFlow functions, optimizer steps, the period of the kernel or operator sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.jitted_markers import jitted_call_markers
from tb_perfadvisor.signals.core.steps.marker_rows import (
    MIN_REPEATS,
    Markers,
    longest_group,
    markers_from_rows,
    not_overlapping,
    rows_by_name,
    rows_named,
    without_number,
)
from tb_perfadvisor.signals.core.steps.period_markers import period_markers
from tb_perfadvisor.signals.core.steps.server_annotations import server_annotations
from tb_perfadvisor.signals.core.steps.tensorflow_markers import (
    ends_of_functions,
    function_call_markers,
    function_run_markers,
)
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import (
    group_rows,
    places_by_value,
    unique_inverse,
)

# A repeating annotation is a step only if its name says so: layers and phases repeat as well.
_STEP_NAME = re.compile(
    r"^(.*\bexecute_model\b.*|.*run_training_batch|"
    r"((run|process|train|training|eval\w*|val\w*|test|predict|inference|global|model)[_ .-]?)*"
    r"(step|batch|iter|iteration)s?[_ #:(-]*\d*\)?)$",
    re.IGNORECASE,
)
_NOT_A_STEP = re.compile(r"^(Optimizer\.|nccl:|gloo:|enumerate\(|autograd::|aten::)")
_KERAS = "Profiled batch"
"""The marker of Keras's TensorBoard callback (keras/src/callbacks/tensorboard.py)."""
_OPTIMIZER_STEPS = (
    re.compile(r"^Optimizer\.step#"),
    # A range of the program: PyTorch's own are missing in recordings of Nsight Systems.
    re.compile(r"^optim(izer)?[ _.:-]?(step|update)?$", re.IGNORECASE),
)


def find_markers(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    """Markers of the first source that has any; None if nothing marks or implies steps."""
    sources: tuple[Callable[[Trace, DeviceTimeline], Markers | None], ...] = (
        _host_markers,
        _device_step_line,
        _server_steps,
        _repeating_annotations,
        _module_repeats,
        jitted_call_markers,
        function_run_markers,
        _optimizer_steps,
        period_markers,
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
        texts.setdefault(without_number(trace.strings[name]), len(texts)) for name in names.tolist()
    ]
    first, loop = group_rows(np.array(text)[place], trace.events.track[rows])
    best = min(zip((-np.bincount(loop)).tolist(), first.tolist(), range(len(first)), strict=True))[
        2
    ]
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
    )
    is_keras = trace.source.framework == "tensorflow" and source == _KERAS
    if is_keras or (trace.source.framework == "tensorflow" and len(in_loop) == 1):
        return replace(markers, work_end_ns=ends_of_functions(trace, in_loop))
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


def _repeating_annotations(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.ANNOTATION)
    if len(rows) == 0:
        return None
    names = trace.events.name[rows]
    groups: dict[tuple[str, int], list[int]] = {}
    for name, places in places_by_value(names):
        text = trace.strings[name]
        if _STEP_NAME.search(text) and not _NOT_A_STEP.search(text):
            for row in rows[places].tolist():
                key = (without_number(text), int(trace.events.track[row]))
                groups.setdefault(key, []).append(row)
    return longest_group(trace, groups, "repeats of {}")


def _module_repeats(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if len(rows):
        return longest_group(trace, rows_by_name(trace, rows), "repeats of the XLA module {}")
    return function_call_markers(trace) if trace.source.framework == "tensorflow" else None


def _optimizer_steps(trace: Trace, timeline: DeviceTimeline) -> Markers | None:
    found = (
        rows_named(trace, name, EventKind.ANNOTATION, EventKind.OPERATOR)
        for name in _OPTIMIZER_STEPS
    )
    apart = (rows[not_overlapping(trace, rows)] for rows in found if len(rows))
    rows = next((rows for rows in apart if len(rows) >= MIN_REPEATS), None)
    if rows is None:
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
