"""From a file in Chrome's trace format to chunks of decoded events, whatever its damage.

The file is never whole in memory: it is read and inflated in slices, cut where one event ends
and the next begins, and the Python objects of one slice are gone before the next is decoded. A
slice that the strict decoder refuses is repaired; what no repair makes readable is dropped event
by event and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.kineto.decode.repair import SPACES, repair_json
from tb_perfadvisor.ingest.kineto.decode.schema import Envelope, is_present

E = TypeVar("E", bound=msgspec.Struct)

HEAD_BYTES = 1_000_000
"""How much of a file is looked at to say what it is."""

# Small enough that a slice's objects stay in caches, and in memory that Python holds anyway: with
# megabytes, a third of the time goes into memory that is taken from the system and given back.
_SLICE_BYTES = 250_000
# Where no cut is found in a slice and a quarter, an event is long, and so much is looked through.
_WINDOW_BYTES = 5_000_000
# A cut may fall between two objects inside one event's args; the next one is tried then.
_MAX_CUTS_TRIED = 8
# Headers with the process groups of ten thousand ranks take some megabytes, one event with a
# deep stack some hundred kilobytes. What is beyond these is no trace, and must not fill the memory.
_MAX_HEADER_BYTES = 64_000_000
_MAX_EVENT_BYTES = 32_000_000
# The end of a damaged last event is tried at each bracket, from its start.
_MAX_EFFORT_BYTES = 50_000_000
_BETWEEN_OBJECTS = re.compile(rb"\}\s*,\s*(?=\{)")
_BETWEEN_EVENTS = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_CLOSING = re.compile(rb"\]")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# The array's bracket, and behind it the next key of the top level, its end, or the file's.
_END_OF_ARRAY = re.compile(rb'(?:\}|^)\s*(\])\s*(?:,\s*"|\}\s*\Z|\Z)')
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ENVELOPE = msgspec.json.Decoder(Envelope)
_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Text:
    """The inflated text of a file, with its beginning kept for a second look.

    Args:
        inflated: The file.
    """

    def __init__(self, inflated: Inflated) -> None:
        """Read the beginning."""
        self.inflated = inflated
        first = inflated.read(HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK)
        self.head = first[:HEAD_BYTES]
        """The first bytes, without byte-order mark; at most `HEAD_BYTES`."""
        self.rest = first
        """What has been read and not been taken yet."""
        self.is_at_end = len(first) < HEAD_BYTES - len(_BYTE_ORDER_MARK)

    def fill(self, size: int) -> None:
        """Read on until `rest` has so many bytes or the file ends."""
        missing = size - len(self.rest)
        if missing > 0 and not self.is_at_end:
            more = self.inflated.read(missing)
            self.is_at_end = len(more) < missing
            self.rest += more

    def take(self, size: int) -> bytes:
        """The next bytes, which are gone from `rest`."""
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken


class Document(Generic[E]):
    """One file: its top level, and its events in chunks.

    Attributes:
        envelope: The top level. Keys behind the events are there once all chunks were taken.
        malformed: Events dropped so far.
        repaired: Chunks that had to be repaired so far.
    """

    def __init__(self, text: Text, envelope: Envelope, event: type[E], where: str) -> None:
        """Start where the first event begins; `open_document` makes these."""
        self.envelope = envelope
        self.malformed = 0
        self.repaired = 0
        self._text = text
        self._where = where
        self._is_broken_off = False
        self._is_at_end = False
        self._event = msgspec.json.Decoder(event)
        self._events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]

    @property
    def is_truncated(self) -> bool:
        """Whether the file broke before its end, of what was taken so far."""
        return self._is_broken_off or self._text.inflated.is_truncated

    def chunks(self) -> Iterator[list[E]]:
        """All events, a slice at a time.

        Raises:
            UnreadableProfileError: When what is no event goes on for ever.
        """
        while not self._is_at_end:
            if events := self._next_slice():
                yield events

    def _next_slice(self) -> list[E]:
        text = self._text
        text.fill(_SLICE_BYTES + _SLICE_BYTES // 4)
        search_from = _SLICE_BYTES
        for _ in range(_MAX_CUTS_TRIED):
            cut = _BETWEEN_OBJECTS.search(text.rest, search_from)
            if cut is None and not text.is_at_end:
                text.fill(_WINDOW_BYTES)
                cut = _BETWEEN_OBJECTS.search(text.rest, search_from)
            if cut is None:
                break
            try:
                events = self._decoded(memoryview(text.rest)[: cut.start() + 1])
            except _UNREADABLE:
                search_from = cut.end()
                continue
            text.take(cut.end())
            return events
        last = self._up_to_end()
        return self._salvage_slice() if last is None else last

    def _up_to_end(self) -> list[E] | None:
        """The events before the array's end; None if that is not in what was read."""
        text = self._text
        for end in islice(_END_OF_ARRAY.finditer(text.rest), _MAX_CUTS_TRIED):
            try:
                events = self._decoded(memoryview(text.rest)[: end.start(1)])
            except _UNREADABLE:
                continue
            text.take(end.end(1))
            self._read_tail()
            return events
        return None

    def _salvage_slice(self) -> list[E]:
        """The readable events of a slice with damage, or of the last one."""
        text = self._text
        last = 0
        for cut in _BETWEEN_EVENTS.finditer(text.rest):
            last = cut.end()
            if last > _SLICE_BYTES:
                return self._strict_or_salvaged(text.take(last))
        if not last and not text.is_at_end:
            return self._read_on()
        events = self._strict_or_salvaged(text.take(last))
        if not self._closing_in(text.rest, events) and text.is_at_end:
            self._is_broken_off = self._is_at_end = True
            events.extend(self._complete(text.take(len(text.rest))))
        return events

    def _read_on(self) -> list[E]:
        """Read more where not even one event is whole."""
        size = len(self._text.rest)
        if size > _MAX_EVENT_BYTES:
            raise UnreadableProfileError(
                f"one event goes on for more than {_MAX_EVENT_BYTES:,} bytes.",
                where=self._where,
                hint="The file is damaged: record the trace again.",
            )
        self._text.fill(2 * size)
        return []

    def _closing_in(self, piece: bytes, events: list[E]) -> bool:
        """Whether a damaged last event and the array's end are at the start of a piece.

        The event's own brackets precede the array's: the first that completes it is taken.
        """
        effort = 0
        for closing in _CLOSING.finditer(piece):
            stop = len(piece[: closing.start()].rstrip().removesuffix(b",").rstrip())
            effort += stop
            if effort > _MAX_EFFORT_BYTES:
                break
            try:
                values = _VALUES.decode(b"[" + repair_json(piece[:stop]) + b"]")
            except _UNREADABLE:
                continue
            events.extend(self._readable(values))
            self._text.take(closing.end())
            self._read_tail()
            return True
        return False

    def _decoded(self, piece: bytes | memoryview) -> list[E]:
        events: list[E] = self._events.decode(b"".join((b"[", piece, b"]")))
        return events

    def _salvage(self, piece: bytes) -> list[E]:
        """The readable events of a damaged piece that ends between two events."""
        repaired = repair_json(piece)
        self.repaired += repaired != piece.translate(SPACES)
        try:
            return self._decoded(repaired)
        except _UNREADABLE:
            pass
        return list(self._readable(_values(repaired)))

    def _readable(self, values: Iterable[bytes | msgspec.Raw]) -> Iterator[E]:
        """Those of some values that are events; the others are counted."""
        for value in values:
            try:
                yield self._event.decode(value)
            except _UNREADABLE:
                self.malformed += 1

    def _complete(self, tail: bytes) -> list[E]:
        """The last event of a file that breaks off just behind it."""
        text = repair_json(tail).strip(b", ")
        if not text.startswith(b"{"):
            return []
        try:
            return [self._event.decode(text)]
        except _UNREADABLE:
            return []

    def _strict_or_salvaged(self, piece: bytes) -> list[E]:
        piece = piece.rstrip().removesuffix(b",")
        if not piece.strip():
            return []
        try:
            return self._decoded(piece)
        except _UNREADABLE:
            return self._salvage(piece)

    def _read_tail(self) -> None:
        """Fill the envelope from the keys that follow the events."""
        self._is_at_end = True
        self._text.fill(_MAX_HEADER_BYTES)
        tail = self._text.take(len(self._text.rest)).lstrip(_SPACE)
        if not tail:
            return
        found = _envelope_of(b"{" + tail.removeprefix(b","))
        if found is None:
            self._is_broken_off |= not tail.startswith(b"}")
            return
        for name in Envelope.__struct_fields__:
            value = getattr(found, name)
            is_given = is_present(value) if isinstance(value, msgspec.Raw) else value is not None
            if is_given:
                setattr(self.envelope, name, value)


