"""Decodes planes to lines and columns of events, without interpreting them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.events import Line, Lines
from tb_perfadvisor.ingest.xspace.decode.file_reader import Field, FileReader
from tb_perfadvisor.ingest.xspace.decode.line_events import (
    first_event,
    line_name,
    read_lines,
)
from tb_perfadvisor.ingest.xspace.decode.metadata import (
    HOST_STATS,
    ITERATOR_STATS,
    PLACING_STATS,
    WORK_STATS,
    Metadata,
    StatNames,
    map_entries,
    plane_stats,
)
from tb_perfadvisor.ingest.xspace.decode.record_runs import RecordRun, find_records
from tb_perfadvisor.ingest.xspace.decode.stats import (
    Texts,
)
from tb_perfadvisor.trace.integer_groups import distinct

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
_MAX_LINES: Final = 1 << 17

# Fields of XPlane.
_NAME, _LINES, _KINDS, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_TABLES: Final = (_KINDS, _STAT_NAMES, _PLANE_STATS)
_ITEMS_OF_SPAN: Final = 3
"""Where a line begins and ends."""
_ITEMS_OF_ENTRY: Final = 2
"""Where an event's kind or the name of a stat begins and ends, and its id."""
_ITEMS_OF_STAT: Final = 10
"""The name and the value of a plane's own stat."""
_TABLE_BYTES: Final = 4 << 20
_NONE: Final = np.empty(0, dtype=np.int64)


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
    """Find the parts of a plane; None if it is damaged before its tables.

    Raises:
        UnreadableProfileError: If it has more lines than any device or host.
    """
    name, at = "", begin
    lines: list[tuple[int, int]] = []
    while (field := file.field(at, end)) is not None:
        if field.wire_type == wire.DELIMITED:
            if field.number in _TABLES:
                break
            if field.number == _NAME:
                name = file.text(field)
            elif field.number == _LINES and _is_used(file, name, field):
                _add_line(file, lines, field)
        at = field.end
    is_damaged = field is None and at < end
    return None if is_damaged else Outline(name, tuple(lines), at, end)


def _add_line(file: FileReader, lines: list[tuple[int, int]], line: Field) -> None:
    file.budget.keep(_ITEMS_OF_SPAN)
    lines.append((line.begin, line.end))
    if len(lines) > _MAX_LINES:
        raise UnreadableProfileError(
            f"this is not a profile: one of its planes has more than {_MAX_LINES:,} lines.",
            where=file.where,
            hint="Record the profile again.",
        )


def _is_used(file: FileReader, plane_name: str, line: Field) -> bool:
    if not plane_name.startswith(_KNOWN_DEVICES):
        return line.begin < line.end
    return line_name(file, line.begin, line.end) not in UNUSED_LINES


def read_plane(file: FileReader, found: Outline) -> Plane | None:
    """Read the tables of a plane; None if it is damaged. Lines are read on access.

    Args:
        file: The profile.
        found: The outline of the plane.

    Raises:
        UnreadableProfileError: If it has more lines than any device or host.
    """
    lines, at = list(found.lines), found.tables_at
    # The tables are the rest of the plane; other fields in between are read on the way.
    buffer = wire.buffer_of(file.read(at, found.end))
    runs: dict[int, list[RecordRun]] = {number: [] for number in _TABLES}
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
                items = _ITEMS_OF_STAT if field.number == _PLANE_STATS else _ITEMS_OF_ENTRY
                file.budget.keep(items * len(run.begin))
                at = max(at, found.tables_at + run.after)
            elif field.number == _LINES and _is_used(file, found.name, field):
                _add_line(file, lines, field)
    if at < found.end:
        return None
    tables = {
        number: wire.Slices(
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
        tables: dict[int, wire.Slices],
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
        return self.events.lines

    @property
    def metadata(self) -> Metadata:
        """The kinds of the events; in a plane without lines, all kinds that it lists."""
        return self.events.metadata

    @property
    def events(self) -> Lines:
        """The events of all lines."""
        return self._decoded[0]

    @property
    def broken_events(self) -> int:
        """Number of events that are left out because their times are impossible."""
        return self._decoded[1]

    @property
    def damaged_lines(self) -> int:
        """Number of lines of which only the beginning could be decoded."""
        return self._decoded[2]

    @cached_property
    def has_iterators(self) -> bool:
        """Whether tf.data recorded its iterators."""
        return "parent_id" in self.stat_names and is_host(self.name)

    @cached_property
    def _decoded(self) -> tuple[Lines, int, int]:
        inline = Texts()
        read = read_lines(self._file, self._spans, self.stat_names, self._wanted, inline)
        kinds = map_entries(self._kinds)
        if self._spans:
            # Programs have many more operations than a capture contains.
            occurring = np.concatenate([_NONE, *map(distinct, read.kinds)])
            kinds = kinds.select(distinct(occurring))
        lines = Lines.of(read, Metadata(kinds, self.stat_names), inline)
        return lines, read.broken_events, read.damaged_lines

    def _wanted(self, line_name: str) -> frozenset[str]:
        if is_host(self.name):
            return HOST_STATS | ITERATOR_STATS if self.has_iterators else HOST_STATS
        if not line_name or not self.name.startswith(_KNOWN_DEVICES):
            return WORK_STATS | PLACING_STATS
        return WORK_STATS if _REAL_WORK.match(line_name) else PLACING_STATS
