"""Protobuf's wire format, decoded for many messages at once.

A profile holds millions of small messages of the same shape: an object for each, and for each
of its stats, costs more than all analysis after it. Here every step decodes *one field of all
messages* with array operations, so the number of Python steps is the number of fields in the
longest message. Broken messages end early; nothing raises.
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
LONGEST_VARINT: Final = 10
MOST_FIELDS: Final = 256
"""Of a message that are read: the largest have thirty, a damaged one has no end of them."""
PADDING: Final = bytes(16)
"""Must follow the last message in a buffer: a field is read in words of eight bytes."""

# A varint has seven bits to a byte, the lowest first, and a continuation bit on all but its last.
_CONTINUES: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
# (bits to keep, bits to move, by how many): sevens become fourteens, then 28s, then all.
_JOINING: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(by))
    for keep, move, by in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
# Times 256^k, its highest byte is k + 1.
_COUNT_BYTES: Final = np.uint64(0x0102030405060708)
_ONE, _SEVEN, _EIGHT, _TOP = (np.uint64(bits) for bits in (1, 7, 8, 56))
_BOTH_GO_ON: Final = np.uint16(0x8080)


class Spans(Struct, frozen=True):
    """Many messages in one buffer: message i is `buffer[begin[i]:end[i]]`."""

    buffer: Bytes
    begin: Rows
    end: Rows

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.begin)

    def select(self, rows: NDArray[np.bool_] | Rows | slice) -> Spans:
        """Some of the messages."""
        return Spans(self.buffer, self.begin[rows], self.end[rows])


class Fields(Struct, frozen=True):
    """One field of many messages; shape (n,) each."""

    row: Rows
    """Which message."""
    number: Bytes
    """255 stands for all numbers above 15."""
    wire_type: Bytes
    value: Values
    """Of a varint or fixed field; the length of a delimited one."""
    begin: Rows
    """Where the payload starts."""
    rest: Rows
    """Where the next field starts."""
    word: Values
    """The eight bytes from its tag on."""

    def select(self, rows: NDArray[np.bool_] | Rows) -> Fields:
        """Some of the fields."""
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
    """Bytes end to end as a buffer, with the padding that decoding needs."""
    return np.frombuffer(b"".join([*parts, PADDING]), dtype=np.uint8)


def join(messages: list[bytes]) -> Spans:
    """Lay messages end to end in one buffer."""
    sizes = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    end = np.cumsum(sizes)
    return Spans(buffer_of(*messages), end - sizes, end)


def varints(buffer: Bytes, at: Rows) -> tuple[Values, Rows]:
    """Read a varint at each position.

    Returns:
        The values, and the positions after them. A varint without an end gives a position
        beyond any buffer.
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

    Returns:
        The lengths, of those that no buffer holds only that they are too long, and the positions
        after them, as of `varints`.
    """
    pair: NDArray[np.uint16] = np.ndarray(
        (buffer.size - 1,), dtype="<u2", buffer=buffer, strides=(1,)
    )[at]
    if (pair & _BOTH_GO_ON == _BOTH_GO_ON).any():
        length, after = varints(buffer, at)
        return np.minimum(length, np.uint64(buffer.size)).view(np.int64), after
    # Two bytes hold them, nearly always.
    goes_on = (pair >> np.uint16(7)) & np.uint16(1)
    short = pair & np.uint16(0x7F)
    short |= ((pair >> np.uint16(1)) & np.uint16(0x3F80)) * goes_on
    after = at + 1
    after += goes_on
    return short.astype(np.int64), after


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """One varint and the position after it; (-1, -1) when there is none."""
    if at < 0:
        return -1, -1
    value = 0
    for count in range(LONGEST_VARINT):
        if at + count >= len(data):
            return -1, -1
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    return -1, -1


def walk(spans: Spans) -> Iterator[Fields]:
    """The first field of every message, then the second of those that have one, and so on."""
    row = np.flatnonzero(spans.begin < spans.end)
    at, end = spans.begin[row], spans.end[row]
    for _ in range(MOST_FIELDS):
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
        goes_on = at < end
        if not goes_on.all():
            row, at, end = row[goes_on], at[goes_on], end[goes_on]


def leading(spans: Spans, tags: Sequence[int]) -> tuple[list[Fields], Rows]:
    """Fields that messages begin with, in the order in which protobuf writes them.

    Args:
        spans: The messages.
        tags: Of one byte; a message may lack any of them.

    Returns:
        For each tag the fields of the messages that have it, and where the rest of each begins.
    """
    at = spans.begin.copy()
    row = np.flatnonzero(at < spans.end)
    found = []
    for tag in tags:
        fields = fields_at(spans.buffer, row, at[row])
        is_next = (fields.word.astype(np.uint8) == tag) & (fields.rest <= spans.end[row])
        if not is_next.all():
            fields = fields.select(is_next)
        found.append(fields)
        at[fields.row] = fields.rest
        row = row[at[row] < spans.end[row]]
    return found, at


def fields_at(buffer: Bytes, row: Rows, at: Rows) -> Fields:
    """The field at each position.

    Args:
        buffer: Ends with `PADDING`.
        row: Which message each belongs to.
        at: Positions before the padding.
    """
    every = words(buffer)
    word = every[at]
    tag = word.astype(np.uint8)
    number = tag >> np.uint8(3)
    wire_type = tag & np.uint8(7)
    begin = at + 1
    value, size = first_varint(word >> _EIGHT)
    rest = begin + size
    # Eight bytes and more don't fit beside the tag; and no message here has a field number above
    # 15, whose tag is one byte: a longer one must not wrap to a known number.
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
        # Groups and reserved types: this message cannot be read further.
        is_known = is_half | (wire_type[other] == FIXED64)
        rest[other] = np.where(is_known, begin[other] + np.where(is_half, 4, 8), buffer.size + 1)
    return Fields(row, number, wire_type, value, begin, rest, word)


def words_at(buffer: Bytes, at: Rows, size: Rows) -> Values:
    """The first eight bytes of pieces of a buffer; zeros where a piece is shorter."""
    unused = np.clip(8 - size, 0, 7).view(np.uint64) * _EIGHT
    found: Values = (words(buffer)[at] << unused) >> unused
    return found


def words(buffer: Bytes) -> Values:
    """The eight bytes from each position on."""
    every: Values = np.ndarray((buffer.size - 7,), dtype="<u8", buffer=buffer, strides=(1,))
    return every


def first_varint(word: Values) -> tuple[Values, Rows]:
    """The varint in the lowest bytes of each word, and its size; 0 where it does not end there."""
    # In place: columns that are made anew for each step push each other out of the cache.
    size = ~word
    size &= _CONTINUES
    moved = np.negative(size)
    size &= moved  # the lowest bit alone
    # All bits up to that one; all of them where there is none.
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
