"""Gives events of a trace other times, and puts them back into order."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from tb_perfadvisor.trace.nesting import enclosing_rows, start_order
from tb_perfadvisor.trace.tables import CapturedTable, Int32, Int64, Table, is_repeated, make_table
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
    changes: dict[str, Any] = {name: _renumbered(getattr(trace, name), new_row) for name in _TABLES}
    changes["captured"] = _captured(trace.captured, new_row)
    for name in ("memory", "counters"):
        table = getattr(trace, name)
        changes[name] = make_table(type(table), {**asdict(table), "at_ns": table.at_ns - origin_ns})
    if trace.source.origin_unix_ns is not None:
        moved_ns = trace.source.origin_unix_ns + origin_ns
        changes["source"] = replace(trace.source, origin_unix_ns=moved_ns)
    return replace(trace, events=make_table(type(trace.events), columns), **changes)


def _ordered(column: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    return column[: order.size] if is_repeated(column) else column[order]


def _renumbered(table: Any, new_row: Int32) -> Any:
    """A table of attributes with the new rows of the events that stay, in their order."""
    columns = asdict(table)
    row = new_row[columns.pop("row")]
    order = np.argsort(row, kind="stable")[np.count_nonzero(row < 0) :]
    ordered = {name: _ordered(column, order) for name, column in columns.items()}
    return make_table(type(table), {**ordered, "row": row[order]})


def part_of(trace: Trace, is_chosen: NDArray[np.bool_]) -> Trace:
    """The part of a trace on some tracks. Times, strings and notes stay as they are.

    `is_chosen` has shape (tracks,).
    """
    new_track = _numbered(is_chosen)
    trace = with_events(trace, is_chosen[trace.events.track])
    events = {**asdict(trace.events), "track": new_track[trace.events.track]}
    devices = set(trace.tracks.device[is_chosen].tolist())
    memory = trace.memory
    on_thread = memory.track >= 0
    keeps_memory = np.where(
        on_thread, new_track[memory.track] >= 0, np.isin(memory.device, list(devices))
    )
    changes = {name: column[keeps_memory] for name, column in asdict(memory).items()}
    changes["track"] = new_track[changes["track"]]
    return replace(
        trace,
        events=make_table(type(trace.events), events),
        tracks=_rows(trace.tracks, is_chosen),
        memory=make_table(type(memory), changes),
        devices=tuple(device for device in trace.devices if device.index in devices),
    )


def with_events(trace: Trace, is_kept: NDArray[np.bool_]) -> Trace:
    """A trace without some of its events. Times, tracks, strings and notes stay as they are.

    `is_kept` has shape (events,). Events inside one that goes must go, too, or they have no parent
    any more.
    """
    new_row = _numbered(is_kept)
    rows = np.flatnonzero(is_kept)
    events = {name: _ordered(column, rows) for name, column in asdict(trace.events).items()}
    for name in _ROWS:
        if not is_repeated(events[name]):  # -1 stays -1
            events[name] = new_row[events[name]]
    return replace(
        trace,
        events=make_table(type(trace.events), events),
        **{name: _renumbered(getattr(trace, name), new_row) for name in _TABLES},
        captured=_captured(trace.captured, new_row),
    )


def _captured(table: CapturedTable, new_row: NDArray[np.int32]) -> CapturedTable:
    row, operator = new_row[table.row], new_row[table.operator]
    is_kept = (row >= 0) & (operator >= 0)
    return make_table(CapturedTable, {"row": row[is_kept], "operator": operator[is_kept]})


def _numbered(is_kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The new index of each element; -1 for those that go. Index -1 stays -1."""
    number = np.full(len(is_kept) + 1, -1, dtype=np.int32)
    number[:-1][is_kept] = np.arange(int(is_kept.sum()), dtype=np.int32)
    return number


def _rows(table: Table, is_kept: NDArray[np.bool_]) -> Table:
    return make_table(
        type(table), {name: column[is_kept] for name, column in asdict(table).items()}
    )
