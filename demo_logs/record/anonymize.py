"""Takes the recording machine's name and directories out of profile files.

Only strings are replaced; no event, time stamp or duration is touched. ``anonymize_kineto``
reads PyTorch's gzipped Chrome JSON, ``anonymize_xspace`` a TensorFlow or JAX ``.xplane.pb``.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

NEUTRAL_HOST = "host0"

_XSPACE_HOSTNAMES_FIELD = 4
_LENGTH_DELIMITED = 2
_TRACE_NAME = re.compile(rb'("traceName": *")[^"]*"')
_HOST_NAME = re.compile(rb'("host_name": *")[^"]*"')


def anonymize_kineto(source: Path, target: Path) -> None:
    """Copies a ``.json.gz`` trace with ``host_name`` neutral and ``traceName`` a bare file name.

    Kineto writes into ``traceName`` the absolute path of the file that it exported to.
    """
    text = gzip.decompress(source.read_bytes())
    file_name = target.name.removesuffix(".gz")
    text = _TRACE_NAME.sub(rb"\g<1>" + file_name.encode() + b'"', text)
    text = _HOST_NAME.sub(rb"\g<1>" + NEUTRAL_HOST.encode() + b'"', text)
    # Neither time nor name in the gzip header: the same trace gives the same bytes.
    target.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


def anonymize_xspace(source: Path, target: Path) -> None:
    """Copies an XSpace, with every entry of ``XSpace.hostnames`` set to ``host0``.

    The host's name also is the file's name, so the target should be ``host0.xplane.pb``.
    """
    parts: list[bytes] = []
    for field_number, key, payload in _top_level_fields(source.read_bytes()):
        content = NEUTRAL_HOST.encode() if field_number == _XSPACE_HOSTNAMES_FIELD else payload
        parts += [key, _varint(len(content)), content]
    target.write_bytes(b"".join(parts))


def _top_level_fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields (field number, key bytes, payload); an XSpace has length-delimited fields only."""
    position = 0
    while position < len(message):
        key, key_end = _read_varint(message, position)
        if key & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"unexpected wire type {key & 7} at byte {position} of an XSpace")
        length, payload_start = _read_varint(message, key_end)
        payload_end = payload_start + length
        if payload_end > len(message):
            raise ValueError(f"XSpace is truncated: a field ends at byte {payload_end}")
        yield key >> 3, message[position:key_end], message[payload_start:payload_end]
        position = payload_end


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
