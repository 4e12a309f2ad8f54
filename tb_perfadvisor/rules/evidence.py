"""Evidence by reference: rows and spans of a worker's trace, tables and series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tb_perfadvisor.trace.tables import Int32, Int64

Unit = Literal["", "ns", "bytes", "share", "count", "bytes/s", "flop/s"]
Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one worker's trace, the costliest first."""

    title: str
    rows: Int32
    worker: int
    """Index into the run's traces."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, with what it shows."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: str
    label: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the report caps its rows and says how many it left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
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
