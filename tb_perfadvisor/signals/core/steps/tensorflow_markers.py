"""Step markers from calls and runs of TensorFlow functions."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.launched_work import is_linked, owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import (
    Markers,
    longest_group,
    markers_from_rows,
    not_overlapping,
    rows_by_name,
    rows_named,
    without_number,
)
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

# A name with two leading underscores is a function: a compiled graph.
_FUNCTION_CALL = "EagerExecute: __"
_FUNCTION_RUN = re.compile(r"^FunctionRun$")
_ALIKE = 0.5
"""Runs of one function differ less in duration: a shorter run is of another one."""
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

    What follows inside a marker of Keras are callbacks: summaries, checkpoints, evaluation.

    Args:
        trace: The trace.
        markers: Rows of markers, in order of start; shape (n,).

    Returns:
        The end of each marker if it has no such call; shape (n,).
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
