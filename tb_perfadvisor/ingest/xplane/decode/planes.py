"""From the bytes of planes to lines and columns of events; no meaning yet."""

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

# Planes of threads, but for some that hold something else.
_THREADS: Final = re.compile(r"/host:\w+|/device:CPU\b")
FACTS: Final = "/host:metadata"
_NOT_THREADS: Final = frozenset({FACTS, "/host:perf_counters"})
# Devices whose lines are known, and those of them that are real work.
_KNOWN_DEVICES: Final = ("/device:GPU:", "/device:TPU:")
_REAL_WORK: Final = re.compile(r"Stream #|XLA Ops$")
UNUSED_LINES: Final = frozenset(
    {
        *("TensorFlow Name Scope", "TensorFlow Ops", "Framework Name Scope", "Framework Ops"),
        *("Source code", "Launch Stats"),
    }
)
"""Of known devices: what ran once more, by where the program says it. They hold as many events as
the device ran, and nobody asks for them."""

# Of a plane: no machine runs so many threads, no device so many streams.
_MOST_LINES: Final = 1 << 16

# Fields of XPlane.
_NAME, _LINES, _KINDS, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_TABLES: Final = (_KINDS, _STAT_NAMES, _PLANE_STATS)
_TABLE_BYTES: Final = 4 << 20
_NONE: Final = np.empty(0, dtype=np.int64)
_NO_ROWS: Final = np.empty(0, dtype=np.int32)


class Line(Struct):
    """One line of a plane: its events as columns of shape (n,), in file order."""

    id: int
    name: str
    metadata: Metadata
    row: Int32
    """Of the `metadata`."""
    start_ns: Int64
    duration_ns: Int64
    broken_events: int
    is_damaged: bool
    """What follows the last event could not be read."""
    _stats: dict[str, StatColumn]
    _inline: Texts

    @classmethod
    def of(cls, line: LineEvents, metadata: Metadata, inline: Texts) -> Line:
        """A line whose kinds of event are known."""
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
        """What the rows mean."""
        return self.metadata.names

    def has(self, stat: str) -> NDArray[np.bool_]:
        """Which events carry a stat, themselves or through their kind."""
        by_row = np.zeros(len(self.names), dtype=bool)
        by_row[list(self.metadata.values(stat))] = True
        found = by_row[self.row]
        for part in self._column(stat):
            found[part.first :][part.owner] = True
        return found

    def numbers(self, stat: str, default: int = -1) -> Int64:
        """A whole-number stat of every event; not to be written on."""
        if not self._is_used(stat):
            return repeated(default, len(self), np.int64)
        found = self._shared(stat, default, np.int64)
        for part in of_type(self._column(stat), StatField.INT64, StatField.UINT64):
            found[part.first :][part.owner] = part.value.view(np.int64)
        return found

    def floats(self, stat: str) -> NDArray[np.float64]:
        """A numeric stat of every event, NaN where it has none; not to be written on."""
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
        """A text stat: for every event an index into the distinct texts, -1 for none."""
        if not self._is_used(stat):
            return repeated(-1, len(self), np.int64), []
        index_of: dict[str, int] = {}
        shared = {
            row: index_of.setdefault(value, len(index_of))
            for row, value in self.metadata.values(stat).items()
            if isinstance(value, str)
        }
        found = self._of_kinds(shared, -1, np.int64)
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
        return self._of_kinds(shared, default, dtype)

    def _of_kinds(self, shared: dict[int, Any], default: float, dtype: Any) -> NDArray[Any]:
        """What the events' kinds say, by row, as a column to write on."""
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
    """Where the parts of a plane are in the file."""

    name: str
    lines: tuple[tuple[int, int], ...]
    """Begin and end of each that is of use."""
    tables_at: int
    """What follows the lines, up to the plane's end."""
    end: int

    def has_events(self, file: FileReader) -> bool:
        """Whether a line has events; only the beginning of each is read."""
        return any(first_event(file, begin, end) is not None for begin, end in self.lines)


def is_host(plane_name: str) -> bool:
    """Whether a plane's lines are threads of the host."""
    return _THREADS.match(plane_name) is not None and plane_name not in _NOT_THREADS


def outline(file: FileReader, begin: int, end: int) -> Outline | None:
    """Find the parts of a plane; None when it is damaged before its tables."""
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
    is_damaged = (field is None and at < end) or len(lines) > _MOST_LINES
    return None if is_damaged else Outline(name, tuple(lines), at, end)


def _is_used(file: FileReader, plane_name: str, line: Field) -> bool:
    if not plane_name.startswith(_KNOWN_DEVICES):
        return line.begin < line.end
    return line_name(file, line.begin, line.end) not in UNUSED_LINES


def read_plane(file: FileReader, found: Outline) -> Plane | None:
    """Read what describes a plane; None when it is damaged.

    Its lines are read when they are asked for.

    Args:
        file: The profile.
        found: The plane.
    """
    lines, at = list(found.lines), found.tables_at
    # The tables are many and small, and all that is left: other fields are read in passing.
    buffer = wire.buffer_of(file.read(at, found.end))
    runs: dict[int, list[Run]] = {number: [] for number in _TABLES}
    while (field := file.field(at, found.end)) is not None:
        at = field.end
        if field.wire_type == wire.DELIMITED:
            if field.number in runs:
                first = field.at - found.tables_at
                # Not far beyond the run, where it is a short one before something else.
                until = min(max(field.at + _TABLE_BYTES, field.end), found.end)
                last = until - found.tables_at
                run = find_records(buffer, first, last, field.number << 3 | wire.DELIMITED)
                runs[field.number].append(run)
                at = max(at, found.tables_at + run.after)
            elif field.number == _LINES and _is_used(file, found.name, field):
                lines.append((field.begin, field.end))
    if at < found.end or len(lines) > _MOST_LINES:
        return None
    tables = {
        number: wire.Spans(
            buffer,
            np.concatenate([_NONE, *(run.begin for run in some)]),
            np.concatenate([_NONE, *(run.end for run in some)]),
        )
        for number, some in runs.items()
    }
    return Plane(file, found.name, tuple(lines), tables)


class Plane:
    """One plane: a host, a device, or a table of facts."""

    def __init__(
        self,
        file: FileReader,
        name: str,
        lines: tuple[tuple[int, int], ...],
        tables: dict[int, wire.Spans],
    ) -> None:
        """Decode what describes the plane.

        Args:
            file: The profile.
            name: The plane's.
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
        """The kinds of the events; of a plane without lines all that it lists."""
        return self._decoded[1]

    @cached_property
    def has_iterators(self) -> bool:
        """Whether tf.data tells anything of its iterators."""
        return "parent_id" in self.stat_names and is_host(self.name)

    @cached_property
    def _decoded(self) -> tuple[tuple[Line, ...], Metadata]:
        inline = Texts()
        decoder = partial(self._decoder, texts=inline)
        read = [read_line(self._file, begin, end, decoder) for begin, end in self._spans]
        kinds = map_entries(self._kinds)
        if read:
            # Programs have many more operations than a capture sees.
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
    """A number that the column's type can hold."""
    if dtype is np.int64:
        if not np.isfinite(value):
            return default
        whole = int(value)
        # As for events: identifiers above 2^63 keep their bits.
        return whole - 2**64 if 2**63 <= whole < 2**64 else max(-(2**63), min(whole, 2**63 - 1))
    return float(value)
