"""Launches that a recording lost, and compile time in it."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import clip, contains, total_ns, union
from tb_perfadvisor.trace.tables import Int32

MIN_REPEATS = 3
"""With at least three steps, repeated compiling can be told from warm-up."""


@memoized
def lost_launches(signals: Signals) -> tuple[int, int]:
    """Number of kernel launches in the used window without a device event, and of all launches.

    Launches into a stream that is being captured run later, with the graph, so they don't count.
    Nor do other calls (copies within the host, empty fills), which may have no event. Partial steps
    are not used, so launches that are lost at the end of a recording don't count.
    """
    trace = signals.trace
    events, window = trace.events, signals.attribution
    if signals.device.index is None or trace.totals is not None:
        return 0, 0
    rows = trace.rows(EventKind.LAUNCH)
    at = events.start_ns[rows]
    rows = rows[(at >= window.window_start_ns) & (at < window.window_end_ns)]
    rows = rows[_is_named(trace, rows, "LaunchKernel")]
    if len(rows) == 0 or not (events.launched_by[signals.device.rows] >= 0).any():
        return 0, 0
    rows = rows[~_is_captured(trace, rows)]
    is_seen = np.zeros(len(events), dtype=bool)
    is_seen[events.launched_by[events.launched_by >= 0]] = True
    return int((~is_seen[rows]).sum()), len(rows)


def _is_named(trace: Trace, rows: Int32, part: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names = trace.events.name[rows]
    matching = [name for name in distinct(names).tolist() if part in trace.strings[name]]
    return is_in(names, matching)


def _is_captured(trace: Trace, launches: Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether launches lie between the start and the end of a capture."""
    events, calls = trace.events, trace.rows(EventKind.RUNTIME, EventKind.LAUNCH)
    begins = events.start_ns[calls[_is_named(trace, calls, "StreamBeginCapture")]]
    ends = events.start_ns[calls[_is_named(trace, calls, "StreamEndCapture")]]
    if len(begins) == 0:
        return np.zeros(len(launches), dtype=bool)
    slot = np.searchsorted(ends, begins)
    closed = np.append(ends, np.iinfo(np.int64).max)[slot]
    return contains(union(begins, closed), events.start_ns[launches])


@memoized
def compiling(signals: Signals) -> int:
    """Time in ns that the used window spends on compiling or importing because it is warm-up.

    0 if there are several steps and a later one compiles too: then the program recompiles, which is
    not a problem of the recording.
    """
    trace, steps = signals.trace, signals.steps
    events, rows = trace.events, trace.rows(EventKind.COMPILE, EventKind.PYTHON)
    names = events.name[rows]
    is_compile = events.kind[rows] == EventKind.COMPILE
    is_import = is_in(
        names,
        [
            name
            for name in distinct(names[~is_compile]).tolist()
            if trace.strings[name].startswith("<frozen importlib._bootstrap>")
        ],
    )
    rows = rows[is_compile | is_import]
    busy = union(events.start_ns[rows], events.end_ns[rows])
    if len(steps) >= MIN_REPEATS and total_ns(
        clip(busy, int(steps.end_ns[0]), steps.window_end_ns)
    ):
        return 0
    return total_ns(clip(busy, steps.window_start_ns, steps.window_end_ns))
