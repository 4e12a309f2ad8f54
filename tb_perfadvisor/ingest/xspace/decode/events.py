"""The events of a plane, line by line.

A large line is read block by block. Small lines that follow one another are decoded together,
because a plane may have a hundred thousand lines of a few events.

What is said of each event by itself is computed for a batch of lines, because a plane may have a
hundred thousand lines of a few events. Only what depends on the order of events on their thread is
computed line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.messages import Field, FileReader
from tb_perfadvisor.ingest.xspace.decode.stats import (
    ITERATOR_STATS,
    USED_STATS,
    EventStats,
    Metadata,
    StatColumn,
    StatDecoder,
    StatField,
    StatNames,
    Texts,
    of_type,
)
from tb_perfadvisor.ingest.xspace.decode.wire import find_records
from tb_perfadvisor.trace.columns import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32, Int64, repeated

# Fields of XLine and of XEvent.
_ID, _NAME, _TIMESTAMP, _EVENTS, _DISPLAY = 1, 2, 3, 4, 11
_KIND, _OFFSET, _DURATION, _STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_EVENT_TAG: Final = _EVENTS << 3 | wire.DELIMITED
# The fields at the start of an event.
_COLUMNS: Final = tuple(number << 3 | wire.VARINT for number in (_KIND, _OFFSET, _DURATION))

# Larger times (26 days in picoseconds, 73 years in nanoseconds) are damage. Sums of a few times
# below the limit fit into 64 bits.
_TIME_LIMIT: Final = 2**61
_PS_PER_NS: Final = 1000

# Bytes of a line in memory, and events decoded at a time: columns of this size stay in the
# processor's cache from one step to the next.
_BLOCK_BYTES: Final = 4 << 20
_CHUNK: Final = 1 << 16
# A field takes at least two bytes, so a walk sees all fields of a line of this size.
_SMALL_BYTES: Final = 2 * wire.MAX_FIELDS
# Decoding fewer lines together takes longer than one by one.
_LEAST_TOGETHER: Final = 16
_NONE: Final = np.empty(0, dtype=np.int64)

Span = tuple[int, int]
"""Begin and end of a message in the file."""


class EventPart(Struct, frozen=True):
    """Consecutive events; columns of shape (n,)."""

    kind: Int64
    """The id of the event kind."""
    start_ns: Int64
    """Relative to the line's time."""
    duration_ns: Int64
    has_time: NDArray[np.bool_] | None
    """The events that have a time; None if all have."""

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The events that have a time."""
        return np.ones(len(self.kind), dtype=bool) if self.has_time is None else self.has_time

    def select(self, kept: NDArray[np.bool_]) -> EventPart:
        """A selection of the events."""
        return EventPart(self.kind[kept], self.start_ns[kept], self.duration_ns[kept], None)


class LineHead(Struct, frozen=True):
    """A line without its events."""

    id: int
    name: str
    timestamp_ns: int
    """The time from which the starts of its events count."""


class DecodedLines(Struct, frozen=True):
    """The lines of a plane, and the events of all of them as columns of shape (n,), in order."""

    heads: list[LineHead]
    ends: Int64
    """The number of events up to the end of each line."""
    kinds: list[Int64]
    """The ids of the event kinds, part by part."""
    start_ns: Int64
    duration_ns: Int64
    stats: EventStats
    broken_events: int
    """Number of events that are left out because their times are impossible."""
    damaged_lines: int
    """Number of lines of which only the beginning could be decoded."""


def first_event(file: FileReader, begin: int, end: int) -> Field | None:
    """The first event of a line, without its payload."""
    return _head(file, begin, end)[1]


def line_name(file: FileReader, begin: int, end: int) -> str:
    """The name of a line, if it precedes the events."""
    return _head(file, begin, end)[0]


def _head(file: FileReader, begin: int, end: int) -> tuple[str, Field | None]:
    at, name = begin, ""
    while (field := file.field(at, end)) is not None:
        if field.wire_type == wire.DELIMITED:
            if field.number == _EVENTS:
                return name, field
            if field.number == _NAME:
                name = file.text(field)
        at = field.end
    return name, None


def read_lines(
    file: FileReader,
    spans: Sequence[Span],
    stat_names: StatNames,
    wanted: Callable[[str], frozenset[str]],
    texts: Texts,
) -> DecodedLines:
    """Decode the lines of a plane.

    `wanted` returns the stats to decode by a line's name; of lines of any name for an empty one.
    `texts` receives the texts stored in stats.
    """
    lines = _LineDecoder(file, stat_names, wanted, texts)
    for together in _runs_of_small(spans):
        if len(together) >= _LEAST_TOGETHER:
            lines.add_small(together)
        else:
            for begin, end in together:
                lines.add(begin, end)
    return lines.finish()


def _runs_of_small(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Divide lines into single large ones and runs of small ones that share a block."""
    together: list[Span] = []
    for begin, end in spans:
        is_small = end - begin <= _SMALL_BYTES
        if together and not (is_small and end - together[0][0] <= _BLOCK_BYTES):
            yield together
            together = []
        together.append((begin, end))
        if not is_small:
            yield together
            together = []
    if together:
        yield together


