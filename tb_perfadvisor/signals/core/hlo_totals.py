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
    """Total duration of the executions."""


def hlo_totals(trace: Trace, device_rows: Int32) -> HloTotals:
    """Time by XLA operation of some work of a device, the costliest first."""
    events, table = trace.events, trace.hlo_events
    on_device = row_mask(len(events), device_rows)
    keep = on_device[table.row]
    ops, code = unique_inverse(table.op[keep])
    count = np.bincount(code, minlength=len(ops))
    duration = events.duration_ns[table.row[keep]]
    total = np.bincount(code, weights=duration, minlength=len(ops)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return HloTotals(ops[order], count[order].astype(np.int64), total[order])
