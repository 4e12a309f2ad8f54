"""Inflates gzip piece by piece: several members, truncated files, decompression bombs."""

from __future__ import annotations

import io
from typing import BinaryIO, Final, Protocol

from isal import igzip_lib, isal_zlib

from tb_perfadvisor.errors import UnreadableProfileError

GZIP_MAGIC: Final = b"\x1f\x8b"
_WITH_GZIP_HEADER: Final = 31
_BROKEN: tuple[type[Exception], ...] = (
    igzip_lib.IsalError,  # type: ignore[assignment]  # a class, which its stubs call an instance
    EOFError,
    OSError,
)
# Files that were gzipped twice, by the recorder and by an upload, are common; more is an attack.
_MAX_LAYERS: Final = 2
# A damaged stream can be read up to the block before the damage, so blocks are small. A block of
# zeros inflates to 16 MB at most.
_BLOCK_BYTES: Final = 1 << 14
# Traces in JSON shrink 15 to 40 times; one event repeated over and over shrinks 200 to 1000 times.
_MAX_RATIO: Final = 200
# A file that inflates to less than this does no harm, whatever its ratio.
_HARMLESS_BYTES: Final = 1 << 28


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Inflated:
    """Reads a file from front to back, inflated if it is compressed.

    Args:
        stream: The file.
        where: The file's path, for errors.
    """

    def __init__(self, stream: BinaryIO, where: str = "") -> None:
        """Read only the first bytes."""
        self._where = where
        self._layers: list[_Layer] = []
        self._pieces: _Bytes = stream
        first = stream.read(_BLOCK_BYTES)
        while first.startswith(GZIP_MAGIC) and len(self._layers) < _MAX_LAYERS:
            self._layers.append(_Layer(first, self._pieces))
            self._pieces = self._layers[-1]
            first = self._pieces.read(_BLOCK_BYTES)
        self._first = first
        self._count = len(first)

    @property
    def is_truncated(self) -> bool:
        """Whether the compressed stream has ended early, as far as it was read."""
        return any(layer.is_truncated for layer in self._layers)

    def read(self, size: int) -> bytes:
        """Read at least `size` bytes; fewer only at the end.

        Raises:
            UnreadableProfileError: When a small file inflates without end.
        """
        pieces, count = [self._first], len(self._first)
        self._first = b""
        while count < size:
            piece = self._pieces.read(size - count)
            if not piece:
                break
            pieces.append(piece)
            count += len(piece)
            self._check(len(piece))
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    def _check(self, size: int) -> None:
        self._count += size
        if not self._layers or self._count < _HARMLESS_BYTES:
            return
        taken = self._layers[0].taken
        if self._count > taken * _MAX_RATIO:
            raise UnreadableProfileError(
                f"its first {taken:,} bytes inflate to more than {self._count:,}, "
                "which no trace does.",
                where=self._where,
                hint="The file is damaged, or made to fill the memory: record the trace again.",
            )


def inflate_head(data: bytes, limit_bytes: int) -> bytes:
    """The first bytes of a file, inflated if it is compressed.

    Args:
        data: The beginning of a file.
        limit_bytes: The most to return.
    """
    return Inflated(io.BytesIO(data)).read(limit_bytes)[:limit_bytes]


class _Layer:
    """All members of a gzip stream, joined. The last one may be truncated."""

    def __init__(self, first: bytes, stream: _Bytes) -> None:
        self._stream = stream
        self._rest = first
        self._member = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
        self._is_done = False
        self.is_truncated = False
        self.taken = 0
        """Compressed bytes so far."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, as many as one block inflates to; empty at the end."""
        while not self._is_done:
            if self._member.eof:
                self._next_member()
                continue
            block = self._rest or self._stream.read(_BLOCK_BYTES)
            self._rest = b""
            if not block:
                self._is_done = self.is_truncated = True
                break
            self.taken += len(block)
            try:
                data: bytes = self._member.decompress(block)
            except _BROKEN:
                self._is_done = self.is_truncated = True
                break
            if data:
                return data
        return b""

    def _next_member(self) -> None:
        """Continue after a member. Anything but another member is padding, as for gzip itself."""
        rest = self._member.unused_data
        self.taken -= len(rest)
        if len(rest) < len(GZIP_MAGIC):
            rest += self._stream.read(_BLOCK_BYTES)
        self._rest = rest
        self._is_done = not rest.startswith(GZIP_MAGIC)
        self._member = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
