"""Step markers from calls of a jitted JAX function, and from the runs of its program."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.cpu_programs import CpuRuns, runs_of_function
from tb_perfadvisor.signals.core.steps.jitted_calls import (
    FunctionCalls,
    most_costly_function,
    program_of,
)
from tb_perfadvisor.signals.core.steps.launched_work import is_linked
from tb_perfadvisor.signals.core.steps.marker_rows import (
    MIN_PERIOD_NS,
    MIN_REPEATS,
    Markers,
    markers_from_rows,
)
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import clip, last_before, total_ns
from tb_perfadvisor.trace.tables import Int64

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
    if len(runs) >= MIN_REPEATS and not follow_calls and _is_late(runs.start_ns, returned_ns):
        return _markers_of_runs(trace, calls, runs)
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
    return replace(markers, end_ns=_ends_of_runs(markers, runs), ends_with_work=len(runs) > 0)


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
