"""Reads one trace document, and mends what was cut off.

Only chunks that the strict decoder rejects are repaired, because repairs take time and may alter
names that contain the same characters.

The file is never entirely in memory. It is read and inflated in slices, which end between two
events, and the Python objects of one slice are freed before the next is decoded. A slice that the
strict decoder rejects is repaired. Events that cannot be repaired are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex

ABSENT = msgspec.Raw()


class Envelope(msgspec.Struct, gc=False):
    """The top level of a file; `Raw` fields are decoded later, or not at all."""

    traceEvents: msgspec.Raw = ABSENT  # noqa: N815 - the file's spelling
    schemaVersion: Any = None  # noqa: N815
    deviceProperties: msgspec.Raw = ABSENT  # noqa: N815
    computeProperties: msgspec.Raw = ABSENT  # noqa: N815
    """The name of `deviceProperties` in the first versions."""
    distributedInfo: msgspec.Raw = ABSENT  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    traceName: msgspec.Raw = ABSENT  # noqa: N815
    trace_id: Any = None
    host_name: Any = None
    record_shapes: Any = None
    with_stack: Any = None
    profile_memory: Any = None
    cuda_runtime_version: Any = None
    hip_runtime_version: Any = None
    perfadvisor_synthetic: Any = None
    perfadvisor_recorder: Any = None
    # Keys of other formats, which only serve to tell what the file is.
    nodes: msgspec.Raw = ABSENT
    displayTimeUnit: Any = None  # noqa: N815
    metadata: msgspec.Raw = ABSENT


def is_present(raw: msgspec.Raw | bytes) -> bool:
    """Whether a `Raw` field is in the file and not null."""
    return bytes(raw) not in (b"", b"null")


def decoded(raw: msgspec.Raw | bytes) -> Any:
    """The value of a `Raw` field; None if it is absent or not JSON."""
    if not is_present(raw):
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_WHITE = b"\t\n\r"
_CONTROL = bytes(set(range(0x20)) - set(_WHITE))
_TO_SPACES = bytes.maketrans(_CONTROL + _WHITE, b" " * 0x20)
SPACES = bytes.maketrans(_WHITE, b"   ")
"""Turns white space into spaces, which is all that repairing changes in valid JSON."""
_ESCAPE = regex(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NOT_A_NUMBER = regex(r"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|Inf|inf)(?=\s*[,}\]])")
_DANGLING_COMMA = regex(r",(\s*[}\]])")
_MISSING_VALUE = regex(r"(:\s*)(?=[,}])")
# A number too large for a float, as an overflowing printf writes it.
_HUGE_EXPONENT = regex(r"([:\[,]\s*)-?\d+(?:\.\d+)?[eE]\+?\d{3,}(?=\s*[,}\]])")


def repair_json(data: bytes) -> bytes:
    """Repair JSON.

    Control characters become spaces, also in strings. Backslashes that escape nothing are doubled.
    NaN and infinities become null. Trailing commas are removed. Bytes that are not UTF-8 become
    the replacement character.
    """
    text = data.translate(_TO_SPACES).decode("utf-8", "replace")
    text = _ESCAPE.sub(lambda match: match.group() if match.group(1) else r"\\", text)
    text = _NOT_A_NUMBER.sub(r"\1null", text)
    text = _HUGE_EXPONENT.sub(r"\1null", text)
    text = _MISSING_VALUE.sub(r"\1null", text)
    text = _DANGLING_COMMA.sub(r"\1", text)
    # A lone half of a surrogate pair (`\ud800`) decodes, but encodes to nothing.
    return text.encode("utf-8", "replace")


_PLACE = regex(r"\(byte (\d+)\)")
_VALUE = regex(rb"(?<=[:\[,])\s*[^\s\"{}\[\],][^\"{}\[\],]*(?=[,}\]])")


def without_bad_value(data: bytes, error: str) -> bytes:
    """JSON with null in place of the value at which the decoder stopped; empty if none is there.

    `error` is the decoder's message, which names the byte.
    """
    place = _PLACE.search(error)
    if place is None:
        return b""
    stopped = int(place[1])
    # The value begins after the last separator, at the byte or a little before it (`-nan(ind)`).
    begin = max(data.rfind(separator, 0, stopped + 1) for separator in (b":", b"[", b","))
    value = _VALUE.match(data, begin + 1) if begin >= 0 else None
    return b"" if value is None else data[: value.start()] + b"null" + data[value.end() :]


E = TypeVar("E", bound=msgspec.Struct)

HEAD_BYTES = 1_000_000
"""How much of a file is used to detect its format."""

# Small enough for the objects of a slice to stay in the processor's caches. With larger slices, a
# third of the time goes into allocating and freeing memory.
_SLICE_BYTES = 250_000
# Searched for a cut if there is none in a slice and a quarter, because an event is long.
_WINDOW_BYTES = 5_000_000
# A cut may be between two objects inside an event's args; then the next one is tried.
_MAX_CUTS_TRIED = 8
# A header with the process groups of ten thousand ranks takes a few megabytes, an event with a deep
# stack a few hundred kilobytes. Larger ones are not from a trace, and must not fill the memory.
_MAX_HEADER_BYTES = 64_000_000
_MAX_EVENT_BYTES = 32_000_000
# Each bracket may be the end of a damaged last event; limits the bytes decoded in these attempts.
_MAX_EFFORT_BYTES = 50_000_000
# `nan(0x8000)` for each of the numbers of an event.
_MAX_BAD_VALUES = 16
_BETWEEN_OBJECTS = regex(rb"\}\s*,\s*(?=\{)")
_BETWEEN_EVENTS = regex(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_CLOSING = regex(rb"\]")
_EVENTS_KEY = regex(rb'"traceEvents"\s*:\s*\[')
# The bracket that closes the array, before the next key, the end of the object or of the file. The
# bracket comes first: so a search looks at brackets only, not at each byte.
_END_OF_ARRAY = regex(rb'\](?<![^}\s]\])\s*(?:,\s*"|\}\s*[\[{]|\[\s*\{|\}\s*\Z|\Z)')
# Where one document ends and another one begins.
_NEXT_DOCUMENT = regex(rb'\}\s*(?=[\[{]\s*["{])|\]\s*(?=[\[{]\s*\{)')
_BETWEEN_BYTES = 64
"""Where one document ends and another begins fits into this many bytes."""
_HEADER = b'"schemaVersion"'
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ENVELOPE = msgspec.json.Decoder(Envelope)
_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Read(Struct, frozen=True):
    """A portion of a file, as it was read."""

    text: bytes = b""
    read_bytes: int = 0
    """Of the whole file, with this portion."""
    is_last: bool = False
    error: Exception | None = None
    """Why it could not be read."""


class Place(Struct, frozen=True):
    """How far a text was read and taken."""

    unread: bytes
    read_bytes: int
    is_at_end: bool


class Text:
    """The inflated text of a file; keeps its beginning for detecting the format."""

    def __init__(self, inflated: Inflated) -> None:
        """Read the beginning."""
        self.inflated = inflated
        first = inflated.read(HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK)
        self.head = first[:HEAD_BYTES]
        """The first bytes, without byte-order mark; at most `HEAD_BYTES`."""
        self.unread = first
        """The text that was read but not yet taken."""
        self.is_at_end = len(first) < HEAD_BYTES - len(_BYTE_ORDER_MARK)
        self._read_bytes = inflated.read_bytes
        self._read_again: deque[Read] = deque()

    def fill(self, size: int) -> list[Read]:
        """Read until `unread` has this many bytes or the file ends; returns what was read."""
        before, reads = self.place(), []
        while (missing := size - len(self.unread)) > 0 and not self.is_at_end:
            read = self._read_again.popleft() if self._read_again else self._read(missing)
            reads.append(read)
            if read.error is not None:
                self.go_back(before, reads)
                raise read.error
            self.unread += read.text
            self._read_bytes, self.is_at_end = read.read_bytes, read.is_last
        self.inflated.budget.read_bytes = self._read_bytes
        return reads

    def _read(self, size: int) -> Read:
        try:
            text = self.inflated.read(size)
        except Exception as error:  # it is raised where it would be if nobody read ahead
            return Read(error=error)
        return Read(text, self.inflated.read_bytes, len(text) < size)

    def place(self) -> Place:
        """Where the text is now."""
        return Place(self.unread, self._read_bytes, self.is_at_end)

    def go_back(self, place: Place, reads: Sequence[Read]) -> None:
        """Go back to a place; `reads` is what was read since, and is read again."""
        self.unread, self._read_bytes = place.unread, place.read_bytes
        self.is_at_end = place.is_at_end
        self._read_again.extendleft(reversed(reads))

    def begin(self) -> None:
        """Take what is unread for the beginning of another document."""
        self.fill(HEAD_BYTES)
        self.head = self.unread[:HEAD_BYTES]

    def take(self, size: int) -> bytes:
        """Remove the next bytes from `unread` and return them."""
        taken, self.unread = self.unread[:size], self.unread[size:]
        return taken


def _ends_of_array(text: bytes) -> Iterator[int]:
    """Where the array may end: behind an event, or at once."""
    for bracket in _END_OF_ARRAY.finditer(text):
        end = bracket.start()
        while text[end - 1 : end].isspace():
            end -= 1
        if not end or text[end - 1 : end] == b"}":
            yield bracket.start()


class SliceAhead(Struct, frozen=True):
    """A slice that was taken but not decoded."""

    text: bytes
    """Events, with what lies between them."""
    read_bytes: int
    """How much was read of the file until then."""
    place: Place
    """Where it begins."""
    reads: Sequence[Read]
    """What was read to take it."""


class Document(Generic[E]):
    """A document of a file: its top level, and its events in chunks.

    Attributes:
        envelope: The top level. Keys after the events are filled in once all chunks were read.
        malformed: Number of events dropped so far.
        repaired: Number of chunks repaired so far.
        is_followed: Whether another document follows, which is unread then.
        is_interleaved: Whether another document begins before this one has ended.
        is_at_end: Whether all events were read.
    """

    def __init__(self, text: Text, envelope: Envelope, event: type[E], where: str) -> None:
        """Start at the first event; use `open_document` to create one."""
        self.envelope = envelope
        self.malformed = 0
        self.repaired = 0
        self.is_followed = False
        self.is_interleaved = False
        self.is_at_end = False
        self._text = text
        self._where = where
        self._is_cut_off = False
        self._event = msgspec.json.Decoder(event)
        self._events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]

    @property
    def is_truncated(self) -> bool:
        """Whether the text read so far ended too early."""
        is_last = not self.is_followed
        return self._is_cut_off or (is_last and self._text.inflated.is_truncated)

    def chunks(self) -> Iterator[list[E]]:
        """All events, a slice at a time."""
        while not self.is_at_end:
            if events := self.next_slice():
                yield events

    @property
    def budget(self) -> Budget:
        """What may be kept of what was read so far."""
        return self._text.inflated.budget

    def slice_ahead(self) -> SliceAhead | None:
        """Take the next slice without decoding it; None if decoding must show where it ends.

        It ends where `next_slice` lets it end if it can be decoded.
        """
        text = self._text
        place = text.place()
        try:
            reads = text.fill(_SLICE_BYTES + _SLICE_BYTES // 4)
        except Exception:  # it is raised again by `next_slice`
            return None
        cut = _BETWEEN_OBJECTS.search(text.unread, _SLICE_BYTES)
        if cut is None:
            text.go_back(place, reads)
            return None
        taken = text.unread[: cut.start() + 1]
        text.unread = text.unread[cut.end() :]
        return SliceAhead(taken, text.place().read_bytes, place, reads)

    def go_back(self, place: Place, reads: Sequence[Read]) -> None:
        """Put back the slices since a place; `reads` is what was read to take them."""
        self._text.go_back(place, reads)

    def next_slice(self) -> list[E]:
        """Take and decode a slice; empty if more must be read first, or none is readable."""
        text = self._text
        text.fill(_SLICE_BYTES + _SLICE_BYTES // 4)
        search_from = _SLICE_BYTES
        for _ in range(_MAX_CUTS_TRIED):
            cut = _BETWEEN_OBJECTS.search(text.unread, search_from)
            if cut is None and not text.is_at_end:
                text.fill(_WINDOW_BYTES)
                cut = _BETWEEN_OBJECTS.search(text.unread, search_from)
            if cut is None:
                break
            try:
                events = self._decoded(memoryview(text.unread)[: cut.start() + 1])
            except UNREADABLE:
                search_from = cut.end()
                continue
            text.take(cut.end())
            return events
        last = self._last_slice()
        return self._salvage_slice() if last is None else last

    def _last_slice(self) -> list[E] | None:
        """The events before the array's end; None if the end is not in the text read so far."""
        text = self._text
        for end in islice(_ends_of_array(text.unread), _MAX_CUTS_TRIED):
            try:
                events = self._decoded(memoryview(text.unread)[:end])
            except UNREADABLE:
                continue
            text.take(end + 1)
            self._read_tail()
            return events
        return None

    def _salvage_slice(self) -> list[E]:
        """The readable events of a damaged slice, or of the last one."""
        text = self._text
        last = 0
        for cut in _BETWEEN_EVENTS.finditer(text.unread):
            last = cut.end()
            if last > _SLICE_BYTES:
                return self._strict_or_salvaged(text.take(last))
        if not last and not text.is_at_end:
            return self._read_more()
        events = self._strict_or_salvaged(text.take(last))
        if not self._ends_in(text.unread, events) and text.is_at_end:
            self._is_cut_off = self.is_at_end = True
            events.extend(self._complete(text.take(len(text.unread))))
        return events

    def _read_more(self) -> list[E]:
        """Read more text, because not even one event is complete."""
        size = len(self._text.unread)
        if size > _MAX_EVENT_BYTES:
            raise UnreadableProfileError(
                f"an event is longer than {_MAX_EVENT_BYTES:,} bytes.",
                where=self._where,
                hint="The file is damaged: record the trace again.",
            )
        self._text.fill(2 * size)
        return []

    def _ends_in(self, piece: bytes, events: list[E]) -> bool:
        """Whether a piece starts with a damaged last event and the array's end.

        The event may contain brackets itself: the first one that completes the event is used.
        """
        effort = 0
        for closing in _CLOSING.finditer(piece):
            stop = len(piece[: closing.start()].rstrip().removesuffix(b",").rstrip())
            effort += stop
            if effort > _MAX_EFFORT_BYTES:
                break
            try:
                values = _VALUES.decode(b"[" + repair_json(piece[:stop]) + b"]")
            except UNREADABLE:
                continue
            events.extend(self._readable(values))
            self._text.take(closing.end())
            self._read_tail()
            return True
        return False

    def _decoded(self, piece: bytes | memoryview) -> list[E]:
        self._text.inflated.budget.expect_json(piece)
        events: list[E] = self._events.decode(b"".join((b"[", piece, b"]")))
        return events

    def _salvage(self, piece: bytes) -> list[E]:
        """Repair a damaged piece that ends between two events; returns its readable events."""
        repaired = repair_json(piece)
        self.repaired += repaired != piece.translate(SPACES)
        try:
            return self._decoded(repaired)
        except UNREADABLE:
            pass
        return list(self._readable(_values(repaired)))

    def _readable(self, values: Iterable[bytes | msgspec.Raw]) -> Iterator[E]:
        """Decode values to events; counts the values that are not events.

        A value inside an event that is no JSON costs that value, not the event. The header of
        another document ends this one.
        """
        for value in values:
            text = bytes(value)
            if _HEADER in text:
                self.is_interleaved = self._is_cut_off = self.is_at_end = True
                return
            for _ in range(_MAX_BAD_VALUES):
                try:
                    yield self._event.decode(text)
                    break
                except UNREADABLE as error:
                    text = without_bad_value(text, str(error))
            else:
                self.malformed += 1

    def _complete(self, tail: bytes) -> list[E]:
        """The last event of a file that is cut off directly after it."""
        text = repair_json(tail).strip(b", ")
        if not text.startswith(b"{"):
            return []
        try:
            return [self._event.decode(text)]
        except UNREADABLE:
            return []

    def _strict_or_salvaged(self, piece: bytes) -> list[E]:
        piece = piece.rstrip().removesuffix(b",")
        if not piece.strip():
            return []
        try:
            return self._decoded(piece)
        except UNREADABLE:
            return self._salvage(piece)

    def _read_tail(self) -> None:
        """Fill in the envelope from the keys after the events."""
        self.is_at_end = True
        text, size, trailer = self._text, HEAD_BYTES, None
        while trailer is None:
            text.fill(size)
            text.unread = text.unread.lstrip(_SPACE).removeprefix(b",")
            if text.unread.startswith((b"[", b"{")):  # after an array alone
                self.is_followed = True
                return
            text.inflated.budget.expect_json(text.unread)
            for end in islice(_NEXT_DOCUMENT.finditer(text.unread), _MAX_CUTS_TRIED):
                trailer = _envelope_of(b"{" + text.unread[: end.start() + 1])
                if trailer is not None:
                    self.is_followed = True
                    text.take(end.end())
                    break
            if text.is_at_end or size >= _MAX_HEADER_BYTES:
                break
            size *= 4
        if not self.is_followed:
            tail = text.take(len(text.unread))
            trailer = _envelope_of(b"{" + tail) if tail else None
            # Kineto writes a path there without escaping it. All events were read before.
            self._is_cut_off |= bool(tail) and trailer is None and not tail.rstrip().endswith(b"}")
        if trailer is None:
            return
        for name in Envelope.__struct_fields__:
            value = getattr(trailer, name)
            is_given = is_present(value) if isinstance(value, msgspec.Raw) else value is not None
            if is_given:
                setattr(self.envelope, name, value)


