"""The wire format of protocol buffers, in columns.

A profile has millions of small messages of the same shape. An object for each of them and for each
of their stats costs more than the whole analysis. Here, each step decodes *one field of all
messages* with array operations, so the number of Python steps is the number of fields of the
longest message. Broken messages end early; nothing raises.

Finds the positions of consecutive fields with the same number (a run of records).

The length of each record tells where the next one starts, so a run must be walked from its start:
a hundred thousand Python steps per megabyte of events. But a walk that starts at any position
synchronizes with the correct one after a few records, because what it mistakes for a record soon
ends where a record ends. So the run is divided into stretches that are walked in parallel with
array operations. Each walk starts a little before its stretch. Where a walk leaves its stretch,
the next one must have entered its own. Stretches that fail this check are walked again from the
known position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Values = NDArray[np.uint64]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES: Final = 10
MAX_FIELDS: Final = 256
"""Limit of fields per message. Valid messages have up to thirty, damaged ones may have more."""
PADDING: Final = bytes(16)
"""Must follow the last message in a buffer, because fields are read as words of eight bytes."""

# A varint has seven bits per byte, lowest first; all bytes but the last have a continuation bit.
_CONTINUES: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
# (bits to keep, bits to move, distance): joins groups of 7 bits to 14, then 28, then 56.
_JOINING: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(by))
    for keep, move, by in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
# Multiplied by 256^k, its highest byte is k + 1.
_COUNT_BYTES: Final = np.uint64(0x0102030405060708)
_ONE, _SEVEN, _EIGHT, _TOP = (np.uint64(bits) for bits in (1, 7, 8, 56))
_BOTH_CONTINUE: Final = np.uint16(0x8080)


class Slices(Struct, frozen=True):
    """Messages in one buffer: message i is `buffer[begin[i]:end[i]]`."""

    buffer: Bytes
    begin: Rows
    end: Rows

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.begin)

    def select(self, rows: NDArray[np.bool_] | Rows | slice) -> Slices:
        """A selection of the messages."""
        return Slices(self.buffer, self.begin[rows], self.end[rows])


class Fields(Struct, frozen=True):
    """One field of each of n messages; shape (n,) each."""

    row: Rows
    """The index of the message."""
    number: Bytes
    """The field number; 255 for all numbers above 15."""
    wire_type: Bytes
    value: Values
    """The value of a varint or fixed field; the length of a delimited field."""
    begin: Rows
    """The start of the payload."""
    rest: Rows
    """The start of the next field."""
    word: Values
    """The eight bytes from the tag on."""

    def select(self, rows: NDArray[np.bool_] | Rows) -> Fields:
        """A selection of the fields."""
        return Fields(
            self.row[rows],
            self.number[rows],
            self.wire_type[rows],
            self.value[rows],
            self.begin[rows],
            self.rest[rows],
            self.word[rows],
        )


def buffer_of(*parts: bytes) -> Bytes:
    """Concatenate bytes to a buffer, with the padding that decoding needs."""
    return np.frombuffer(b"".join([*parts, PADDING]), dtype=np.uint8)


def join(messages: list[bytes]) -> Slices:
    """Concatenate messages in one buffer."""
    sizes = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    end = np.cumsum(sizes)
    return Slices(buffer_of(*messages), end - sizes, end)


def varints(buffer: Bytes, at: Rows) -> tuple[Values, Rows]:
    """Read a varint at each position.

    Returns the values, and the positions after them. For a varint without an end, the position is
    beyond the buffer.
    """
    value, size = first_varint(words(buffer)[at])
    after = at + size
    long = np.flatnonzero(size == 0)
    if long.size:
        last = buffer.size - 1
        ninth = buffer[np.minimum(at[long] + 8, last)]
        tenth = buffer[np.minimum(at[long] + 9, last)]
        is_ten = ninth >= 0x80
        value[long] |= (ninth & 0x7F).astype(np.uint64) << _TOP
        value[long] |= np.where(is_ten, tenth & 1, 0).astype(np.uint64) << np.uint64(63)
        after[long] = np.where(
            is_ten & (tenth >= 0x80), buffer.size + 1, at[long] + np.where(is_ten, 10, 9)
        )
    return value, after


def lengths(buffer: Bytes, at: Rows) -> tuple[Rows, Rows]:
    """Read the length of a message at each position.

    Returns the lengths, and the positions after them as in `varints`. Lengths beyond the buffer are
    only known to be too large.
    """
    pair: NDArray[np.uint16] = np.ndarray(
        (buffer.size - 1,), dtype="<u2", buffer=buffer, strides=(1,)
    )[at]
    if (pair & _BOTH_CONTINUE == _BOTH_CONTINUE).any():
        length, after = varints(buffer, at)
        return np.minimum(length, np.uint64(buffer.size)).view(np.int64), after
    # Nearly all lengths take one or two bytes.
    continues = (pair >> np.uint16(7)) & np.uint16(1)
    short = pair & np.uint16(0x7F)
    short |= ((pair >> np.uint16(1)) & np.uint16(0x3F80)) * continues
    after = at + 1
    after += continues
    return short.astype(np.int64), after


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A varint and the position after it; (-1, -1) if it is invalid."""
    if at < 0:
        return -1, -1
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if at + count >= len(data):
            return -1, -1
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    return -1, -1


