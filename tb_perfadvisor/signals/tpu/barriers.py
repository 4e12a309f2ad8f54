"""Barriers at which the cores of a TPU wait for one another."""

from __future__ import annotations

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

BARRIER = "barrier-cores"
"""What the runtime calls them on a core's line `XLA TraceMe`."""


def barriers(trace: Trace) -> Int32:
    """Rows of all barriers of a profile, on every core."""
    rows = trace.rows(EventKind.DEVICE_ANNOTATION)
    names = distinct(trace.events.name[rows])
    own = [name for name in names.tolist() if trace.strings[name] == BARRIER]
    found: Int32 = rows[is_in(trace.events.name[rows], own)]
    return found
