"""Recognizes archives and compressions, whatever a file's name says.

Apart from `compression`: the tab lists files also where its decoder cannot be imported.
"""

from __future__ import annotations

from typing import Final

GZIP_MAGIC: Final = b"\x1f\x8b"
# https://en.wikipedia.org/wiki/List_of_file_signatures
_MAGIC = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"\x04\x22\x4d\x18", "compressed with lz4"),
    (b"\x1f\x9d", "compressed with compress"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (GZIP_MAGIC, "compressed with gzip"),
)
# RFC 8878: a frame that decoders skip comes first in files of several frames.
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + number, 0x2A, 0x4D, 0x18]) for number in range(16))
_TAR, _TAR_OFFSET = b"ustar", 257


def container_of(data: bytes) -> str | None:
    """What holds the content, as in "the file is …"; None if nothing does.

    `data` is the beginning of a file.
    """
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data.startswith(_ZSTD_SKIPPABLE):
        return "compressed with zstd"
    if data[_TAR_OFFSET:].startswith(_TAR):
        return "a tar archive"
    return None
