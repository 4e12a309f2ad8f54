"""Where in the user's code an event comes from, as far as the profile tells."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.tables import Int32

_PYTHON = int(EventKind.PYTHON)
# `train.py(12): step` as PyTorch's profiler writes frames, `$train.py:12 step` as XLA's does.
_FRAME = re.compile(
    r"^\$?(?P<file>(?:[A-Za-z]:)?[^(:]*\.py)[(:](?P<line>\d+)\)?:? (?P<function>\S.*)$"
)
_FRAMEWORK_FILE = re.compile(
    r"(^|/)(torch|tensorflow|keras|jax|jaxlib|flax|numpy)/|(site|dist)-packages/|^<frozen"
    r"|(^|/)(threading|contextlib|runpy|functools)\.py$|(^|/)(api|pjit|profiler|array|dispatch|ufunc_api|core|traceback_util|pxla)\.py$"
)


def source_line(trace: Trace, row: int, launching_operator: Int32) -> str | None:
    """The source line of an event: the operator's own, the HLO's, or the Python frame's.

    Args:
        trace: The trace.
        row: The event; a device event counts for the call that launched it.
        launching_operator: For each event, the innermost operator around it (events,).
    """
    launch = int(trace.events.launched_by[row])
    host_row = launch if launch >= 0 else row
    slot = _slot(trace.operators.row, launching_operator[host_row])
    if slot >= 0:
        frame = trace.text(int(trace.operators.frame[slot]))
        if frame:
            return frame
    slot = _slot(trace.hlo_events.row, row)
    if slot >= 0:
        line = trace.text(int(trace.hlo.source_line[trace.hlo_events.op[slot]]))
        return line or None
    return user_frame(trace, host_row)


def _slot(rows: Int32, row: int | np.integer) -> int:
    """Where a row stands among sorted rows; -1 for nowhere."""
    # Of the rows' own type, or all of them would be converted for each look-up.
    slot = int(np.searchsorted(rows, rows.dtype.type(row)))
    return slot if slot < len(rows) and rows[slot] == row else -1


def user_frame(trace: Trace, row: int) -> str | None:
    """The innermost Python frame around an event that is not the framework's own.

    Of its file the last two parts of the path: no directory of the recording machine leaves it.
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


def user_line(frame: str) -> str | None:
    """`src/train.py:12 step` of a frame's name; None for the framework's own."""
    found = _FRAME.match(frame)
    if found is None or _FRAMEWORK_FILE.search(found["file"]):
        return None
    file = "/".join(found["file"].replace("\\", "/").split("/")[-2:])
    return f"{file}:{found['line']} {found['function']}"
