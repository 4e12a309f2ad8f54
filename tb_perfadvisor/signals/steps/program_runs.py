"""When compiled programs run.

On a device, the line `XLA Modules` has the runs. On the CPU, JAX records only operations, which
tell the runs. In TensorFlow, a run is a call of a function; on the CPU, it lasts from the first
operator in the call to the last.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals.core.steps.cpu_programs import cpu_runs
from tb_perfadvisor.signals.core.steps.tensorflow_markers import function_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, last_before, union
from tb_perfadvisor.trace.tables import Int32, Int64


class ProgramRuns(msgspec.Struct, frozen=True):
    """Runs of programs that begin in the used window."""

    start_ns: Int64
    """Ascending; shape (runs,)."""
    end_ns: Int64
    spans: Intervals
    """When any program runs."""
    rows: Int32
    """Events of the runs: device modules or calls of functions; empty if there are none."""

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.start_ns)


@memoized
def program_runs(signals: Signals) -> ProgramRuns:
    """Runs of compiled programs on the device, or on the CPU if the program uses no device."""
    trace, window, events = signals.trace, signals.attribution, signals.trace.events
    if not signals.device.is_host_only:
        modules = trace.rows(EventKind.DEVICE_MODULE)
        rows = modules[trace.tracks.device[events.track[modules]] == signals.device.index]
    elif trace.source.framework == "tensorflow":
        rows = function_calls(trace)
    else:
        rows = np.empty(0, dtype=np.int32)
    start, end = events.start_ns[rows], events.end_ns[rows]
    if signals.device.is_host_only and trace.source.framework == "jax":
        runs = cpu_runs(trace)
        start, end = runs.start_ns, runs.end_ns
    if signals.device.is_host_only and trace.source.framework == "tensorflow":
        start, end = _of_operators(trace, start, end)
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    if len(rows):
        rows = rows[inside]
    start, end = start[inside], end[inside]
    return ProgramRuns(start, end, union(start, end), rows)


def _of_operators(trace: Trace, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """From the first operator in each call to the last, on any thread; fetches count.

    What surrounds them is the cost of the call: it takes arguments, and hands over results.
    """
    events, rows = trace.events, trace.rows(EventKind.OPERATOR, EventKind.INPUT_WAIT)
    call = last_before(start, events.start_ns[rows])
    inside = call >= 0
    inside[inside] = events.end_ns[rows[inside]] <= end[call[inside]]
    rows, call = rows[inside], call[inside]
    first = np.full(len(start), np.iinfo(np.int64).max)
    last = np.zeros(len(start), dtype=np.int64)
    np.minimum.at(first, call, events.start_ns[rows])
    np.maximum.at(last, call, events.end_ns[rows])
    return np.where(last > 0, first, start), np.where(last > 0, last, end)
