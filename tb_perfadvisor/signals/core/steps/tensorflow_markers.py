"""Step markers from calls and runs of TensorFlow functions."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.marker_rows import (
    Markers,
    longest_group,
    markers_from_rows,
    not_overlapping,
    rows_by_name,
    rows_named,
)
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

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
    rows = rows[not_overlapping(trace, rows)]
    duration_ns = trace.events.duration_ns[rows]
    is_long = duration_ns >= _ALIKE * int(duration_ns.max())
    if duration_ns[is_long].sum() < _DOMINANT * duration_ns.sum():
        return None
    return markers_from_rows(
        trace,
        rows[is_long],
        source="runs of a TensorFlow function",
        is_inferred=True,
        track=track,
        marked_ends=False,
    )


def function_calls(trace: Trace) -> Int32:
    """Calls of compiled TensorFlow functions, in order of start."""
    rows = trace.rows(EventKind.ANNOTATION)
    names = trace.events.name[rows]
    calls = [n for n in distinct(names).tolist() if trace.strings[n].startswith(_FUNCTION_CALL)]
    return rows[is_in(names, calls)]
