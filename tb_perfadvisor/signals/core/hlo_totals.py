"""Time by XLA operation."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import row_mask, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class HloTotals(Struct, frozen=True):
    """Executions of each XLA operation in the used window; columns of shape (ops,)."""

    op: Int32
    """Row of the `HloTable`."""
    count: Int64
    total_ns: Int64
    """Total duration of the executions that start in the window."""


def hlo_totals(
    trace: Trace, device_rows: Int32, window_start_ns: int, window_end_ns: int
) -> HloTotals:
    """Time by XLA operation on one device, the costliest first."""
    events, table = trace.events, trace.hlo_events
    on_device = row_mask(len(events), device_rows)
    start = events.start_ns[table.row]
    keep = on_device[table.row] & (start >= window_start_ns) & (start < window_end_ns)
    ops, code = unique_inverse(table.op[keep])
    count = np.bincount(code, minlength=len(ops))
    duration = events.duration_ns[table.row[keep]]
    total = np.bincount(code, weights=duration, minlength=len(ops)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return HloTotals(ops[order], count[order].astype(np.int64), total[order])
