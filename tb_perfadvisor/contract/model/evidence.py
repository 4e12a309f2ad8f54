"""What a finding rests on."""

from __future__ import annotations

import msgspec

Cell = str | int | float | bool | None


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the trace."""

    worker: int
    start_ns: int
    duration_ns: int
    cost_ns: int | None = None
    """What it costs, by which the list is ordered; null if that is its duration."""
    track: str
    name: str
    step: int | None
    source: str | None
    """Source line or Python frame."""


class EventsEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="events"):
    """Events, the costliest first."""

    title: str
    rows: list[EvidenceRow]
    truncated: int


class SpanEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="span"):
    """A span of time on one track."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table; `unit` is ns, bytes, share, count, bytes/s, flop/s or empty."""

    key: str
    label: str
    unit: str


class TableEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="table"):
    """A table."""

    title: str
    columns: list[TableColumn]
    rows: list[list[Cell]]
    truncated: int


class SeriesEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="series"):
    """A value over steps or time."""

    title: str
    x_unit: str
    unit: str
    points: list[tuple[float, float]]


Evidence = EventsEvidence | SpanEvidence | TableEvidence | SeriesEvidence
