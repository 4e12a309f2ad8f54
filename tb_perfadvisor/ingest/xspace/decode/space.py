"""A whole XSpace: its planes, from a file.

Reads the top level of an XSpace: the positions of its planes, its messages, and its damage.

It is read field by field, so that a truncated file gives the planes before its end, and so that a
plane is in memory only while it is decoded.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.containers import container_of
from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.events import (
    Line,
    Lines,
    first_event,
    line_name,
    read_lines,
)
from tb_perfadvisor.ingest.xspace.decode.messages import Field, FileReader
from tb_perfadvisor.ingest.xspace.decode.stats import (
    HOST_STATS,
    ITERATOR_STATS,
    PLACING_STATS,
    WORK_STATS,
    Metadata,
    StatNames,
    Texts,
    map_entries,
    plane_stats,
)
from tb_perfadvisor.ingest.xspace.decode.wire import RecordRun, find_records
from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.integer_groups import distinct

# Fields of XSpace.
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4
# Limits of the profiler's messages.
_MAX_TEXT_BYTES: Final = 500
_MAX_MESSAGES: Final = 20
# There is one plane per device and per part of a device.
_MAX_PLANES: Final = 1 << 12
# The beginning of the file, to detect the format.
_HEAD_BYTES: Final = 512


class Space(Struct, frozen=True):
    """The top level of an XSpace, with the positions of its planes."""

    planes: tuple[tuple[int, int], ...]
    """Begin and end of each plane in the file."""
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    is_truncated: bool


class Damage(Struct):
    """The parts of planes that could not be read."""

    planes: list[int] = field(default_factory=list)
    """The numbers of the planes that are left out."""
    lines: int = 0
    events: int = 0


def read_space(file: FileReader, *, where: str) -> Space:
    """Find the planes of an XSpace without reading them."""
    if not file.size:
        raise UnreadableProfileError(
            "the file is empty.", where=where, hint="Record the profile again."
        )
    planes: list[tuple[int, int]] = []
    texts: dict[int, dict[str, None]] = {_ERRORS: {}, _WARNINGS: {}, _HOSTNAMES: {}}
    at = 0
    # An invalid field is damage if it follows planes; otherwise the file has another format.
    while (part := file.field(at, file.size)) is not None and part.wire_type == wire.DELIMITED:
        at = part.end
        if part.number == _PLANES:
            planes.append((part.begin, part.end))
            if len(planes) > _MAX_PLANES:
                raise UnreadableProfileError(
                    f"this is not a profile: it has more than {_MAX_PLANES:,} planes.",
                    where=where,
                    hint="Record the profile again.",
                )
        elif part.number in texts and len(texts[part.number]) < _MAX_MESSAGES:
            texts[part.number][_beginning(file, part)] = None
    is_truncated = at < file.size
    if not planes:
        head = file.read(0, min(_HEAD_BYTES, file.size))
        container = container_of(bytes(head))
        if container is not None:
            raise UnreadableProfileError(
                f"the file is {container}.", where=where, hint="Unpack it first."
            )
        if is_truncated and looks_like_plane(head):
            raise UnreadableProfileError(
                "the file ends inside its first plane.",
                where=where,
                hint="Copy it again from where it was written, or record the profile again.",
            )
        raise UnreadableProfileError(
            "this is not an XSpace profile.",
            where=where,
            hint="Expected an *.xplane.pb of a TensorFlow, JAX or PyTorch/XLA profiler.",
        )
    errors, warnings, hostnames = (tuple(messages) for messages in texts.values())
    return Space(tuple(planes), errors, warnings, hostnames, is_truncated)


def _beginning(file: FileReader, text: Field) -> str:
    end = min(text.end, text.begin + _MAX_TEXT_BYTES)
    return file.read(text.begin, end).decode("utf-8", "replace")


def looks_like_plane(head: bytes) -> bool:
    """Whether bytes start like an XSpace: a plane (field 1) that starts with its id or name."""
    if head[:1] != b"\x0a":
        return False
    _, begin = wire.varint(head, 1)
    if begin <= 0 or begin >= len(head):
        return False
    at = begin
    if head[at] == 0x08:  # the plane's id
        _, at = wire.varint(head, at + 1)
        if not 0 < at < len(head):
            return False
    if head[at] != 0x12:  # the plane's name
        return False
    length, start = wire.varint(head, at + 1)
    name = head[start : start + max(length, 0)]
    return 0 < length < 256 and all(0x20 <= byte < 0x7F for byte in name)


def space_notes(space: Space, damage: Damage) -> list[Note]:
    """Notes on damage, and the profiler's messages."""
    notes = []
    if space.is_truncated:
        notes.append(
            Note(
                "truncated-file",
                "warning",
                f"The file is truncated: only its first {len(space.planes)} planes were read.",
                "Copy it again from where it was written, or record the profile again.",
            )
        )
    if damage.planes:
        notes.append(
            Note(
                "broken-plane",
                "warning",
                f"{len(damage.planes)} of {len(space.planes)} planes could not be decoded and were "
                f"left out (number {', '.join(map(str, damage.planes[:5]))}).",
                "Record the profile again.",
            )
        )
    if damage.lines:
        notes.append(
            Note(
                "broken-line",
                "warning",
                f"{damage.lines} lines are damaged; only their beginning was read.",
                "Record the profile again.",
            )
        )
    if damage.events:
        notes.append(
            Note(
                "broken-events",
                "warning",
                f"{damage.events} events with impossible times were left out.",
            )
        )
    notes += [Note("profiler-error", "error", _reported(text)) for text in space.errors]
    notes += [Note("profiler-warning", "warning", _reported(text)) for text in space.warnings]
    return notes


def _reported(text: str) -> str:
    return f"The profiler reported: {text}"


# Planes with threads, except for `_NOT_THREADS`.
_THREADS: Final = regex(r"/host:\w+|/device:CPU\b")
METADATA: Final = "/host:metadata"
_NOT_THREADS: Final = frozenset({METADATA, "/host:perf_counters"})
# Devices whose lines are known, and their lines with real work.
_KNOWN_DEVICES: Final = ("/device:GPU:", "/device:TPU:")
_REAL_WORK: Final = regex(r"Stream #|XLA Ops$")
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
    """Find the parts of a plane; None if it is damaged before its tables."""
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
    """Read the tables of a plane; None if it is damaged. Lines are read on access."""
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

        `lines` has begin and end of each line in the file, and `tables` the messages of each of
        `_TABLES`.
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
