"""Recorded operators of what was found in the graphs of TensorFlow's functions."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32


def rows_of_observed(trace: Trace, found: Iterable[Observed]) -> Int32:
    """Events of operators by their names in the graph; functions around them come before."""
    wanted = {each.operator for each in found}
    rows = trace.rows(EventKind.OPERATOR)
    names = trace.events.name[rows]
    known = [
        name
        for name in distinct(names).tolist()
        for path in (trace.strings[name].rpartition(":")[0],)
        if path in wanted or path.partition("/")[2] in wanted
    ]
    chosen: Int32 = rows[is_in(names, known)]
    return chosen
