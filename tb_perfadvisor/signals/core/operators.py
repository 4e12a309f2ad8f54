"""Operators by name and shapes: how often they ran, and their time on host and device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import group_rows, is_in
from tb_perfadvisor.trace.tables import Int32, Int64


class OperatorTotals(Struct, frozen=True):
    """Executions in the used window, by name, shapes and types; columns of shape (n,)."""

    name: Int32
    """Index of the string."""
    shapes: Int32
    """Index of the string with the input shapes as JSON; -1 if they were not recorded."""
    dtypes: Int32
    """Index of the string with the input types; -1 if they were not recorded."""
    count: Int64
    """Executions that start in the window."""
    self_ns: Int64
    """Time on the host without the operators inside."""
    device_ns: Int64
    """Time in the window of the device work that it launched, without inner operators."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.name)


def operator_totals(
    trace: Trace,
    launching_operator: Int32,
    device_rows: Int32,
    is_used: NDArray[np.bool_],
) -> OperatorTotals:
    """Operators of the used steps without those of the input pipeline.

    Args:
        trace: The trace.
        launching_operator: For each event, the innermost operator around it; shape (events,).
        device_rows: The device's work in the used steps.
        is_used: Which events belong to the used steps; shape (events,).
    """
    events, table = trace.events, trace.operators
    rows = trace.rows(EventKind.OPERATOR)
    is_input = is_in(events.kind, (EventKind.INPUT_WAIT, EventKind.INPUT_WORK))
    rows = rows[~has_ancestor(events.parent, rows, is_input)]
    self_ns = operator_self_ns(trace, rows, launching_operator)
    is_inside = is_used[rows]
    device_ns = launched_ns(trace, launching_operator, device_rows)[rows]
    kept = is_inside | (device_ns > 0)
    rows, self_ns, device_ns = rows[kept], np.where(is_inside, self_ns, 0)[kept], device_ns[kept]
    shapes = trace.by_event(table.row, table.shapes, -1)[rows]
    dtypes = trace.by_event(table.row, table.dtypes, -1)[rows]
    first, group = group_rows(events.name[rows], shapes, dtypes)
    return OperatorTotals(
        name=events.name[rows][first],
        shapes=shapes[first],
        dtypes=dtypes[first],
        count=_summed(group, is_inside[kept], len(first)),
        self_ns=_summed(group, self_ns, len(first)),
        device_ns=_summed(group, device_ns, len(first)),
    )


def launched_ns(trace: Trace, launching_operator: Int32, device_rows: Int32) -> Int64:
    """For each event, the time of the device work that it launched.

    The work counts for the innermost operator around its launch.

    Args:
        trace: The trace.
        launching_operator: For each event, the innermost operator around it; shape (events,).
        device_rows: The device's work that counts.

    Returns:
        Shape (events,).
    """
    events = trace.events
    launch = events.launched_by[device_rows]
    launcher = np.where(launch >= 0, launching_operator[launch], -1)
    counts = launcher >= 0
    device_ns: Int64 = np.bincount(
        launcher[counts],
        weights=events.duration_ns[device_rows[counts]],
        minlength=len(events),
    ).astype(np.int64)
    return device_ns


def operator_self_ns(trace: Trace, rows: Int32, launching_operator: Int32) -> Int64:
    """Durations of operators without those of their direct inner operators."""
    events = trace.events
    inner = trace.rows(EventKind.OPERATOR)
    parent = events.parent[inner]
    around = np.where(parent >= 0, launching_operator[parent], -1)
    inside = np.bincount(
        around[around >= 0],
        weights=events.duration_ns[inner][around >= 0],
        minlength=len(events),
    ).astype(np.int64)
    self_ns: Int64 = np.maximum(events.duration_ns[rows] - inside[rows], 0)
    return self_ns


def _summed(group: Int64, values: Int64 | NDArray[np.bool_], size: int) -> Int64:
    # Exact: float64 holds integers up to 2^53 ns, 104 days of work.
    total: Int64 = np.bincount(group, weights=values, minlength=size).astype(np.int64)
    return total