_ITEMS_OF_EVENT: Final = 2
_ITEMS_OF_LINE: Final = 10
"""The description of a line, with its names."""


class _LineDecoder:
    """Collects lines and their events, part by part."""

    def __init__(
        self,
        file: FileReader,
        stat_names: StatNames,
        wanted: Callable[[str], frozenset[str]],
        texts: Texts,
    ) -> None:
        self._file = file
        self._stat_names = stat_names
        self._wanted = wanted
        self._texts = texts
        self._stats: dict[frozenset[str], StatDecoder] = {}
        self._heads: list[LineHead] = []
        self._ends: list[int] = []
        self._chunks: list[tuple[StatDecoder, Future[tuple[EventPart, StatDecoder, int]]]] = []
        self._count = 0
        self._broken_events = 0
        self._damaged_lines = 0

    def add(self, begin: int, end: int) -> None:
        """Decode a line field by field."""
        at = begin
        id_, timestamp_ns, name, display = 0, 0, "", ""
        stats: StatDecoder | None = None
        while (field := self._file.field(at, end)) is not None:
            at = field.end
            if field.wire_type == wire.VARINT:
                if field.number == _ID:
                    id_ = field.value
                elif field.number == _TIMESTAMP:
                    timestamp_ns = field.value
            elif field.wire_type == wire.DELIMITED:
                if field.number == _NAME:
                    name = self._file.text(field)
                elif field.number == _DISPLAY:
                    display = self._file.text(field)
                elif field.number == _EVENTS:
                    stats = stats or self._stats_of(name)
                    at = max(at, self._add_run(field, end, stats))
        self._heads.append(LineHead(id_, display or name, timestamp_ns))
        self._ends.append(self._count)
        self._damaged_lines += at < end
        self._file.budget.keep(_ITEMS_OF_LINE)

    def _add_run(self, first: Field, end: int, stats: StatDecoder) -> int:
        """Decode the consecutive events from the first one on.

        `end` is the end of the line. Returns the position after the events: another field, or an
        event larger than a block.
        """
        at, size = first.at, max(_BLOCK_BYTES, first.end - first.at)
        while at < end:
            until = min(at + size, end)
            buffer = self._file.block(at, until)
            run = find_records(buffer, 0, until - at, _EVENT_TAG)
            if not run.after:
                break
            self._add_events(wire.Slices(buffer, run.begin, run.end), stats)
            at, size = at + run.after, _BLOCK_BYTES
        return at

    def add_small(self, spans: Sequence[Span]) -> None:
        """Decode lines in one block, one field of all of them at a time."""
        first, last = spans[0][0], spans[-1][1]
        place = np.array(spans, dtype=np.int64) - first
        lines = wire.Slices(self._file.block(first, last), place[:, 0], place[:, 1])
        count, data = len(spans), lines.buffer.data
        self._file.budget.keep(_ITEMS_OF_LINE * count)
        ids, timestamps_ns = [0] * count, [0] * count
        names, displays = [""] * count, [""] * count
        after = lines.begin.copy()
        is_sound = np.ones(count, dtype=bool)
        found = []
        for field in wire.walk(lines):
            is_sound[field.row[field.number == 0]] = False
            part = field if is_sound.all() else field.select(is_sound[field.row])
            after[part.row] = part.rest
            for number, values in ((_ID, ids), (_TIMESTAMP, timestamps_ns)):
                chosen = (part.number == number) & (part.wire_type == wire.VARINT)
                numbers = part.value[chosen].view(np.int64)
                for row, value in zip(part.row[chosen].tolist(), numbers.tolist(), strict=True):
                    values[row] = value
            is_delimited = part.wire_type == wire.DELIMITED
            for number, texts in ((_NAME, names), (_DISPLAY, displays)):
                chosen = (part.number == number) & is_delimited
                if chosen.any():
                    rows = part.row[chosen].tolist()
                    begins, ends = part.begin[chosen].tolist(), part.rest[chosen].tolist()
                    for row, begin, end in zip(rows, begins, ends, strict=True):
                        texts[row] = str(data[begin:end], "utf-8", "replace")
            found.append(part.select((part.number == _EVENTS) & is_delimited))
        row, begin, end = (
            np.concatenate([_NONE, *(getattr(part, name) for part in found)])
            for name in ("row", "begin", "rest")
        )
        order = np.argsort(row, kind="stable")
        ends = self._count + np.cumsum(np.bincount(row, minlength=count))
        self._heads += [
            LineHead(id_, display or name, timestamp_ns)
            for id_, name, display, timestamp_ns in zip(
                ids, names, displays, timestamps_ns, strict=True
            )
        ]
        self._ends += ends.tolist()
        self._damaged_lines += int((after < lines.end).sum())
        self._add_events(wire.Slices(lines.buffer, begin[order], end[order]), self._stats_of(""))

    def _stats_of(self, line_name: str) -> StatDecoder:
        wanted = self._wanted(line_name)
        if wanted not in self._stats:
            self._stats[wanted] = self._stat_names.decoder(wanted, self._texts)
        return self._stats[wanted]

    def _add_events(self, spans: wire.Slices, stats: StatDecoder) -> None:
        for begin in range(0, len(spans), _CHUNK):
            chunk = spans.select(slice(begin, begin + _CHUNK))
            decode = partial(_decode_chunk, chunk, stats.part(), self._count)
            self._chunks.append((stats, self._file.work(decode)))
            self._count += len(chunk)
            self._file.budget.keep(_ITEMS_OF_EVENT * len(chunk))

    def finish(self) -> DecodedLines:
        """The lines, with the events that have a time."""
        parts = []
        for stats, chunk in self._chunks:
            part, decoded, broken_events = chunk.result()
            parts.append(part)
            stats.take(decoded)
            self._broken_events += broken_events
        self._chunks.clear()
        ends = np.array(self._ends, dtype=np.int64)
        timestamp_ns = np.array([head.timestamp_ns for head in self._heads], dtype=np.int64)
        is_impossible = np.abs(timestamp_ns) >= _TIME_LIMIT
        kept = None
        if is_impossible.any() or any(part.has_time is not None for part in parts):
            kept = np.concatenate([np.empty(0, dtype=bool), *(part.mask for part in parts)])
            is_lost = np.repeat(is_impossible, np.diff(ends, prepend=0))
            self._broken_events += int((is_lost & kept).sum())
            kept &= ~is_lost
            masks = np.split(kept, np.cumsum([len(part.kind) for part in parts])[:-1])
            parts = [part.select(mask) for part, mask in zip(parts, masks, strict=True)]
            ends = np.append(0, np.cumsum(kept))[ends]
        start_ns, duration_ns = (
            np.concatenate([_NONE, *(getattr(part, name) for part in parts)])
            for name in ("start_ns", "duration_ns")
        )
        start_ns += np.repeat(timestamp_ns, np.diff(ends, prepend=0))
        return DecodedLines(
            heads=self._heads,
            ends=ends,
            kinds=[part.kind for part in parts],
            start_ns=start_ns,
            duration_ns=duration_ns,
            stats=EventStats(stats.finish(kept) for stats in self._stats.values()),
            broken_events=self._broken_events,
            damaged_lines=self._damaged_lines,
        )


