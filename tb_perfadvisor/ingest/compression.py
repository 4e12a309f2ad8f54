"""Inflating of gzip, recognised by content: several members, broken ends."""

from __future__ import annotations

from dataclasses import dataclass

from isal import isal_zlib

GZIP_MAGIC = b"\x1f\x8b"
_WITH_GZIP_HEADER = 31
_BROKEN: tuple[type[Exception], ...] = (
    isal_zlib.IsalError,  # type: ignore[assignment]  # a class, which its stubs call an instance
    EOFError,
    OSError,
)
# A file that was gzipped twice (by a recorder, then by an upload) is common; more is an attack.
_MAX_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Inflated:
    """What came out of a possibly compressed file."""

    data: bytes
    is_truncated: bool
    """The compressed stream breaks before its end; `data` holds what precedes the break."""


def inflate(data: bytes) -> Inflated:
    """Undo gzip, as often as it was applied, whatever the file is called.

    Args:
        data: The file's bytes, compressed or not.
    """
    is_truncated = False
    for _ in range(_MAX_LAYERS):
        if not data.startswith(GZIP_MAGIC):
            break
        data, is_broken = _inflate_members(data)
        is_truncated |= is_broken
    return Inflated(data, is_truncated)


def inflate_head(data: bytes, limit_bytes: int) -> bytes:
    """The first bytes of what a possibly compressed file holds.

    Args:
        data: The beginning of a file.
        limit_bytes: The most to return.
    """
    if not data.startswith(GZIP_MAGIC):
        return data[:limit_bytes]
    stream = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
    try:
        head: bytes = stream.decompress(data, limit_bytes)
    except _BROKEN:
        return b""
    return inflate_head(head, limit_bytes) if head.startswith(GZIP_MAGIC) else head


def _inflate_members(data: bytes) -> tuple[bytes, bool]:
    """All members of a gzip file joined, and whether the last one breaks off."""
    parts: list[bytes] = []
    rest = data
    while rest.startswith(GZIP_MAGIC):
        stream = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
        try:
            parts.append(stream.decompress(rest))
        except _BROKEN:
            parts.append(_inflate_up_to_break(rest))
            return b"".join(parts), True
        if not stream.eof:
            return b"".join(parts), True
        rest = stream.unused_data
    # What follows the last member is padding, as gzip itself holds.
    return b"".join(parts), False


def _inflate_up_to_break(data: bytes, block_bytes: int = 1 << 14) -> bytes:
    """What a damaged member yields before its damage, to the nearest block."""
    stream = isal_zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
    parts: list[bytes] = []
    for start in range(0, len(data), block_bytes):
        try:
            parts.append(stream.decompress(data[start : start + block_bytes]))
        except _BROKEN:
            break
    return b"".join(parts)
