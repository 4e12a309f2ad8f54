"""When compiled programs run.

On a device, the line `XLA Modules` has the runs. On the CPU, JAX records only operations, which
tell the runs. In TensorFlow, a run is a call of a function.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals.core.cpu_programs import cpu_runs
from tb_perfadvisor.signals.core.step_markers import function_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import Intervals, union
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
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    if len(rows):
        rows = rows[inside]
    start, end = start[inside], end[inside]
    return ProgramRuns(start, end, union(start, end), rows)
