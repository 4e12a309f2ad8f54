"""When compiled programs run.

On a device, the line `XLA Modules` has the runs. On the CPU, JAX records only operations: a run
lasts from its first to its last operation, and the least frequent operations of a program execute
once in each run (operations inside loops execute more often). In TensorFlow, a run is a call of a
function.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals.core.step_markers import function_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
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
        start, end = _by_operations(trace)
    inside = (start >= window.window_start_ns) & (start < window.window_end_ns)
    if len(rows):
        rows = rows[inside]
    start, end = start[inside], end[inside]
    return ProgramRuns(start, end, union(start, end), rows)


def _by_operations(trace: Trace) -> tuple[Int64, Int64]:
    """Starts and ends of runs, from their operations; each device has its own runs."""
    events, table = trace.events, trace.hlo_events
    if not len(table.row):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.lexsort((events.start_ns[table.row], table.op))
    row, op = table.row[order], table.op[order]
    count = np.bincount(op, minlength=len(trace.hlo.name))
    module = unique_inverse(trace.hlo.module)[1]
    least = np.full(int(module.max()) + 1, np.iinfo(np.int64).max)
    executed = count > 0
    np.minimum.at(least, module[executed], count[executed])
    # The n-th execution of such an operation belongs to the n-th run.
    first = np.concatenate(([0], np.cumsum(count)))
    number = np.arange(len(op)) - first[op]
    once = count[op] == least[module[op]]
    run = np.concatenate(([0], np.cumsum(np.where(least < np.iinfo(np.int64).max, least, 0))))
    slot = run[module[op[once]]] + number[once]
    start = np.full(int(run[-1]), np.iinfo(np.int64).max)
    end = np.zeros(int(run[-1]), dtype=np.int64)
    np.minimum.at(start, slot, events.start_ns[row[once]])
    np.maximum.at(end, slot, events.end_ns[row[once]])
    in_time = np.argsort(start, kind="stable")
    return start[in_time], end[in_time]
