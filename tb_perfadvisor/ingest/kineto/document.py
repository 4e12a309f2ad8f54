"""From the bytes of a Kineto file to chunks of decoded events, whatever its damage.

A sound file is decoded in slices of a few megabytes, cut where one event ends and the next
begins, so that the Python objects of one slice are gone before the next is read. A slice that
the strict decoder refuses is repaired; what no repair makes readable is dropped event by
event and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tb_perfadvisor.ingest.kineto.repair import SPACES, repair_json
from tb_perfadvisor.ingest.kineto.schema import ABSENT, Envelope, Event, ExactEvent, is_present

# Large enough that cutting costs nothing, small enough that a slice's objects fit in caches.
_SLICE_BYTES = 4_000_000
# A cut may fall between two objects inside one event's args; the next one is tried then.
_MAX_CUTS_TRIED = 8
_BETWEEN_OBJECTS = re.compile(rb"\}\s*,\s*(?=\{)")
_BETWEEN_EVENTS = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_END_OF_EVENTS = re.compile(rb"\}?\s*,?\s*\]")

_ENVELOPE = msgspec.json.Decoder(Envelope)
# A fraction behind 2^43 (8 796 093 022 208) microseconds or more.
_LONG_START = re.compile(rb'"ts"\s*:\s*"?(?:\d{14,}|9\d{12}|8[89]\d{11}|879\d{10})\.\d')
# Where the first starts of a file are looked at.
_SAMPLE_BYTES = 1_000_000
_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class Document:
    """One file: its top level, and where its events lie."""

    envelope: Envelope
    data: bytes
    """The events between the array's brackets; in a damaged file, up to the end."""
    is_sound: bool
    """Whether the whole is valid JSON."""
    malformed: int = 0
    """Events dropped so far."""
    repaired: int = 0
    """Chunks that had to be repaired so far."""
    is_truncated: bool = False
    _events: msgspec.json.Decoder[Any] = field(init=False)
    _event: msgspec.json.Decoder[Any] = field(init=False)

    def __post_init__(self) -> None:
        """Choose how exactly starts must be decoded."""
        is_long = _LONG_START.search(self.data, 0, _SAMPLE_BYTES) is not None
        event: type[Event] = ExactEvent if is_long else Event
        self._event = msgspec.json.Decoder(event)
        self._events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]

    def chunks(self) -> Iterator[list[Event]]:
        """All events, a slice at a time."""
        position = 0
        while position < len(self.data):
            events, position = self._next_slice(self.data, position)
            if events:
                yield events

    def _next_slice(self, data: bytes, start: int) -> tuple[list[Event], int]:
        search_from = start + _SLICE_BYTES
        for _ in range(_MAX_CUTS_TRIED):
            cut = _BETWEEN_OBJECTS.search(data, search_from)
            if cut is None and not self.is_sound:
                return self._salvage_last(data[start:]), len(data)
            piece = data[start : cut.start() + 1] if cut else data[start:]
            try:
                events = self._decoded(piece)
            except _UNREADABLE:
                if cut is None:
                    break
                search_from = cut.end()
                continue
            return events, cut.end() if cut else len(data)
        cut = _BETWEEN_EVENTS.search(data, start + _SLICE_BYTES)
        if cut is None:
            salvage = self._salvage if self.is_sound else self._salvage_last
            return salvage(data[start:]), len(data)
        return self._salvage(data[start : cut.start() + 1]), cut.end()

    def _decoded(self, piece: bytes) -> list[Event]:
        events: list[Event] = self._events.decode(b"[" + piece + b"]")
        return events

    def _salvage(self, piece: bytes) -> list[Event]:
        """The readable events of a damaged piece that ends between two events."""
        repaired = repair_json(piece)
        self.repaired += repaired != piece.translate(SPACES)
        try:
            return self._decoded(repaired)
        except _UNREADABLE:
            pass
        events = []
        for one in _values(repaired):
            try:
                events.append(self._event.decode(one))
            except _UNREADABLE:
                self.malformed += 1
        return events

    def _salvage_last(self, piece: bytes) -> list[Event]:
        """The readable events of a piece that holds the end of the array, or the break."""
        last = _last_cut(piece)
        head, tail = piece[:last], piece[last:]
        events = self._strict_or_salvaged(head)
        for closing in _END_OF_EVENTS.finditer(tail):
            # The event's own brackets precede the array's: take the first that completes it.
            stop = closing.start() + closing.group().startswith(b"}")
            try:
                events.extend(self._decoded(repair_json(tail[:stop])))
            except _UNREADABLE:
                continue
            self._read_tail(tail[closing.end() :])
            return events
        self.is_truncated = True
        events.extend(self._complete(tail))
        return events

    def _complete(self, tail: bytes) -> list[Event]:
        """The last event of a file that breaks off just behind it."""
        text = repair_json(tail).strip(b", ")
        if not text.startswith(b"{"):
            return []
        try:
            return [self._event.decode(text)]
        except _UNREADABLE:
            return []

    def _strict_or_salvaged(self, piece: bytes) -> list[Event]:
        piece = piece.rstrip().removesuffix(b",")
        if not piece.strip():
            return []
        try:
            return self._decoded(piece)
        except _UNREADABLE:
            return self._salvage(piece)

    def _read_tail(self, tail: bytes) -> None:
        """Fill the envelope from the keys that follow the events of a damaged file."""
        found = _envelope_of(b"{" + tail.lstrip().removeprefix(b","))
        if found is None:
            self.is_truncated |= not tail.strip().startswith(b"}") and bool(tail.strip())
            return
        for name in Envelope.__struct_fields__:
            value = getattr(found, name)
            is_given = is_present(value) if isinstance(value, msgspec.Raw) else value is not None
            if is_given:
                setattr(self.envelope, name, value)


