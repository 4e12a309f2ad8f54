"""Bytes that a TPU operation moves to and from the device's memory, as XProf's own stat has them.

`bytes_accessed` counts all memories. The stat `memory_access_breakdown` is a message with one entry
for each memory: reads and writes, the memory, and the bytes. An array of which a fusion reads only
a slice counts with that slice.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tb_perfadvisor.ingest.xspace.decode import wire

_ENTRY: Final = 1  # field of the breakdown
_SPACE, _BYTES = 2, 3  # fields of an entry
_DEVICE_MEMORY: Final = 1


@lru_cache(maxsize=4096)
def device_memory_bytes(breakdown: bytes) -> int | None:
    """The bytes of one execution; None if the message cannot be read."""
    total = 0
    for number, wire_type, entry, _ in _fields(breakdown):
        if number < 0:
            return None
        if number != _ENTRY or wire_type != wire.DELIMITED:
            continue
        space = size_bytes = 0
        for field, kind, _, value in _fields(entry):
            if field < 0:
                return None
            if kind == wire.VARINT:
                space = value if field == _SPACE else space
                size_bytes = value if field == _BYTES else size_bytes
        total += size_bytes if space == _DEVICE_MEMORY else 0
    return total


def _fields(message: bytes) -> list[tuple[int, int, bytes, int]]:
    """Number, wire type, content and value of each field; the number is -1 for a broken one."""
    fields, at = [], 0
    while at < len(message):
        tag, at = wire.varint(message, at)
        value, at = wire.varint(message, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or kind not in (wire.VARINT, wire.DELIMITED):
            return [(-1, 0, b"", 0)]
        if kind == wire.DELIMITED:
            fields.append((number, kind, message[at : at + value], 0))
            at += value
        else:
            fields.append((number, kind, b"", value))
    return fields if at == len(message) else [(-1, 0, b"", 0)]
