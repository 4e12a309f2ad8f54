"""When XLA programs run on the CPU.

JAX records only operations there. A run lasts from its first to its last operation, and the least
frequent operations of a program execute once in each run (operations inside loops execute more
often).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.steps.jitted_calls import program_name, program_of
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class CpuRuns(Struct, frozen=True):
    """Runs of programs in order of start; each device has its own. Columns of shape (runs,)."""

    start_ns: Int64
    end_ns: Int64
    module: Int32
    """String: the program."""

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.start_ns)


def cpu_runs(trace: Trace) -> CpuRuns:
    """The runs of all programs, from their operations."""
    events, table = trace.events, trace.hlo_events
    if not len(table.row):
        none = np.empty(0, dtype=np.int64)
        return CpuRuns(none, none, none.astype(np.int32))
    order = np.lexsort((events.start_ns[table.row], table.op))
    row, op = table.row[order], table.op[order]
    count = np.bincount(op, minlength=len(trace.hlo.name))
    modules, module = unique_inverse(trace.hlo.module)
    least = np.full(len(modules), np.iinfo(np.int64).max)
    executed = count > 0
    np.minimum.at(least, module[executed], count[executed])
    # The n-th execution of such an operation belongs to the n-th run.
    first = np.concatenate(([0], np.cumsum(count)))
    number = np.arange(len(op)) - first[op]
    once = count[op] == least[module[op]]
    runs = np.where(least < np.iinfo(np.int64).max, least, 0)
    run = np.concatenate(([0], np.cumsum(runs)))
    slot = run[module[op[once]]] + number[once]
    start = np.full(int(run[-1]), np.iinfo(np.int64).max)
    end = np.zeros(int(run[-1]), dtype=np.int64)
    np.minimum.at(start, slot, events.start_ns[row[once]])
    np.maximum.at(end, slot, events.end_ns[row[once]])
    in_time = np.argsort(start, kind="stable")
    return CpuRuns(start[in_time], end[in_time], np.repeat(modules, runs)[in_time])


def runs_of_function(trace: Trace, function: str) -> CpuRuns:
    """The runs of a jitted function's program, whatever the shapes; one for devices in parallel."""
    runs = cpu_runs(trace)
    modules, module = unique_inverse(runs.module)
    names = [program_name(trace.text(string)) for string in modules.tolist()]
    is_own = np.array([name == program_of(function) for name in names], dtype=bool)[module]
    start, end, of_run = runs.start_ns[is_own], runs.end_ns[is_own], runs.module[is_own]
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1])) if len(end) else end
    is_first = start >= reach
    return CpuRuns(start[is_first], end[is_first], of_run[is_first])
