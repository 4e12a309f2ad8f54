"""Protobuf's wire format, decoded for many messages at once.

A profile holds millions of small messages of the same shape: an object for each, and for each
of its stats, costs more than all analysis after it. Here every step decodes *one field of all
messages* with array operations, so the number of Python steps is the number of fields in the
longest message. Broken messages end early; nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Values = NDArray[np.uint64]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
# A varint or a fixed value may be read past the end of the last message, never past this.
_PADDING = bytes(16)


@dataclass(frozen=True, slots=True)
class Spans:
    """Many messages in one buffer: message i is `buffer[begin[i]:end[i]]`."""

    buffer: Bytes
    begin: Rows
    end: Rows

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.begin)

    def select(self, rows: NDArray[np.bool_] | Rows) -> Spans:
        """Some of the messages."""
        return Spans(self.buffer, self.begin[rows], self.end[rows])


@dataclass(frozen=True, slots=True)
class Fields:
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


def join(messages: list[bytes]) -> Spans:
    """Lay messages end to end in one buffer."""
    sizes = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    end = np.cumsum(sizes)
    buffer = np.frombuffer(b"".join([*messages, _PADDING]), dtype=np.uint8)
    return Spans(buffer, end - sizes, end)


def varints(buffer: Bytes, at: Rows) -> tuple[Values, Rows]:
    """Read a varint at each position.

    Returns:
        The values, and the positions after them. A varint without an end gives a position
        beyond any buffer.
    """
    byte = buffer[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)
    last = buffer.size - 1
    for count in range(1, _LONGEST_VARINT):
        if more.size == 0:
            return value, after
        byte = buffer[np.minimum(at[more] + count, last)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        after[more] += 1
        more = more[byte >= 0x80]
    after[more] = buffer.size + 1
    return value, after


def walk(spans: Spans) -> Iterator[Fields]:
    """The first field of every message, then the second of those that have one, and so on."""
    row = np.flatnonzero(spans.begin < spans.end)
    at = spans.begin[row]
    while row.size:
        fields = _fields_at(spans.buffer, row, at)
        end = spans.end[row]
        is_whole = (fields.rest <= end) & (fields.rest > at)
        if not is_whole.all():
            fields = _select(fields, is_whole)
            end = end[is_whole]
            if not end.size:
                return
        yield fields
        goes_on = fields.rest < end
        row, at = fields.row[goes_on], fields.rest[goes_on]


def _select(fields: Fields, keep: NDArray[np.bool_]) -> Fields:
    return Fields(
        fields.row[keep],
        fields.number[keep],
        fields.wire_type[keep],
        fields.value[keep],
        fields.begin[keep],
        fields.rest[keep],
    )


def _fields_at(buffer: Bytes, row: Rows, at: Rows) -> Fields:
    # No message here has a field number above 15, whose tag is one byte; a longer tag must not
    # wrap to a known number.
    tag = buffer[at]
    begin = at + 1
    number = np.right_shift(tag, np.uint8(3))
    wire_type = np.bitwise_and(tag, np.uint8(7))
    is_long = np.flatnonzero(tag >= 0x80)
    if is_long.size:
        number[is_long] = 255
        begin[is_long] = varints(buffer, at[is_long])[1]
    last = buffer.size - 1
    readable = np.minimum(begin, last)
    value, rest = varints(buffer, readable)
    is_delimited = wire_type == DELIMITED
    if is_delimited.any():
        size = np.minimum(value[is_delimited], np.uint64(buffer.size)).astype(np.int64)
        begin[is_delimited] = rest[is_delimited]
        rest[is_delimited] += size
    for fixed, width in ((FIXED64, 8), (FIXED32, 4)):
        is_fixed = wire_type == fixed
        if is_fixed.any():
            start = np.minimum(readable[is_fixed], buffer.size - width)
            raw = buffer[start[:, None] + np.arange(width)]
            value[is_fixed] = raw.view("<u8" if width == 8 else "<u4")[:, 0]
            rest[is_fixed] = begin[is_fixed] + width
    # Groups and reserved types: this message cannot be read further.
    is_unknown = (wire_type != VARINT) & ~is_delimited
    is_unknown &= (wire_type != FIXED64) & (wire_type != FIXED32)
    rest[is_unknown | (begin > last)] = buffer.size + 1
    return Fields(row, number, wire_type, value, begin, rest)
