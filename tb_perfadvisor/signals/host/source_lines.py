"""Where in the user's code an event comes from."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.tables import Int32

_PYTHON = int(EventKind.PYTHON)


def source_line(signals: Signals, row: int) -> str | None:
    """The source line of an event: from its operator, its HLO, or the Python frames around it.

    Args:
        signals: The rank.
        row: The event; a device event has the line of the call that launched it.
    """
    trace = signals.trace
    launch = int(trace.events.launched_by[row])
    host_row = launch if launch >= 0 else row
    slot = _slot(trace.operators.row, signals.launching_operator[host_row])
    if slot >= 0:
        frame = trace.text(int(trace.operators.frame[slot]))
        if frame:
            return frame
    slot = _slot(trace.hlo_events.row, row)
    if slot >= 0:
        line = trace.text(int(trace.hlo.source_line[trace.hlo_events.op[slot]]))
        return line or None
    return _user_frame(trace, host_row)


def place_of(signals: Signals, row: int) -> str:
    """The line, module or annotation of an operator, if any is known: `train.py:12 step`.

    Args:
        signals: The rank.
        row: The operator; a backward operator has the place of its forward operator.
    """
    forward = int(signals.origins.forward[row])
    row = forward if forward >= 0 else row
    return source_line(signals, row) or signals.origins.module_of(row) or _annotation(signals, row)


def _annotation(signals: Signals, row: int) -> str:
    """The innermost annotation around an event; empty if there is none."""
    events = signals.trace.events
    while row >= 0 and events.kind[row] != EventKind.ANNOTATION:
        row = int(events.parent[row])
    return signals.trace.name(row) if row >= 0 else ""


def _slot(rows: Int32, row: int | np.integer) -> int:
    """Index of a row among sorted rows; -1 if it is not there."""
    # With the dtype of `rows`; otherwise numpy converts all of them for each look-up.
    slot = int(np.searchsorted(rows, rows.dtype.type(row)))
    return slot if slot < len(rows) and rows[slot] == row else -1


def _user_frame(trace: Trace, row: int) -> str | None:
    """The innermost Python frame of user code around an event.

    Only the last two parts of its path are kept, so that no directory of the recording machine
    leaks.
    """
    parent, kind = trace.events.parent, trace.events.kind
    at = int(parent[row])
    while at >= 0:
        if kind[at] == _PYTHON:
            line = user_line(trace.name(at))
            if line is not None:
                return line
        at = int(parent[at])
    return None
