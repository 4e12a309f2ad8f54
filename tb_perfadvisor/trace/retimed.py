"""Gives events of a trace other times, and puts them back into order."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from tb_perfadvisor.trace.nesting import enclosing_rows, start_order
from tb_perfadvisor.trace.tables import Int32, Int64, is_repeated, make_table
from tb_perfadvisor.trace.trace import Trace

_ROWS = ("parent", "launched_by", "forward")
_TABLES = ("kernels", "launches", "copies", "collectives", "operators", "hlo_events", "iterators")


def retimed(
    trace: Trace, start_ns: Int64, duration_ns: Int64, is_moved: NDArray[np.bool_]
) -> Trace:
    """The trace with other times. The earliest event may begin before 0; then all times move.

    Times have shape (events,), and `is_moved` has shape (tracks,). On tracks whose times changed,
    what encloses what is found anew.
    """
    order = start_order(start_ns, duration_ns)
    new_row = np.empty(order.size + 1, dtype=np.int32)
    new_row[order] = np.arange(order.size, dtype=np.int32)
    new_row[-1] = -1
    origin_ns = int(start_ns[order[0]]) if order.size else 0
    columns = {name: _ordered(column, order) for name, column in asdict(trace.events).items()}
    columns["start_ns"] = start_ns[order] - origin_ns
    columns["duration_ns"] = duration_ns[order]
    for name in _ROWS:
        columns[name] = new_row[columns[name]]
    rows = np.flatnonzero(is_moved[columns["track"]]).astype(np.int32)
    start, end = columns["start_ns"][rows], (columns["start_ns"] + columns["duration_ns"])[rows]
    enclosing = enclosing_rows(start, end, columns["track"][rows])
    columns["parent"][rows] = np.where(enclosing >= 0, rows[enclosing], -1)
    captured = trace.captured
    changes: dict[str, Any] = {name: _renumbered(getattr(trace, name), new_row) for name in _TABLES}
    changes["captured"] = make_table(
        type(captured),
        {"row": new_row[captured.row], "operator": new_row[captured.operator]},
    )
    for name in ("memory", "samples", "counters"):
        table = getattr(trace, name)
        changes[name] = make_table(type(table), {**asdict(table), "at_ns": table.at_ns - origin_ns})
    if trace.source.origin_unix_ns is not None:
        moved_ns = trace.source.origin_unix_ns + origin_ns
        changes["source"] = replace(trace.source, origin_unix_ns=moved_ns)
    return replace(trace, events=make_table(type(trace.events), columns), **changes)


def _ordered(column: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    return column if is_repeated(column) else column[order]


def _renumbered(table: Any, new_row: Int32) -> Any:
    """A table of attributes with the new rows of its events, in their order."""
    columns = asdict(table)
    row = new_row[columns["row"]]
    order = np.argsort(row, kind="stable")
    ordered = {name: _ordered(column, order) for name, column in columns.items()}
    return make_table(type(table), {**ordered, "row": row[order]})