def open_document(data: bytes) -> Document | None:
    """Find the events of a file; None when it holds no array of events at all.

    Args:
        data: The inflated bytes, without byte-order mark.
    """
    text = _without_leading_space(data)
    opening = bytes(text[:1])
    if opening == b"[":
        return _open_array(text)
    if opening != b"{":
        return None
    try:
        envelope = _ENVELOPE.decode(text)
    except _UNREADABLE:
        return _open_damaged(bytes(text))
    events = memoryview(envelope.traceEvents)
    is_empty = bytes(events[:8]) in (b"", b"null")
    if not is_empty and bytes(events[:1]) != b"[":
        return None
    inner = bytes(events[1:-1])
    events.release()
    for name in Envelope.__struct_fields__:
        value = getattr(envelope, name)
        if isinstance(value, msgspec.Raw):
            # A view of a few bytes would keep the whole file in memory.
            setattr(envelope, name, ABSENT if name == "traceEvents" else value.copy())
    return Document(envelope, b"" if is_empty else inner, is_sound=True)


def _without_leading_space(data: bytes) -> memoryview:
    """A view from the first character on: a copy of a large file costs as much as reading it."""
    found = re.search(rb"[^ \t\r\n]", data)
    return memoryview(data)[found.start() if found else len(data) :]


def _open_array(data: memoryview) -> Document:
    try:
        inner = msgspec.json.decode(data, type=msgspec.Raw)
    except _UNREADABLE:
        return Document(Envelope(), bytes(data[1:]), is_sound=False)
    return Document(Envelope(), bytes(memoryview(inner)[1:-1]), is_sound=True)


def _open_damaged(data: bytes) -> Document | None:
    found = _EVENTS_KEY.search(data)
    if found is None:
        envelope = _envelope_of(data)
        return None if envelope is None else Document(envelope, b"", is_sound=False)
    head = data[: found.start()].rstrip().removesuffix(b",") + b"}"
    envelope = _envelope_of(head) or Envelope()
    return Document(envelope, data[found.end() :].lstrip(), is_sound=False)


def _envelope_of(data: bytes) -> Envelope | None:
    for attempt in (data, repair_json(data)):
        try:
            return _ENVELOPE.decode(attempt)
        except _UNREADABLE:
            continue
    return None


def _values(piece: bytes) -> Iterator[bytes | msgspec.Raw]:
    """The single values of a piece: as JSON has them, else as they look."""
    start = 0
    for stop, following in _cuts(piece):
        try:
            yield from _VALUES.decode(b"[" + piece[start:stop] + b"]")
        except _UNREADABLE:
            yield piece[start:stop]
        start = following


def _cuts(piece: bytes) -> Iterator[tuple[int, int]]:
    """Where what looks like an event ends, and where the next begins."""
    for cut in _BETWEEN_EVENTS.finditer(piece):
        yield cut.start() + 1, cut.end()
    yield len(piece), len(piece)


def _last_cut(piece: bytes) -> int:
    """Where the last event of a piece begins."""
    position = 0
    for cut in _BETWEEN_EVENTS.finditer(piece):
        position = cut.end()
    return position
