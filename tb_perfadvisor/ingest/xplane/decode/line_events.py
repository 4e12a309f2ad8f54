"""Decodes the events of a line to columns, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane.decode import wire
from tb_perfadvisor.ingest.xplane.decode.file_reader import Field, FileReader
from tb_perfadvisor.ingest.xplane.decode.record_runs import find_records
from tb_perfadvisor.ingest.xplane.decode.stats import StatColumn, StatDecoder
from tb_perfadvisor.trace.tables import Int64

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
_NONE: Final = np.empty(0, dtype=np.int64)


class EventPart(Struct, frozen=True):
    """Consecutive events; columns of shape (n,)."""

    kind: Int64
    """The id of the event kind."""
    start_ns: Int64
    """Relative to the line's time."""
    duration_ns: Int64
    has_time: NDArray[np.bool_] | None
    """The events that have a time; None if all have."""

    def timed(self) -> EventPart:
        """The events that have a time."""
        if self.has_time is None:
            return self
        timed = self.has_time
        return EventPart(self.kind[timed], self.start_ns[timed], self.duration_ns[timed], None)


class LineEvents(Struct, frozen=True):
    """A decoded line; columns of shape (n,), in file order."""

    id: int
    name: str
    kinds: list[Int64]
    """The ids of the event kinds, part by part."""
    start_ns: Int64
    duration_ns: Int64
    stats: dict[str, StatColumn]
    broken_events: int
    """Number of events that are left out because their times are impossible."""
    is_damaged: bool
    """Whether bytes after the last event could not be decoded."""


def read_line(
    file: FileReader,
    begin: int,
    end: int,
    decoder: Callable[[str], StatDecoder],
) -> LineEvents:
    """Decode a line.

    Args:
        file: The profile.
        begin: Start of the line in the file.
        end: End of the line.
        decoder: Creates the decoder of stats for a line's name.
    """
    at = begin
    id_, timestamp_ns, name, display = 0, 0, "", ""
    events: EventDecoder | None = None
    while (field := file.field(at, end)) is not None:
        at = field.end
        if field.wire_type == wire.VARINT:
            if field.number == _ID:
                id_ = field.value
            elif field.number == _TIMESTAMP:
                timestamp_ns = field.value
        elif field.wire_type == wire.DELIMITED:
            if field.number == _NAME:
                name = file.text(field)
            elif field.number == _DISPLAY:
                display = file.text(field)
            elif field.number == _EVENTS:
                events = events or EventDecoder(decoder(name))
                at = max(at, events.run(file, field, end))
    events = events or EventDecoder(decoder(name))
    kinds, start_ns, duration_ns, stats = events.finish()
    broken = events.broken
    if abs(timestamp_ns) < _TIME_LIMIT:
        start_ns += timestamp_ns
    else:
        broken += start_ns.size
        kinds, start_ns, duration_ns, stats = [], start_ns[:0], duration_ns[:0], {}
    return LineEvents(
        id=id_,
        name=display or name,
        kinds=kinds,
        start_ns=start_ns,
        duration_ns=duration_ns,
        stats=stats,
        broken_events=broken,
        is_damaged=at < end,
    )


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


class EventDecoder:
    """Collects the events of a line, part by part."""

    def __init__(self, stats: StatDecoder) -> None:
        """Create a decoder.

        Args:
            stats: Receives the events' stats.
        """
        self._stats = stats
        self.broken = 0
        self._count = 0
        self._parts: list[EventPart] = []

    def run(self, file: FileReader, first: Field, end: int) -> int:
        """Decode the consecutive events from the first one on.

        Args:
            file: The profile.
            first: The first event.
            end: The end of the line.

        Returns:
            The position after the events: another field, or an event larger than a block.
        """
        at, size = first.at, max(_BLOCK_BYTES, first.end - first.at)
        while at < end:
            until = min(at + size, end)
            buffer = file.block(at, until)
            run = find_records(buffer, 0, until - at, _EVENT_TAG)
            if not run.after:
                break
            spans = wire.Spans(buffer, run.begin, run.end)
            for begin in range(0, len(spans), _CHUNK):
                self._add(spans.select(slice(begin, begin + _CHUNK)))
            at, size = at + run.after, _BLOCK_BYTES
        return at

    def _add(self, spans: wire.Spans) -> None:
        columns = {tag: np.zeros(len(spans), dtype=np.int64) for tag in _COLUMNS}
        # An empty event has no time.
        is_timed = spans.end > spans.begin
        leading, at = wire.leading(spans, _COLUMNS)
        for tag, part in zip(_COLUMNS, leading, strict=True):
            columns[tag][part.row] = part.value.view(np.int64)
        rest = wire.Spans(spans.buffer, at, spans.end)
        odd, at = self._stats.walk(rest, _STATS << 3 | wire.DELIMITED, self._count)
        for part in wire.walk(wire.Spans(spans.buffer, at, spans.end[odd])):
            row, tags = odd[part.row], part.word.astype(np.uint8)
            for tag, column in columns.items():
                column[row[tags == tag]] = part.value[tags == tag].view(np.int64)
            # An event with a count instead of an offset aggregates many events and has no time.
            is_timed[row[tags == (_OCCURRENCES << 3 | wire.VARINT)]] = False
            is_stat = tags == (_STATS << 3 | wire.DELIMITED)
            stats = wire.Spans(spans.buffer, part.begin[is_stat], part.rest[is_stat])
            self._stats.add(row[is_stat], stats, self._count)
        self._count += len(spans)
        kind, offset, duration = columns.values()
        is_sound = (offset > -_TIME_LIMIT) & (offset < _TIME_LIMIT)
        is_sound &= (duration >= 0) & (duration < _TIME_LIMIT)
        self.broken += int((~is_sound).sum())
        # Round start and end down alike, so that nested events stay nested.
        start_ns = offset // _PS_PER_NS
        end_ns = (offset + np.where(is_sound, duration, 0)) // _PS_PER_NS
        has_time = is_sound & is_timed
        self._parts.append(
            EventPart(kind, start_ns, end_ns - start_ns, None if has_time.all() else has_time)
        )

    def finish(self) -> tuple[list[Int64], Int64, Int64, dict[str, StatColumn]]:
        """The kinds (in parts), starts and durations of the events with a time, and their stats."""
        parts, self._parts = self._parts, []
        kept = None
        if any(part.has_time is not None for part in parts):
            kept = np.concatenate([_mask(part) for part in parts])
        stats = self._stats.finish(kept)
        parts = [part.timed() for part in parts]
        start_ns = np.concatenate([_NONE, *(part.start_ns for part in parts)])
        duration_ns = np.concatenate([_NONE, *(part.duration_ns for part in parts)])
        return [part.kind for part in parts], start_ns, duration_ns, stats


def _mask(part: EventPart) -> NDArray[np.bool_]:
    return np.ones(len(part.kind), dtype=bool) if part.has_time is None else part.has_time
