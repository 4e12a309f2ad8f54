"""Which operator an event lies in, and which one a device event does the work of."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32


def launching_operator(trace: Trace) -> Int32:
    """For each event, the innermost operator around it on its thread; shape (events,).

    An operator counts as being inside itself. -1 if no operator encloses the event.
    """
    kind = trace.events.kind
    is_operator = (kind == EventKind.OPERATOR) | (kind == EventKind.CAPTURED_OPERATOR)
    return nearest(trace.events.parent, is_operator)


def work_operators(trace: Trace, launching_operator: Int32, rows: Int32) -> Int32:
    """The innermost operator whose work each device event does; -1 if unknown; shape (rows,).

    That is the operator around its launch. For work of a replayed GPU graph, whose launch is the
    replay of the whole graph, it is the one that put the work into the graph, if that was recorded.

    Args:
        trace: The trace.
        launching_operator: For each event, the innermost operator around it; shape (events,).
        rows: Device events.
    """
    launch = trace.events.launched_by[rows]
    operators = np.where(launch >= 0, launching_operator[launch], np.int32(-1))
    table = trace.captured
    if not len(table.row):
        return operators
    captured = trace.by_event(table.row, table.operator, -1)[rows]
    return np.where(captured >= 0, captured, operators)
