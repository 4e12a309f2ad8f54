"""Protobuf's wire format, encoded for many messages at once.

The counterpart of `xplane.wire`: columns become the bytes of as many messages with array
operations. `Cells` hold a table of bytes, one message a row, and which of them are used; fields
are tables side by side, and the used bytes in reading order are the messages, one after the other.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Cells(Struct, frozen=True):
    """The bytes of n messages: shape (n, width) each."""

    data: NDArray[np.uint8]
    is_used: NDArray[np.bool_]

    def __bytes__(self) -> bytes:
        """The messages, one after the other."""
        return self.data[self.is_used].tobytes()

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of bytes of each message."""
        sizes: NDArray[np.int64] = np.count_nonzero(self.is_used, axis=1).astype(np.int64)
        return sizes

    def where(self, is_wanted: NDArray[np.bool_]) -> Cells:
        """The same, empty for the other messages."""
        return Cells(self.data, self.is_used & is_wanted[:, None])


def beside(*cells: Cells) -> Cells:
    """Fields of the same messages, one after the other."""
    return Cells(
        np.hstack([each.data for each in cells]), np.hstack([each.is_used for each in cells])
    )


def varint_field(number: int, values: NDArray[np.int64]) -> Cells:
    """A field of whole numbers; negative ones take ten bytes, as protobuf has it."""
    return beside(_tag(number, 0, values.size), _varints(values))


def double_field(number: int, values: NDArray[np.float64]) -> Cells:
    """A field of doubles."""
    data = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(values.size, 8)
    return beside(_tag(number, 1, values.size), _all_used(data))


def message_field(number: int, messages: Cells) -> Cells:
    """A field that holds a message each."""
    return beside(_tag(number, 2, len(messages.data)), _varints(messages.sizes), messages)


def one_message_field(number: int, message: bytes) -> bytes:
    """A field that holds one message."""
    size = bytes(_varints(np.array([len(message)])))
    return bytes([number << 3 | 2]) + size + message


def _tag(number: int, wire_type: int, count: int) -> Cells:
    """Field numbers up to 15 take one byte: XSpaces have no others."""
    return _all_used(np.full((count, 1), number << 3 | wire_type, dtype=np.uint8))


def _all_used(data: NDArray[np.uint8]) -> Cells:
    return Cells(data, np.ones(data.shape, dtype=np.bool_))


def _varints(values: NDArray[np.int64]) -> Cells:
    """Seven bits a byte, the lowest first; all but the last have the highest bit set."""
    rest = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    data = np.empty((values.size, width), dtype=np.uint8)
    is_used = np.ones(data.shape, dtype=np.bool_)
    for place in range(width):
        is_used[:, place] = (rest != 0) | (place == 0)
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        data[:, place] = low | np.where(rest != 0, np.uint8(0x80), np.uint8(0))
    return Cells(data, is_used)