def walk(spans: Slices) -> Iterator[Fields]:
    """Yield the first field of every message, then the second field of those that have one, etc."""
    row = np.flatnonzero(spans.begin < spans.end)
    at, end = spans.begin[row], spans.end[row]
    for _ in range(MAX_FIELDS):
        if not row.size:
            return
        fields = fields_at(spans.buffer, row, at)
        is_whole = (fields.rest <= end) & (fields.rest > at)
        if not is_whole.all():
            fields = fields.select(is_whole)
            end = end[is_whole]
            if not end.size:
                return
        yield fields
        row, at = fields.row, fields.rest
        continues = at < end
        if not continues.all():
            row, at, end = row[continues], at[continues], end[continues]


def leading(spans: Slices, tags: Sequence[int]) -> tuple[list[Fields], Rows]:
    """Decode the fields at the start of messages, in the order in which protobuf writes them.

    Tags have one byte; any of them may be missing in a message. Returns for each tag the fields of
    the messages that have it; and where the remaining fields of each message start.
    """
    at = spans.begin.copy()
    row = np.flatnonzero(at < spans.end)
    leading_fields = []
    for tag in tags:
        fields = fields_at(spans.buffer, row, at[row])
        is_next = (fields.word.astype(np.uint8) == tag) & (fields.rest <= spans.end[row])
        if not is_next.all():
            fields = fields.select(is_next)
        leading_fields.append(fields)
        at[fields.row] = fields.rest
        row = row[at[row] < spans.end[row]]
    return leading_fields, at


def fields_at(buffer: Bytes, row: Rows, at: Rows) -> Fields:
    """Decode the field at each position.

    The buffer ends with `PADDING`. `row` has the message of each field, and the positions are
    before the padding.
    """
    every = words(buffer)
    word = every[at]
    tag = word.astype(np.uint8)
    number = tag >> np.uint8(3)
    wire_type = tag & np.uint8(7)
    begin = at + 1
    value, size = first_varint(word >> _EIGHT)
    rest = begin + size
    # Varints of eight bytes and more do not fit into the word with the tag. Tags of more
    # than one byte have field numbers above 15, which no message here uses: they must not
    # wrap to a used number.
    odd = np.flatnonzero((size == 8) | (tag >= 0x80))
    if odd.size:
        is_long = tag[odd] >= 0x80
        number[odd[is_long]] = 255
        begin[odd[is_long]] = varints(buffer, at[odd[is_long]])[1]
        value[odd], rest[odd] = varints(buffer, np.minimum(begin[odd], buffer.size - 8))
    if (wire_type == VARINT).all():
        return Fields(row, number, wire_type, value, begin, rest, word)
    length = np.minimum(value, np.uint64(buffer.size)).view(np.int64)
    is_delimited = wire_type == DELIMITED
    if is_delimited.all():
        return Fields(row, number, wire_type, value, rest, rest + length, word)
    begin = np.where(is_delimited, rest, begin)
    rest += np.where(is_delimited, length, 0)
    other = np.flatnonzero((wire_type != VARINT) & ~is_delimited)
    if other.size:
        start = np.minimum(begin[other], buffer.size - 8)
        is_half = wire_type[other] == FIXED32
        value[other] = every[start] & np.where(is_half, np.uint64(0xFFFFFFFF), ~np.uint64(0))
        # After groups and reserved types, the message cannot be decoded further.
        is_known = is_half | (wire_type[other] == FIXED64)
        rest[other] = np.where(is_known, begin[other] + np.where(is_half, 4, 8), buffer.size + 1)
    return Fields(row, number, wire_type, value, begin, rest, word)


def words_at(buffer: Bytes, at: Rows, size: Rows) -> Values:
    """The first eight bytes of pieces of a buffer, padded with zeros."""
    unused = np.clip(8 - size, 0, 7).view(np.uint64) * _EIGHT
    masked: Values = (words(buffer)[at] << unused) >> unused
    return masked


def words(buffer: Bytes) -> Values:
    """The eight bytes starting at each position."""
    every: Values = np.ndarray((buffer.size - 7,), dtype="<u8", buffer=buffer, strides=(1,))
    return every