def _decode_chunk(
    spans: wire.Slices, decoder: StatDecoder, first: int
) -> tuple[EventPart, StatDecoder, int]:
    """Decode consecutive events, of which `first` is the number of the first.

    Returns them, the decoder with their stats, and how many have impossible times.
    """
    columns = {tag: np.zeros(len(spans), dtype=np.int64) for tag in _COLUMNS}
    # An empty event has no time.
    is_timed = spans.end > spans.begin
    leading, at = wire.leading(spans, _COLUMNS)
    for tag, part in zip(_COLUMNS, leading, strict=True):
        columns[tag][part.row] = part.value.view(np.int64)
    rest = wire.Slices(spans.buffer, at, spans.end)
    odd, at = decoder.walk(rest, _STATS << 3 | wire.DELIMITED, first)
    for part in wire.walk(wire.Slices(spans.buffer, at, spans.end[odd])):
        row, tags = odd[part.row], part.word.astype(np.uint8)
        for tag, column in columns.items():
            column[row[tags == tag]] = part.value[tags == tag].view(np.int64)
        # An event with a count instead of an offset aggregates many events and has no time.
        is_timed[row[tags == (_OCCURRENCES << 3 | wire.VARINT)]] = False
        is_stat = tags == (_STATS << 3 | wire.DELIMITED)
        stats = wire.Slices(spans.buffer, part.begin[is_stat], part.rest[is_stat])
        decoder.add(row[is_stat], stats, first)
    kind, offset, duration = columns.values()
    is_sound = (offset > -_TIME_LIMIT) & (offset < _TIME_LIMIT)
    is_sound &= (duration >= 0) & (duration < _TIME_LIMIT)
    # Round start and end down alike, so that nested events stay nested.
    start_ns = offset // _PS_PER_NS
    end_ns = (offset + np.where(is_sound, duration, 0)) // _PS_PER_NS
    has_time = is_sound & is_timed
    timed = None if has_time.all() else has_time
    events = EventPart(kind, start_ns, end_ns - start_ns, timed)
    return events, decoder, int((~is_sound).sum())