def open_document(text: Text, event: type[E], where: str = "") -> Document[E] | None:
    """Find the events of a document; None if it is not JSON of this form.

    The document begins at the first byte that is unread. Each entry of `traceEvents` is decoded to
    an `event`.
    """
    text.unread = text.unread.lstrip(_SPACE)
    while not text.unread and not text.is_at_end:
        text.fill(HEAD_BYTES)
        text.unread = text.unread.lstrip(_SPACE)
    if text.unread.startswith(b"["):
        text.take(1)
        return Document(text, Envelope(), event, where)
    if not text.unread.startswith(b"{"):
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
    whole = _envelope_of(text.unread) if text.is_at_end else None
    if whole is None or is_present(whole.traceEvents):
        return None
    text.take(len(text.unread))
    return Document(text, whole, event, where)


def _take_header(text: Text) -> Envelope | None:
    """Take the keys before the events, and the opening bracket of the array."""
    damaged = None
    for match in _EVENTS_KEY.finditer(text.unread):
        header = text.unread[: match.start()].rstrip().removesuffix(b",") + b"}"
        text.inflated.budget.expect_json(header)
        try:
            envelope = _ENVELOPE.decode(header)
        except UNREADABLE:
            # The key is nested, or the header is damaged. If no other key fits, use the first.
            damaged = damaged or (match.end(), header)
            continue
        text.take(match.end())
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
        except UNREADABLE:
            continue
    return None


