"""Evidence by reference: rows and spans of a worker's trace, tables and series."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace.tables import Int32, Int64

Unit = Literal["", "ns", "bytes", "share", "count", "bytes/s", "flop/s"]
Cell = str | int | float | bool | None


class Events(Struct, frozen=True):
    """Events of one worker's trace, the costliest first."""

    title: str
    rows: Int32
    worker: int
    """Index into the run's traces."""


class Span(Struct, frozen=True):
    """A stretch of time, with what it shows."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


class Column(Struct, frozen=True):
    """A column of a table."""

    key: str
    label: str
    unit: Unit = ""


class Table(Struct, frozen=True):
    """A table; the report caps its rows and says how many it left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Series(Struct, frozen=True):
    """A value over steps or time."""

    title: str
    x_unit: Unit
    unit: Unit
    points: tuple[tuple[float, float], ...]


Evidence = Events | Span | Table | Series


def costliest(title: str, worker: int, rows: Int32, cost: Int64) -> Events:
    """Events in order of what they cost, the costliest first.

    Args:
        title: Of the list.
        worker: Whose events, an index into the run's traces.
        rows: Shape (n,).
        cost: Shape (n,).
    """
    return Events(title, rows[np.argsort(-cost, kind="stable")], worker)
