"""Loops of XLA programs on a TPU: how often each runs its body.

A `while` encloses the operations of its body, once per trip. An operation that the body runs once
gives the number of trips.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class Loops(Struct, frozen=True):
    """Executions of innermost loops that run operations in the used window; shape (n,) each."""

    row: Int32
    """The event of the loop."""
    trips: Int64
    """The most executions of one of its operations."""


@memoized
def loops(signals: Signals) -> Loops:
    """The loops whose bodies contain no other loop; none unless on a TPU."""
    trace = signals.trace
    if not has_tiled_layouts(signals):
        return Loops(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
    table, events = trace.hlo_events, trace.events
    whiles = table.row[is_in(table.op, _while_ops(signals))]
    body = work_rows(signals)
    parent = events.parent[body]
    inside = (parent >= 0) & is_in(parent, whiles)
    body, parent = body[inside], parent[inside]
    # A loop that encloses another one runs its trips at the pace of that one.
    parent_of_loops = events.parent[whiles]
    keep = ~is_in(parent, parent_of_loops[parent_of_loops >= 0])
    body, parent = body[keep], parent[keep]
    found, of_loop = unique_inverse(parent)
    ops, of_op = unique_inverse(trace.operations(body))
    keys, count = np.unique(of_loop.astype(np.int64) * max(len(ops), 1) + of_op, return_counts=True)
    trips = np.zeros(len(found), dtype=np.int64)
    np.maximum.at(trips, keys // max(len(ops), 1), count)
    return Loops(found.astype(np.int32), trips)


def _while_ops(signals: Signals) -> list[int]:
    hlo, text = signals.trace.hlo, signals.trace.text
    parsed = (parse_instruction(text(int(index))) for index in hlo.text)
    return [op for op, found in enumerate(parsed) if found is not None and found.opcode == "while"]
