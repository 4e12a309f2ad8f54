"""Decodes planes to lines and columns of events, without interpreting them."""

from __future__ import annotations

import re
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane.decode import wire
from tb_perfadvisor.ingest.xplane.decode.file_reader import Field, FileReader
from tb_perfadvisor.ingest.xplane.decode.line_events import (
    LineEvents,
    first_event,
    line_name,
    read_line,
)
from tb_perfadvisor.ingest.xplane.decode.metadata import (
    HOST_STATS,
    ITERATOR_STATS,
    PLACING_STATS,
    USED_STATS,
    WORK_STATS,
    Metadata,
    StatNames,
    map_entries,
    plane_stats,
)
from tb_perfadvisor.ingest.xplane.decode.record_runs import Run, find_records
from tb_perfadvisor.ingest.xplane.decode.stats import (
    StatColumn,
    StatDecoder,
    StatField,
    Texts,
    of_type,
)
from tb_perfadvisor.trace.id_index import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64, repeated

# Planes with threads, except for `_NOT_THREADS`.
_THREADS: Final = re.compile(r"/host:\w+|/device:CPU\b")
METADATA: Final = "/host:metadata"
_NOT_THREADS: Final = frozenset({METADATA, "/host:perf_counters"})
# Devices whose lines are known, and their lines with real work.
_KNOWN_DEVICES: Final = ("/device:GPU:", "/device:TPU:")
_REAL_WORK: Final = re.compile(r"Stream #|XLA Ops$")
UNUSED_LINES: Final = frozenset(
    {
        *("TensorFlow Name Scope", "TensorFlow Ops", "Framework Name Scope", "Framework Ops"),
        *("Source code", "Launch Stats"),
    }
)
"""Lines of known devices that repeat all work by its place in the program. They are not used."""

# No host has as many threads, and no device as many streams.
_MAX_LINES: Final = 1 << 16

# Fields of XPlane.
_NAME, _LINES, _KINDS, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_TABLES: Final = (_KINDS, _STAT_NAMES, _PLANE_STATS)
_TABLE_BYTES: Final = 4 << 20
_NONE: Final = np.empty(0, dtype=np.int64)
_NO_ROWS: Final = np.empty(0, dtype=np.int32)