def _values(piece: bytes) -> Iterator[bytes | msgspec.Raw]:
    """The values of a piece: by decoding, or else by what looks like an event."""
    start = 0
    for stop, following in _cuts(piece):
        try:
            yield from _VALUES.decode(b"[" + piece[start:stop] + b"]")
        except UNREADABLE:
            yield piece[start:stop]
        start = following


def _cuts(piece: bytes) -> Iterator[tuple[int, int]]:
    """The end of each piece that looks like an event, and the start of the next."""
    for cut in _BETWEEN_EVENTS.finditer(piece):
        yield cut.start() + 1, cut.end()
    yield len(piece), len(piece)


def count_documents(stream: BinaryIO, where: str) -> int:
    """How many documents a file holds, one after another."""
    inflated = Inflated(stream, where)
    count, text = 1, b""
    while piece := inflated.read(HEAD_BYTES):
        text += piece
        ends = [end.end() for end in _NEXT_DOCUMENT.finditer(text)]
        count += len(ends)
        text = text[max([len(text) - _BETWEEN_BYTES, *ends]) :]
    return count


def damage_notes(document: Document[Any], malformed: int) -> list[Note]:
    """Notes on damage in a file in Chrome's trace format.

    All chunks of the document were read. `malformed` events were repaired or left out.
    """
    notes = []
    if document.is_truncated:
        notes.append(
            Note(
                "truncated-file",
                "warning",
                "The file is truncated; only its beginning was read.",
                "Wait until the profiler has finished writing, or copy the file again.",
            )
        )
    if document.is_interleaved:
        notes.append(
            Note(
                "several-documents",
                "warning",
                "The file holds several documents: several processes wrote into it, or files were "
                "joined. Only what precedes the second is read.",
                "Let each rank write a file of its own.",
            )
        )
    if malformed:
        events = "1 event was" if malformed == 1 else f"{malformed} events were"
        notes.append(
            Note(
                "malformed-events",
                "warning",
                f"{events} repaired or left out (no start, no name, a negative or missing "
                "duration, or unreadable).",
            )
        )
    if document.repaired:
        notes.append(
            Note(
                "repaired-json",
                "info",
                "The file is not valid JSON (control characters, stray backslashes or commas, "
                "NaN) and was repaired while reading.",
            )
        )
    return notes