def first_varint(word: Values) -> tuple[Values, Rows]:
    """The varint at the start of each word, and its size; 0 if it does not end in the word."""
    # Compute in place, because new columns for each step would not stay in the cache.
    size = ~word
    size &= _CONTINUES
    moved = np.negative(size)
    size &= moved  # keeps only the lowest bit
    # All bits below that one; all bits if there is none.
    value = size << _ONE
    value -= _ONE
    value &= word
    value &= _SEVENS
    for keep, move, by in _JOINING:
        np.bitwise_and(value, move, out=moved)
        moved >>= by
        value &= keep
        value |= moved
    size >>= _SEVEN
    size *= _COUNT_BYTES
    size >>= _TOP
    return value, size.view(np.int64)


# Long enough for many records per stretch, short enough for many parallel stretches.
_STRETCH: Final = 2048
_RUN_UP: Final = 256
# Most records and their fields are shorter.
_MAX_TAG_DISTANCE: Final = 64
# Below this size, a single walk is faster.
_MIN_PARALLEL_BYTES: Final = 64 * _STRETCH


class RecordRun(Struct, frozen=True):
    """Complete records of one field number."""

    begin: Rows
    """The start of each payload."""
    end: Rows
    after: int
    """The end of the run: another field, or a truncated record."""


def find_records(buffer: Bytes, at: int, end: int, tag: int) -> RecordRun:
    """Find the run of delimited fields that starts at a position.

    The buffer ends with `PADDING`. `at` is the position of the first record's tag, which has
    one byte, and `end` is the end of the message.
    """
    walk = _walk_single if end - at < _MIN_PARALLEL_BYTES else _walk_parallel
    tags, after = walk(buffer, at, end, tag)
    size, begin = lengths(buffer, tags + 1)
    return RecordRun(begin, begin + size, after)


def _walk_single(
    buffer: Bytes, at: int, end: int, tag: int, until: int | None = None
) -> tuple[Rows, int]:
    """The tags of the records that start before `until`, and the position after the last one."""
    data = buffer.data
    until = end if until is None else until
    tags = []
    while at < until and data[at] == tag:
        size, begin = data[at + 1], at + 2
        if size >= 0x80:
            size, begin = varint(data, at + 1)
        if begin < 0 or begin + size > end:
            break
        tags.append(at)
        at = begin + size
    return np.array(tags, dtype=np.int64), at


def _walk_parallel(buffer: Bytes, at: int, end: int, tag: int) -> tuple[Rows, int]:
    edges = np.append(np.arange(at, end, _STRETCH), end)
    limit = edges[1:]
    place = _some_tag(buffer, np.maximum(edges[:-1] - _RUN_UP, at), tag)
    place[0] = at
    after = place.copy()
    stretch = np.arange(limit.size)
    walked = []
    while stretch.size:
        size, rest = lengths(buffer, place + 1)
        rest += size
        is_record = (buffer[place] == tag) & (rest <= end)
        if not is_record.all():
            stretch, place, rest = stretch[is_record], place[is_record], rest[is_record]
            limit = limit[is_record]
        walked.append((stretch, place))
        after[stretch] = place = rest
        goes_on = rest < limit
        if not goes_on.all():
            stretch, place, limit = stretch[goes_on], rest[goes_on], limit[goes_on]
    return _stitch(buffer, edges, tag, walked, after)


def _some_tag(buffer: Bytes, at: Rows, tag: int) -> Rows:
    """The first byte after each position that looks like a record's tag."""
    candidate: Rows = at.copy()
    missing = np.arange(at.size)
    for _ in range(_MAX_TAG_DISTANCE):
        missing = missing[buffer[candidate[missing]] != tag]
        candidate[missing] += 1
    return candidate


def _stitch(
    buffer: Bytes, edges: Rows, tag: int, walked: list[tuple[Rows, Rows]], after: Rows
) -> tuple[Rows, int]:
    """Join the walks of all stretches, and repeat those that were not synchronized."""
    stretch = np.concatenate([part for part, _ in walked])
    place = np.concatenate([part for _, part in walked])
    is_inside = place >= edges[stretch]  # the others precede the stretch
    stretch, place = stretch[is_inside], place[is_inside]
    # NumPy sorts 16-bit integers by radix, in a tenth of the time.
    keys = stretch.astype(np.uint16) if after.size < 2**16 else stretch
    place = place[np.argsort(keys, kind="stable")]
    last = np.cumsum(np.bincount(stretch, minlength=after.size))
    first = np.append(0, last[:-1])
    enters = np.where(first < last, np.append(place, -1)[first], -1)
    # Stretches whose successor is not synchronized.
    breaks = np.flatnonzero(np.append(enters[1:] != after[:-1], True))
    begin, end = int(edges[0]), int(edges[-1])
    at, parts = begin, []
    while at < end:
        current = (at - begin) // _STRETCH
        if enters[current] == at:
            final = breaks[np.searchsorted(breaks, current)]
            parts.append(place[first[current] : last[final]])
            at = int(after[final])
        else:
            part, next_at = _walk_single(buffer, at, end, tag, until=int(edges[current + 1]))
            if next_at == at:
                break
            parts.append(part)
            at = next_at
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), at