class Line(Struct):
    """A line of a plane, with its events as columns of shape (n,), in file order."""

    id: int
    name: str
    metadata: Metadata
    row: Int32
    """Row of the event kind in `metadata`."""
    start_ns: Int64
    duration_ns: Int64
    broken_events: int
    is_damaged: bool
    """Whether bytes after the last event could not be decoded."""
    _stats: dict[str, StatColumn]
    _inline: Texts

    @classmethod
    def of(cls, line: LineEvents, metadata: Metadata, inline: Texts) -> Line:
        """Create a line from decoded events and their kinds."""
        return cls(
            id=line.id,
            name=line.name,
            metadata=metadata,
            row=np.concatenate([_NO_ROWS, *map(metadata.ids.rows, line.kinds)]),
            start_ns=line.start_ns,
            duration_ns=line.duration_ns,
            broken_events=line.broken_events,
            is_damaged=line.is_damaged,
            _stats=line.stats,
            _inline=inline,
        )

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)

    @property
    def names(self) -> list[str]:
        """The names of the event kinds, by row."""
        return self.metadata.names

    def has(self, stat: str) -> NDArray[np.bool_]:
        """Which events have a stat, either directly or through their kind."""
        by_row = np.zeros(len(self.names), dtype=bool)
        by_row[list(self.metadata.values(stat))] = True
        found = by_row[self.row]
        for part in self._column(stat):
            found[part.first :][part.owner] = True
        return found

    def numbers(self, stat: str, default: int = -1) -> Int64:
        """An integer stat of every event; read-only."""
        if not self._is_used(stat):
            return repeated(default, len(self), np.int64)
        found = self._shared(stat, default, np.int64)
        for part in of_type(self._column(stat), StatField.INT64, StatField.UINT64):
            found[part.first :][part.owner] = part.value.view(np.int64)
        return found

    def floats(self, stat: str) -> NDArray[np.float64]:
        """A numeric stat of every event, NaN if missing; read-only."""
        if not self._is_used(stat):
            return repeated(np.nan, len(self), np.float64)
        found = self._shared(stat, np.nan, np.float64)
        for field, dtype in (
            (StatField.INT64, np.int64),
            (StatField.UINT64, np.uint64),
            (StatField.DOUBLE, np.float64),
        ):
            for part in of_type(self._column(stat), field):
                found[part.first :][part.owner] = part.value.view(dtype)
        return found

    def texts(self, stat: str) -> tuple[Int64, list[str]]:
        """A text stat: for every event the index into the distinct texts, -1 if missing."""
        if not self._is_used(stat):
            return repeated(-1, len(self), np.int64), []
        index_of: dict[str, int] = {}
        shared = {
            row: index_of.setdefault(value, len(index_of))
            for row, value in self.metadata.values(stat).items()
            if isinstance(value, str)
        }
        found = self._expanded(shared, -1, np.int64)
        stat_names = self.metadata.stat_names
        references = [
            (part, stat_names.ids.rows(part.value.view(np.int64)))
            for part in of_type(self._column(stat), StatField.REFERENCE)
        ]
        inline = [
            (part, part.value.view(np.int64))
            for part in of_type(self._column(stat), StatField.TEXT, StatField.BYTES)
        ]
        texts: StatNames | Texts
        for parts, texts in ((references, stat_names), (inline, self._inline)):
            used = distinct(np.concatenate([_NONE, *(distinct(rows) for _, rows in parts)]))
            known = np.array(
                [index_of.setdefault(texts.row(row), len(index_of)) for row in used.tolist()],
                dtype=np.int64,
            )
            slots = IdIndex(used)
            for part, rows in parts:
                found[part.first :][part.owner] = known[slots.rows(rows)]
        return found, list(index_of)

    def _is_used(self, stat: str) -> bool:
        return bool(self._column(stat) or self.metadata.values(stat))

    def _shared(self, stat: str, default: float, dtype: Any) -> NDArray[Any]:
        shared = {
            row: _fit(value, dtype, default)
            for row, value in self.metadata.values(stat).items()
            if isinstance(value, (int, float))
        }
        return self._expanded(shared, default, dtype)

    def _expanded(self, shared: dict[int, Any], default: float, dtype: Any) -> NDArray[Any]:
        """Values of event kinds, by row, expanded to a writable column of all events."""
        if not shared:
            return np.full(len(self), default, dtype=dtype)
        by_row = np.full(len(self.names), default, dtype=dtype)
        by_row[list(shared)] = list(shared.values())
        return by_row[self.row]

    def _column(self, stat: str) -> StatColumn:
        if stat not in USED_STATS and stat not in ITERATOR_STATS:
            raise KeyError(stat)
        return self._stats.get(stat, ())


class Outline(Struct, frozen=True):
    """The positions of a plane's parts in the file."""

    name: str
    lines: tuple[tuple[int, int], ...]
    """Begin and end of each used line."""
    tables_at: int
    """The position after the lines, where the tables start."""
    end: int

    def has_events(self, file: FileReader) -> bool:
        """Whether any line has events; reads only the beginning of each line."""
        return any(first_event(file, begin, end) is not None for begin, end in self.lines)


def is_host(plane_name: str) -> bool:
    """Whether the lines of a plane are host threads."""
    return _THREADS.match(plane_name) is not None and plane_name not in _NOT_THREADS


def outline(file: FileReader, begin: int, end: int) -> Outline | None:
    """Find the parts of a plane; None if it is damaged before its tables."""
    name, lines, at = "", [], begin
    while (field := file.field(at, end)) is not None:
        if field.wire_type == wire.DELIMITED:
            if field.number in _TABLES:
                break
            if field.number == _NAME:
                name = file.text(field)
            elif field.number == _LINES and _is_used(file, name, field):
                lines.append((field.begin, field.end))
        at = field.end
    is_damaged = (field is None and at < end) or len(lines) > _MAX_LINES
    return None if is_damaged else Outline(name, tuple(lines), at, end)


def _is_used(file: FileReader, plane_name: str, line: Field) -> bool:
    if not plane_name.startswith(_KNOWN_DEVICES):
        return line.begin < line.end
    return line_name(file, line.begin, line.end) not in UNUSED_LINES


