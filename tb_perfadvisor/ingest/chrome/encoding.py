"""Encodes many messages at once in protobuf's wire format.

The counterpart of `xspace.decode.wire`: array operations turn columns into messages. `Cells` is a
table of bytes with one message per row, and a mask of the used bytes. Fields are tables side by
side. The used bytes, row by row, are the messages.
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
        """The concatenated messages."""
        return self.data[self.is_used].tobytes()

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of bytes of each message."""
        sizes: NDArray[np.int64] = np.count_nonzero(self.is_used, axis=1).astype(np.int64)
        return sizes

    def where(self, is_wanted: NDArray[np.bool_]) -> Cells:
        """The cells of the wanted messages; empty for the others."""
        return Cells(self.data, self.is_used & is_wanted[:, None])


def concatenate(*cells: Cells) -> Cells:
    """Concatenate fields of the same messages."""
    return Cells(
        np.hstack([field.data for field in cells]), np.hstack([field.is_used for field in cells])
    )


def varint_field(number: int, values: NDArray[np.int64]) -> Cells:
    """A field of integers; as in protobuf, negative ones take ten bytes."""
    return concatenate(_tag(number, 0, values.size), _varints(values))


def double_field(number: int, values: NDArray[np.float64]) -> Cells:
    """A field of doubles."""
    data = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(values.size, 8)
    return concatenate(_tag(number, 1, values.size), _all_used(data))


def message_field(number: int, messages: Cells) -> Cells:
    """A field with one message per row."""
    return concatenate(_tag(number, 2, len(messages.data)), _varints(messages.sizes), messages)


def one_message_field(number: int, message: bytes) -> bytes:
    """A field with a single message."""
    size = bytes(_varints(np.array([len(message)])))
    return bytes([number << 3 | 2]) + size + message


def _tag(number: int, wire_type: int, count: int) -> Cells:
    """Tags take one byte, because all field numbers of an XSpace are at most 15."""
    return _all_used(np.full((count, 1), number << 3 | wire_type, dtype=np.uint8))


def _all_used(data: NDArray[np.uint8]) -> Cells:
    return Cells(data, np.ones(data.shape, dtype=np.bool_))


def _varints(values: NDArray[np.int64]) -> Cells:
    """Seven bits per byte, lowest first; all bytes but the last have the highest bit set."""
    remaining = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(remaining.max(initial=0)).bit_length() // 7))
    data = np.empty((values.size, width), dtype=np.uint8)
    is_used = np.ones(data.shape, dtype=np.bool_)
    for place in range(width):
        is_used[:, place] = (remaining != 0) | (place == 0)
        low = (remaining & np.uint64(0x7F)).astype(np.uint8)
        remaining = remaining >> np.uint64(7)
        data[:, place] = low | np.where(remaining != 0, np.uint8(0x80), np.uint8(0))
    return Cells(data, is_used)
