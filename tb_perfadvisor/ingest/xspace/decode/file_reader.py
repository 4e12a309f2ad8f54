"""Reads parts of a file, so that a large plane is never entirely in memory."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode import wire

T = TypeVar("T")

_MAX_HEADER_BYTES: Final = 2 * wire.MAX_VARINT_BYTES
_WINDOW_BYTES: Final = 8 << 10
_FIELD_NUMBER_LIMIT: Final = 2**29
_FIXED_BYTES: Final = {wire.FIXED64: 8, wire.FIXED32: 4}


class Field(Struct, frozen=True):
    """A field of a message, without its payload."""

    at: int
    """Its position in the file."""
    number: int
    wire_type: int
    value: int
    """The signed value of a varint; 0 for other types."""
    begin: int
    """The start of its payload."""
    end: int


class FileReader:
    """Reads parts of a stream."""

    def __init__(
        self, stream: BinaryIO, *, where: str, executor: Executor | None = None, blocks: int = 1
    ) -> None:
        """Determine the size of the stream; a stream that is not seekable is read entirely.

        Threads of the executor work on some blocks, while this one reads further ones.
        """
        # Local files and fsspec's files have `readinto`; other streams may not.
        can_seek = stream.seekable() and hasattr(stream, "readinto")
        self._stream: Any = stream if can_seek else io.BytesIO(stream.read())
        self.where = where
        self.size: int = self._stream.seek(0, os.SEEK_END)
        self.budget = Budget(where, self.size)
        """What the reader may keep of the file."""
        self._blocks: deque[tuple[bytearray, list[Future[Any]]]] = deque()
        self._blocks.extend((bytearray(), []) for _ in range(blocks))
        self._executor = executor
        self._window_at = 0
        self._window = b""

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, both inside the file."""
        if end - begin > _WINDOW_BYTES:
            return self._read(begin, end)
        # Fields follow one another: read some more for the next ones.
        at = begin - self._window_at
        if at < 0 or at + end - begin > len(self._window):
            self._window = self._read(begin, min(begin + _WINDOW_BYTES, self.size))
            self._window_at, at = begin, 0
        return self._window[at : at + end - begin]

    def _read(self, begin: int, end: int) -> bytes:
        self._stream.seek(begin)
        data: bytes = self._stream.read(end - begin)
        self._check(len(data), end - begin)
        return data

    def _check(self, count: int, wanted: int) -> None:
        if count < wanted:
            raise UnreadableProfileError(
                "the file became shorter while it was read.",
                where=self.where,
                hint="Wait until the profiler has finished writing, then try again.",
            )

    def block(self, begin: int, end: int) -> wire.Bytes:
        """The bytes as a padded buffer, which a later call overwrites.

        Blocks share buffers, because new memory pages cost as much as decoding a block. A buffer
        that threads work on is waited for.
        """
        size = end - begin
        block, work = self._blocks.popleft()
        wait(work)
        if len(block) < size + len(wire.PADDING):
            block = bytearray(size + len(wire.PADDING))
        self._blocks.append((block, []))
        view = memoryview(block)
        self._stream.seek(begin)
        self._check(self._stream.readinto(view[:size]), size)
        view[size : size + len(wire.PADDING)] = wire.PADDING
        return np.frombuffer(block, dtype=np.uint8, count=size + len(wire.PADDING))

    def work(self, function: Callable[[], T]) -> Future[T]:
        """Call a function on the latest block, in a thread if there are any."""
        future: Future[T] = Future()
        if self._executor is None:
            future.set_result(function())
        else:
            future = self._executor.submit(function)
            self._blocks[-1][1].append(future)
        return future

    def text(self, field: Field) -> str:
        """The payload of a field as text."""
        return self.read(field.begin, field.end).decode("utf-8", "replace")

    def field(self, at: int, end: int) -> Field | None:
        """The field at a position of a message that ends at `end`; None at the end and if damaged.

        Groups count as damage, because no profiler writes them.
        """
        head = self.read(at, min(at + _MAX_HEADER_BYTES, end))
        tag, payload = wire.varint(head, 0)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < _FIELD_NUMBER_LIMIT:
            return None
        value, after = 0, payload + _FIXED_BYTES.get(wire_type, 0)
        if wire_type in (wire.VARINT, wire.DELIMITED):
            value, after = wire.varint(head, payload)
        if wire_type == wire.DELIMITED:
            value, payload, after = 0, after, after + value
        is_known = wire_type in (wire.VARINT, wire.DELIMITED) or wire_type in _FIXED_BYTES
        if not is_known or payload < 0 or after < 0 or at + after > end:
            return None
        signed = (value + 2**63) % 2**64 - 2**63
        return Field(at, number, wire_type, signed, at + payload, at + after)
