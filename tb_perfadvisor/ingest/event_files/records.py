"""The records of a TFRecord file, the framing of TensorBoard's event files.

A record is its length (8 bytes), a checksum of the length (4 bytes), the data, and a checksum of
the data (4 bytes). Source: `tensorflow/core/lib/io/record_writer.h`. The checksums are not
verified: data that is not a message is left out anyway.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

_LENGTH = struct.Struct("<Q")
_BEFORE_DATA = 12
_AFTER_DATA = 4
_BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 64 << 10
"""An event with scalars takes some hundred bytes. Larger ones are images, audio or graphs."""


class RecordBlock(Struct, frozen=True):
    """Records that follow each other in a file."""

    records: tuple[bytes, ...]
    """Without those above `MAX_RECORD_BYTES`."""
    end: int
    """Position in the file behind them."""


def read_records(stream: BinaryIO, begin: int = 0) -> Iterator[RecordBlock]:
    """The records of a file from a position on, up to the last whole one.

    The stream is seekable, and may grow meanwhile. `begin` is 0, or the end of the last block of an
    earlier reading.
    """
    size = stream.seek(0, os.SEEK_END)
    while begin + _BEFORE_DATA + _AFTER_DATA <= size:
        stream.seek(begin)
        data = stream.read(_BLOCK_BYTES)
        records, read = _split(data)
        if not read:  # a record that is larger than a block, a damaged length, or an unfinished end
            read = _record_bytes(data, 0)
            if len(data) < _BLOCK_BYTES or begin + read > size:
                return
        begin += read
        yield RecordBlock(records, begin)


def _split(data: bytes) -> tuple[tuple[bytes, ...], int]:
    """The whole records at the start of some bytes, and how many bytes these are."""
    records: list[bytes] = []
    at = 0
    while at + _BEFORE_DATA <= len(data):
        after = at + _record_bytes(data, at)
        if after > len(data):
            break
        if after - at <= MAX_RECORD_BYTES:
            records.append(data[at + _BEFORE_DATA : after - _AFTER_DATA])
        at = after
    return tuple(records), at


def _record_bytes(data: bytes, at: int) -> int:
    """The size of the record at a position, with its frame."""
    return int(_LENGTH.unpack_from(data, at)[0]) + _BEFORE_DATA + _AFTER_DATA
