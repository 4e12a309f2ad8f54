"""Takes a part of a trace: some of its events, or those of some tracks."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import CapturedTable, SampleTable, Table, make_table
from tb_perfadvisor.trace.trace import Trace

_ROWS_OF_EVENTS = ("parent", "launched_by", "forward")


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
        samples=_on_tracks(trace.samples, new_track),
        devices=tuple(device for device in trace.devices if device.index in devices),
    )


def _on_tracks(samples: SampleTable, new_track: NDArray[np.int32]) -> SampleTable:
    columns = asdict(samples)
    columns["track"] = new_track[samples.track]
    kept = {name: column[columns["track"] >= 0] for name, column in columns.items()}
    return make_table(SampleTable, kept)


def with_events(trace: Trace, is_kept: NDArray[np.bool_]) -> Trace:
    """A trace without some of its events. Times, tracks, strings and notes stay as they are.

    `is_kept` has shape (events,). Events inside one that goes must go, too, or they have no parent
    any more.
    """
    new_row = _numbered(is_kept)
    events = {name: column[is_kept] for name, column in asdict(trace.events).items()}
    for name in _ROWS_OF_EVENTS:
        events[name] = new_row[events[name]]
    return replace(
        trace,
        events=make_table(type(trace.events), events),
        **{name: _of_events(getattr(trace, name), new_row) for name in _TABLES},
        captured=_captured(trace.captured, new_row),
    )


_TABLES = ["kernels", "launches", "copies", "collectives", "operators", "hlo_events", "iterators"]


def _captured(table: CapturedTable, new_row: NDArray[np.int32]) -> CapturedTable:
    row, operator = new_row[table.row], new_row[table.operator]
    is_kept = (row >= 0) & (operator >= 0)
    return make_table(CapturedTable, {"row": row[is_kept], "operator": operator[is_kept]})


def _numbered(is_kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The new index of each element; -1 for those that go. Index -1 stays -1."""
    number = np.full(len(is_kept) + 1, -1, dtype=np.int32)
    number[:-1][is_kept] = np.arange(int(is_kept.sum()), dtype=np.int32)
    return number


def _of_events(table: Any, new_row: NDArray[np.int32]) -> Any:
    """A table of attributes with the rows of the events that stay."""
    columns = asdict(table)
    row = new_row[columns["row"]]
    kept = {name: column[row >= 0] for name, column in columns.items()}
    return make_table(type(table), {**kept, "row": row[row >= 0]})


def _rows(table: Table, is_kept: NDArray[np.bool_]) -> Table:
    return make_table(
        type(table), {name: column[is_kept] for name, column in asdict(table).items()}
    )
