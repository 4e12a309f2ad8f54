"""Which batch size the graph of a decode step was recorded for.

A server records graphs for some batch sizes, and runs a batch in the next larger graph. The profile
does not name a graph, but shows its kernels: graphs of different sizes have different numbers of
blocks. The largest batch that ran in a graph is a lower bound of its size.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.serving.server_steps import ServerSteps, server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64


@memoized
def captured_sizes(signals: Signals) -> Int64:
    """For each of the `server_steps`, the size of its graph, at least; -1 if it is unknown.

    It is that of the annotation, where the server states it. Else it is known for decode steps that
    replay a single graph, if the profile has the number of blocks of all its kernels.
    """
    steps = server_steps(signals)
    if steps is None:
        return np.empty(0, dtype=np.int64)
    size: Int64 = steps.captured_requests.copy()
    candidates = steps.is_kind(StepKind.DECODE) & (steps.graphs == 1) & (size < 0)
    candidates &= steps.decode_requests > 0
    count, blocks, names = _contents(signals, steps)
    chosen = np.flatnonzero(candidates & (blocks > 0))
    if len(chosen):
        _, graph = group_rows(count[chosen], blocks[chosen], names[chosen])
        largest = np.zeros(int(graph.max()) + 1, dtype=np.int64)
        np.maximum.at(largest, graph, steps.decode_requests[chosen])
        size[chosen] = largest[graph]
    return size


def _contents(signals: Signals, steps: ServerSteps) -> tuple[Int64, Int64, Int64]:
    """What tells graphs apart: their kernels' number, blocks and names, per step.

    Blocks are -1 if those of a kernel are unknown, as on AMD's devices.
    """
    trace, table = signals.trace, signals.trace.kernels
    events, rows = trace.events, signals.device.rows
    rows = rows[in_graphs(trace, rows)]
    grid = trace.by_event(table.row, table.grid_blocks, -1)[rows]
    is_kernel = trace.by_event(table.row, np.ones(len(table.row), dtype=np.int64), 0)[rows] > 0
    rows, grid = rows[is_kernel], grid[is_kernel]
    start_ns = events.start_ns[steps.row]
    step = last_before(start_ns, events.start_ns[events.launched_by[rows]])
    rows, grid, step = rows[step >= 0], grid[step >= 0], step[step >= 0]

    def total(values: Int64) -> Int64:
        return np.bincount(step, weights=values, minlength=len(steps)).astype(np.int64)

    is_known = total((grid <= 0).astype(np.int64)) == 0
    number = np.bincount(step, minlength=len(steps))
    return number, np.where(is_known, total(grid), -1), total(events.name[rows].astype(np.int64))