def open_document(text: Text, event: type[E], where: str = "") -> Document[E] | None:
    """Find the events of a file.

    Args:
        text: The file, from its first byte.
        event: What each entry of `traceEvents` is decoded to.
        where: The file's path, for errors.

    Returns:
        None for what is no JSON of this form at all.
    """
    text.rest = text.rest.lstrip(_SPACE)
    while not text.rest and not text.is_at_end:
        text.fill(HEAD_BYTES)
        text.rest = text.rest.lstrip(_SPACE)
    if text.rest.startswith(b"["):
        text.take(1)
        return Document(text, Envelope(), event, where)
    if not text.rest.startswith(b"{"):
        return None
    size = HEAD_BYTES
    while True:
        text.fill(size)
        envelope = _take_header(text)
        if envelope is not None:
            return Document(text, envelope, event, where)
        if text.is_at_end or size >= _MAX_HEADER_BYTES:
            break
        size *= 4
    whole = _envelope_of(text.rest) if text.is_at_end else None
    if whole is None or is_present(whole.traceEvents):
        return None
    text.take(len(text.rest))
    return Document(text, whole, event, where)


def _take_header(text: Text) -> Envelope | None:
    """The keys before the events, taken from the text with the opening of the array."""
    damaged = None
    for found in _EVENTS_KEY.finditer(text.rest):
        header = text.rest[: found.start()].rstrip().removesuffix(b",") + b"}"
        try:
            envelope = _ENVELOPE.decode(header)
        except _UNREADABLE:
            # Deeper down, or the header is damaged: the first such place must do then.
            damaged = damaged or (found.end(), header)
            continue
        text.take(found.end())
        return envelope
    if damaged is None:
        return None
    end, header = damaged
    text.take(end)
    return _envelope_of(header) or Envelope()


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