def read_plane(file: FileReader, found: Outline) -> Plane | None:
    """Read the tables of a plane; None if it is damaged. Lines are read on access.

    Args:
        file: The profile.
        found: The outline of the plane.
    """
    lines, at = list(found.lines), found.tables_at
    # The tables are the rest of the plane; other fields in between are read on the way.
    buffer = wire.buffer_of(file.read(at, found.end))
    runs: dict[int, list[Run]] = {number: [] for number in _TABLES}
    while (field := file.field(at, found.end)) is not None:
        at = field.end
        if field.wire_type == wire.DELIMITED:
            if field.number in runs:
                first = field.at - found.tables_at
                # Limit the search, because the run may be short.
                until = min(max(field.at + _TABLE_BYTES, field.end), found.end)
                last = until - found.tables_at
                run = find_records(buffer, first, last, field.number << 3 | wire.DELIMITED)
                runs[field.number].append(run)
                at = max(at, found.tables_at + run.after)
            elif field.number == _LINES and _is_used(file, found.name, field):
                lines.append((field.begin, field.end))
    if at < found.end or len(lines) > _MAX_LINES:
        return None
    tables = {
        number: wire.Spans(
            buffer,
            np.concatenate([_NONE, *(run.begin for run in table)]),
            np.concatenate([_NONE, *(run.end for run in table)]),
        )
        for number, table in runs.items()
    }
    return Plane(file, found.name, tuple(lines), tables)


class Plane:
    """A plane: a host, a device or metadata."""

    def __init__(
        self,
        file: FileReader,
        name: str,
        lines: tuple[tuple[int, int], ...],
        tables: dict[int, wire.Spans],
    ) -> None:
        """Decode the plane's own stats.

        Args:
            file: The profile.
            name: The name of the plane.
            lines: Begin and end of each line in the file.
            tables: The messages of each of `_TABLES`.
        """
        self.name = name
        self.stat_names = StatNames(map_entries(tables[_STAT_NAMES]))
        self.stats = plane_stats(tables[_PLANE_STATS], self.stat_names)
        self._file = file
        self._spans = lines
        self._kinds = tables[_KINDS]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines."""
        return self._decoded[0]

    @property
    def metadata(self) -> Metadata:
        """The kinds of the events; in a plane without lines, all kinds that it lists."""
        return self._decoded[1]

    @cached_property
    def has_iterators(self) -> bool:
        """Whether tf.data recorded its iterators."""
        return "parent_id" in self.stat_names and is_host(self.name)

    @cached_property
    def _decoded(self) -> tuple[tuple[Line, ...], Metadata]:
        inline = Texts()
        decoder = partial(self._decoder, texts=inline)
        read = [read_line(self._file, begin, end, decoder) for begin, end in self._spans]
        kinds = map_entries(self._kinds)
        if read:
            # Programs have many more operations than a capture contains.
            occurring = np.concatenate([_NONE, *(distinct(k) for line in read for k in line.kinds)])
            kinds = kinds.select(distinct(occurring))
        metadata = Metadata(kinds, self.stat_names)
        return tuple(Line.of(line, metadata, inline) for line in read), metadata

    def _decoder(self, line_name: str, texts: Texts) -> StatDecoder:
        return self.stat_names.decoder(self._wanted(line_name), texts)

    def _wanted(self, line_name: str) -> frozenset[str]:
        if is_host(self.name):
            return HOST_STATS | ITERATOR_STATS if self.has_iterators else HOST_STATS
        if not line_name or not self.name.startswith(_KNOWN_DEVICES):
            return WORK_STATS | PLACING_STATS
        return WORK_STATS if _REAL_WORK.match(line_name) else PLACING_STATS


def _fit(value: float, dtype: Any, default: float) -> float:
    """Convert a number to the column's type."""
    if dtype is np.int64:
        if not np.isfinite(value):
            return default
        whole = int(value)
        # As in events, identifiers above 2^63 keep their bits.
        return whole - 2**64 if 2**63 <= whole < 2**64 else max(-(2**63), min(whole, 2**63 - 1))
    return float(value)
