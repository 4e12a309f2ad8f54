"""Barriers at which the cores of a TPU wait for each other."""

from __future__ import annotations

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

BARRIER = "barrier-cores"
"""Name that the runtime gives them on a core's `XLA TraceMe` line."""


def barriers(trace: Trace) -> Int32:
    """Rows of all barriers in a trace, on all cores."""
    rows = trace.rows(EventKind.DEVICE_ANNOTATION)
    names = distinct(trace.events.name[rows])
    barrier_names = [name for name in names.tolist() if trace.strings[name] == BARRIER]
    barrier_rows: Int32 = rows[is_in(trace.events.name[rows], barrier_names)]
    return barrier_rows
