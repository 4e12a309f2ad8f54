"""A file read part by part: a plane of it may be larger than all that is made of it."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO, Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xplane.decode import wire

_LONGEST_HEADER: Final = 2 * wire.LONGEST_VARINT
_END_OF_NUMBERS: Final = 2**29
_WIDTHS: Final = {wire.FIXED64: 8, wire.FIXED32: 4}


class Field(Struct, frozen=True):
    """One field of a message, its payload not yet read."""

    at: int
    """Where it is in the file."""
    number: int
    wire_type: int
    value: int
    """Of a varint, as a signed number; else 0."""
    begin: int
    """Where its payload begins."""
    end: int


class FileReader:
    """Reads any part of a stream."""

    def __init__(self, stream: BinaryIO, *, where: str) -> None:
        """Find the stream's size; one that cannot be sought in is read whole.

        Args:
            stream: What to read.
            where: What errors call it.
        """
        # Files, and what fsspec opens, can read into memory; not all that counts as a stream.
        can_seek = stream.seekable() and hasattr(stream, "readinto")
        self._stream: Any = stream if can_seek else io.BytesIO(stream.read())
        self._where = where
        self.size: int = self._stream.seek(0, os.SEEK_END)
        self._block = bytearray()

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, both inside the file.

        Raises:
            UnreadableProfileError: When the file has become shorter.
        """
        self._stream.seek(begin)
        data: bytes = self._stream.read(end - begin)
        self._check(len(data), end - begin)
        return data

    def _check(self, count: int, wanted: int) -> None:
        if count < wanted:
            raise UnreadableProfileError(
                "the file was cut while it was read.",
                where=self._where,
                hint="Wait until the profiler has written it, then try again.",
            )

    def block(self, begin: int, end: int) -> wire.Bytes:
        """The same as a buffer with its padding, which the next call of this overwrites.

        One piece of memory for all blocks: new pages cost as much as decoding what is in them.
        """
        size = end - begin
        if len(self._block) < size + len(wire.PADDING):
            self._block = bytearray(size + len(wire.PADDING))
        view = memoryview(self._block)
        self._stream.seek(begin)
        self._check(self._stream.readinto(view[:size]), size)
        view[size : size + len(wire.PADDING)] = wire.PADDING
        return np.frombuffer(self._block, dtype=np.uint8, count=size + len(wire.PADDING))

    def text(self, field: Field) -> str:
        """The payload of a field, as a text."""
        return self.read(field.begin, field.end).decode("utf-8", "replace")

    def field(self, at: int, end: int) -> Field | None:
        """The field at a position of a message that ends at `end`; None at its end and in damage.

        Groups, which no profiler writes, are damage.
        """
        head = self.read(at, min(at + _LONGEST_HEADER, end))
        tag, payload = wire.varint(head, 0)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < _END_OF_NUMBERS:
            return None
        value, after = 0, payload + _WIDTHS.get(wire_type, 0)
        if wire_type in (wire.VARINT, wire.DELIMITED):
            value, after = wire.varint(head, payload)
        if wire_type == wire.DELIMITED:
            value, payload, after = 0, after, after + value
        is_known = wire_type in (wire.VARINT, wire.DELIMITED) or wire_type in _WIDTHS
        if not is_known or payload < 0 or after < 0 or at + after > end:
            return None
        signed = (value + 2**63) % 2**64 - 2**63
        return Field(at, number, wire_type, signed, at + payload, at + after)
