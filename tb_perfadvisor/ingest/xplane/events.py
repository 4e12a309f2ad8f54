"""The events of a line as columns, read block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tb_perfadvisor.ingest.xplane import wire
from tb_perfadvisor.ingest.xplane.ids import Int64s
from tb_perfadvisor.ingest.xplane.parts import Field, Parts
from tb_perfadvisor.ingest.xplane.records import find_records
from tb_perfadvisor.ingest.xplane.stats import StatColumn, StatDecoder

# Fields of XLine and of XEvent.
_ID, _NAME, _TIMESTAMP, _EVENTS, _DISPLAY = 1, 2, 3, 4, 11
_KIND, _OFFSET, _DURATION, _STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_EVENT_TAG: Final = _EVENTS << 3 | wire.DELIMITED

# Times beyond this (26 days in picoseconds; in nanoseconds 73 years) come from broken bytes, and
# sums of a few of them still fit 64 bits.
_TIME_LIMIT: Final = 2**61
_PS_PER_NS: Final = 1000

# What is in memory of a line at a time, and how many events are decoded at a time: columns of
# so many rows stay in the processor's cache from one step to the next.
_BLOCK_BYTES: Final = 4 << 20
_CHUNK: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class LineEvents:
    """A line as the file has it; columns of shape (n,), in file order."""

    id: int
    name: str
    kind: Int64s
    """The id of each event's kind."""
    start_ns: Int64s
    duration_ns: Int64s
    stats: dict[str, StatColumn]
    broken_events: int
    """Left out, for their times are impossible."""
    is_damaged: bool
    """What follows the last event could not be read."""


def read_line(
    file: Parts, begin: int, end: int, decoder: Callable[[str], StatDecoder]
) -> LineEvents:
    """Decode a line.

    Args:
        file: The profile.
        begin: Where in it the line is.
        end: And ends.
        decoder: Makes what decodes the stats, told the line's name.
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
    kind, start_ns, duration_ns = events.finish()
    is_placed = abs(timestamp_ns) < _TIME_LIMIT
    kept = slice(None if is_placed else 0)
    return LineEvents(
        id=id_,
        name=display or name,
        kind=kind[kept],
        start_ns=start_ns[kept] + (timestamp_ns if is_placed else 0),
        duration_ns=duration_ns[kept],
        stats=events.stats.finish() if is_placed else {},
        broken_events=events.broken + (0 if is_placed else kind.size),
        is_damaged=at < end,
    )


def first_event(file: Parts, begin: int, end: int) -> Field | None:
    """The first event of a line, not decoded."""
    at = begin
    while (field := file.field(at, end)) is not None:
        if field.number == _EVENTS and field.wire_type == wire.DELIMITED:
            return field
        at = field.end
    return None


class EventDecoder:
    """Collects the events of a line, part by part."""

    def __init__(self, stats: StatDecoder) -> None:
        """Start empty.

        Args:
            stats: Receives the events' stats.
        """
        self.stats = stats
        self.broken = 0
        self._count = 0
        self._parts: list[tuple[Int64s, Int64s, Int64s]] = []

    def run(self, file: Parts, first: Field, end: int) -> int:
        """Decode the run of events that begins with one.

        Args:
            file: The profile.
            first: The first event.
            end: Where the line ends.

        Returns:
            What follows the run: another field, or an event that is larger than a block.
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
        count = len(spans)
        id_, offset, duration = (np.zeros(count, dtype=np.int64) for _ in range(3))
        # An event of no bytes says nothing.
        is_timed = spans.end > spans.begin
        stats: list[wire.Fields] = []
        for part in wire.walk(spans):
            is_varint = part.wire_type == wire.VARINT
            if is_varint.any():
                for number, column in ((_KIND, id_), (_OFFSET, offset), (_DURATION, duration)):
                    chosen = is_varint & (part.number == number)
                    column[part.row[chosen]] = part.value[chosen].view(np.int64)
                # An event with a count in place of an offset sums up many: it has no time of its
                # own.
                is_timed[part.row[is_varint & (part.number == _OCCURRENCES)]] = False
            is_stat = (part.number == _STATS) & (part.wire_type == wire.DELIMITED)
            if is_stat.any():
                stats.append(part if is_stat.all() else part.select(is_stat))
        is_sound = (offset > -_TIME_LIMIT) & (offset < _TIME_LIMIT)
        is_sound &= (duration >= 0) & (duration < _TIME_LIMIT)
        keep = is_sound & is_timed
        # Floor of start and end alike keeps nesting: an order of picoseconds is one of
        # nanoseconds.
        start_ns = offset // _PS_PER_NS
        end_ns = (offset + np.where(keep, duration, 0)) // _PS_PER_NS
        if keep.all():
            row = np.arange(count)
        else:
            row = np.where(keep, np.cumsum(keep) - 1, -1)
            id_, start_ns, end_ns = id_[keep], start_ns[keep], end_ns[keep]
        self._parts.append((id_, start_ns, end_ns - start_ns))
        for part in stats:
            owner = row[part.row]
            if not keep.all():
                is_kept = owner >= 0
                owner, part = owner[is_kept], part.select(is_kept)
            self.stats.add(spans.buffer, owner + self._count, part)
        self._count += id_.size
        self.broken += int((~is_sound).sum())

    def finish(self) -> tuple[Int64s, Int64s, Int64s]:
        """The number of its kind, the start and the duration of each event."""
        if not self._parts:
            none = np.empty(0, dtype=np.int64)
            return none, none, none
        id_, start_ns, duration_ns = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        self._parts.clear()
        return id_, start_ns, duration_ns
