"""The operators that are the work of a program on the CPU, with their own time."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.operators import operator_self_ns
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64

_NOT_THE_STEP = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.COMPILE)
_XLA_NUMBER = re.compile(r"\.\d+$")


class HostOperators(Struct, frozen=True):
    """Executions of operators in the used steps; columns of shape (n,)."""

    rows: Int32
    self_ns: Int64
    """Without the operators inside."""
    name: Int32
    """Index into `names`."""
    names: tuple[str, ...]
    """Kinds of operators: `aten::mm`, `Conv2D`, `dot`."""


@memoized
def host_operators(signals: Signals) -> HostOperators:
    """The operators of the step, without those of the input pipeline; none with a device."""
    trace, window = signals.trace, signals.attribution
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    if not signals.device.is_host_only:
        rows = rows[:0]
    is_used = signals.steps.owner[rows] >= 0
    if trace.source.framework == "pytorch":
        is_used &= events.track[rows] == signals.step_track
    rows = rows[is_used]
    rows = rows[~has_ancestor(events.parent, rows, is_in(events.kind, _NOT_THE_STEP))]
    working = window.intervals[Cause.HOST_COMPUTE]
    rows = rows[overlap_ns(working, events.start_ns[rows], events.end_ns[rows]) > 0]
    kinds: dict[str, int] = {}
    by_name = {
        name: kinds.setdefault(operator_kind(trace.strings[name]), len(kinds))
        for name in np.unique(events.name[rows]).tolist()
    }
    name_of = np.zeros(len(trace.strings), dtype=np.int32)
    name_of[list(by_name)] = list(by_name.values())
    return HostOperators(
        rows=rows,
        self_ns=operator_self_ns(trace, rows, signals.launching_operator),
        name=name_of[events.name[rows]],
        names=tuple(kinds),
    )


def operator_kind(name: str) -> str:
    """`Conv2D` of TensorFlow's `model/conv/Conv2D:Conv2D`, `dot` of XLA's `dot.3`."""
    if "::" in name:
        return name
    return _XLA_NUMBER.sub("", name.rpartition(":")[2] or name)