# Few enough that the columns of a batch stay in the processor's cache.
_BATCH_EVENTS: Final = 1 << 16
_NOTHING: Final = np.empty(0, dtype=np.int64)
_NO_ROWS: Final = np.empty(0, dtype=np.int32)


class Events(Struct):
    """Consecutive events of a plane as columns of shape (n,), in file order."""

    metadata: Metadata
    row: Int32
    """Row of the event kind in `metadata`."""
    start_ns: Int64
    duration_ns: Int64
    begin: int
    """The number of the first event among those of the plane."""
    _stats: EventStats
    _inline: Texts

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

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which events have a name that a pattern matches from its beginning on."""
        rows = distinct(self.row).tolist()
        return is_in(self.row, [row for row in rows if pattern.match(self.names[row])])

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
            used = distinct(np.concatenate([_NOTHING, *(distinct(rows) for _, rows in parts)]))
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

    def columns(self, begin: int, end: int) -> dict[str, Any]:
        """The fields of some consecutive events, counted from the first one here."""
        return {
            "metadata": self.metadata,
            "row": self.row[begin:end],
            "start_ns": self.start_ns[begin:end],
            "duration_ns": self.duration_ns[begin:end],
            "begin": self.begin + begin,
            "_stats": self._stats,
            "_inline": self._inline,
        }

    def _column(self, stat: str) -> StatColumn:
        if stat not in USED_STATS and stat not in ITERATOR_STATS:
            raise KeyError(stat)
        return self._stats.within(stat, self.begin, self.begin + len(self))


class Line(Events, kw_only=True):
    """A line of a plane: a thread, a stream, or work at another level of detail."""

    id: int
    name: str


class Lines(Events, kw_only=True):
    """Consecutive lines of a plane, with the events of all of them."""

    lines: tuple[Line, ...]

    @classmethod
    def of(cls, read: DecodedLines, metadata: Metadata, inline: Texts) -> Lines:
        """Divide decoded events into lines."""
        whole = Events(
            metadata=metadata,
            row=np.concatenate([_NO_ROWS, *map(metadata.ids.rows, read.kinds)]),
            start_ns=read.start_ns,
            duration_ns=read.duration_ns,
            begin=0,
            _stats=read.stats,
            _inline=inline,
        )
        begins = np.append(0, read.ends[:-1]).tolist()
        lines = tuple(
            Line(**whole.columns(begin, end), id=head.id, name=head.name)
            for head, begin, end in zip(read.heads, begins, read.ends.tolist(), strict=False)
        )
        return cls(**whole.columns(0, len(whole)), lines=lines)

    def in_batches(self, lines: Sequence[Line]) -> Iterator[Lines]:
        """Some lines that follow one another, as batches of few events or of a single line."""
        batch: list[Line] = []
        count = 0
        for line in lines:
            if batch and count + len(line) > _BATCH_EVENTS:
                yield self._batch(batch)
                batch, count = [], 0
            batch.append(line)
            count += len(line)
        if batch:
            yield self._batch(batch)

    def _batch(self, lines: Sequence[Line]) -> Lines:
        begin, end = lines[0].begin, lines[-1].begin + len(lines[-1])
        columns = self.columns(begin - self.begin, end - self.begin)
        return Lines(**columns, lines=tuple(lines))

    def of_lines(self, values: ArrayLike) -> NDArray[Any]:
        """Repeat a value of each line for each of its events."""
        return np.repeat(np.asarray(values), [len(line) for line in self.lines])

    def with_any(self, mask: NDArray[np.bool_]) -> Iterator[tuple[Line, slice]]:
        """The lines that have any event of a mask, each with the places of all its events.

        The mask has shape (n,).
        """
        ends = np.cumsum([len(line) for line in self.lines])
        for index in distinct(np.searchsorted(ends, np.flatnonzero(mask), side="right")).tolist():
            line, end = self.lines[index], int(ends[index])
            yield line, slice(end - len(line), end)


def _fit(value: float, dtype: Any, default: float) -> float:
    """Convert a number to the column's type."""
    if dtype is np.int64:
        if not np.isfinite(value):
            return default
        whole = int(value)
        # As in events, identifiers above 2^63 keep their bits.
        return whole - 2**64 if 2**63 <= whole < 2**64 else max(-(2**63), min(whole, 2**63 - 1))
    return float(value)
