"""Inflates gzip incrementally: several members, truncated files, decompression bombs."""

from __future__ import annotations

import io
from typing import BinaryIO, Final, Protocol

from isal import igzip_lib, isal_zlib

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.files.containers import GZIP_MAGIC

_WITH_GZIP_HEADER: Final = 31
_BROKEN: tuple[type[Exception], ...] = (
    igzip_lib.IsalError,  # type: ignore[assignment]  # a class, but the stubs declare an instance
    EOFError,
    OSError,
)
# Files compressed twice, by the recorder and by an upload, are common; more layers are an attack.
_MAX_LAYERS: Final = 2
# Blocks are small because a damaged stream is read up to the block before the damage. A block of
# zeros inflates to 16 MB at most.
_BLOCK_BYTES: Final = 1 << 14
_PIECE_BYTES: Final = 4 << 20
# JSON traces compress 15 to 40 times; a single repeated event compresses 200 to 1000 times.
_MAX_RATIO: Final = 200
# A file that inflates to less than this is harmless, whatever its ratio.
_HARMLESS_BYTES: Final = 1 << 24


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Inflated:
    """Reads a file from front to back, inflated if it is compressed."""

    def __init__(self, stream: BinaryIO, where: str = "") -> None:
        """Read the first block only."""
        self._where = where
        self._layers: list[_Layer] = []
        self._pieces: _Bytes = stream
        first = stream.read(_BLOCK_BYTES)
        while first.startswith(GZIP_MAGIC) and len(self._layers) < _MAX_LAYERS:
            self._layers.append(_Layer(first, self._pieces))
            self._pieces = self._layers[-1]
            first = self._pieces.read(_BLOCK_BYTES)
        self._first = first
        self.read_bytes = len(first)
        """Bytes that were read so far, after inflating."""
        self.budget = Budget(where, len(first))
        """What the reader may keep of the bytes that were read so far."""

    @property
    def is_truncated(self) -> bool:
        """Whether the compressed stream ended early in the part read so far."""
        return any(layer.is_truncated for layer in self._layers)

    def read(self, size: int) -> bytes:
        """Read at least `size` bytes; fewer only at the end."""
        pieces, count = [self._first], len(self._first)
        self._first = b""
        while count < size:
            # Python takes as much memory as it is asked to read.
            piece = self._pieces.read(min(size - count, _PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            count += len(piece)
            self._check(len(piece))
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    def _check(self, size: int) -> None:
        self.budget.read_bytes = self.read_bytes = count = self.read_bytes + size
        if not self._layers or count < _HARMLESS_BYTES:
            return
        read_bytes = self._layers[0].read_bytes
        if count > read_bytes * _MAX_RATIO:
            raise UnreadableProfileError(
                f"its first {read_bytes:,} bytes inflate to more than {count:,}, "
                "which no trace does.",
                where=self._where,
                hint="The file is damaged, or made to fill the memory: record the trace again.",
            )


def inflate_head(data: bytes, limit_bytes: int) -> bytes:
    """The first bytes of a file, inflated if it is compressed.

    `data` is the beginning of the file. At most `limit_bytes` are returned.
    """
    return Inflated(io.BytesIO(data)).read(limit_bytes)[:limit_bytes]


class _Layer:
    """All members of a gzip stream, joined. The last one may be truncated."""

    def __init__(self, first: bytes, stream: _Bytes) -> None:
        self._stream = stream
        self._unread = first
        self._member = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
        self._is_done = False
        self.is_truncated = False
        self.read_bytes = 0
        """Compressed bytes read so far."""

    def read(self, size: int, /) -> bytes:
        """The next inflated block; empty at the end."""
        while not self._is_done:
            if self._member.eof:
                self._next_member()
                continue
            block = self._unread or self._stream.read(_BLOCK_BYTES)
            self._unread = b""
            if not block:
                self._is_done = self.is_truncated = True
                break
            self.read_bytes += len(block)
            try:
                data: bytes = self._member.decompress(block)
            except _BROKEN:
                self._is_done = self.is_truncated = True
                break
            if data:
                return data
        return b""

    def _next_member(self) -> None:
        """Continue after a member. Like gzip, treat anything but another member as padding."""
        unused = self._member.unused_data
        self.read_bytes -= len(unused)
        if len(unused) < len(GZIP_MAGIC):
            unused += self._stream.read(_BLOCK_BYTES)
        self._unread = unused
        self._is_done = not unused.startswith(GZIP_MAGIC)
        self._member = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
