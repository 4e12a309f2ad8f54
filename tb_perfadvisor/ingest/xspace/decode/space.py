"""Reads the top level of an XSpace: the positions of its planes, its messages, and its damage.

It is read field by field, so that a truncated file gives the planes before its end, and so that a
plane is in memory only while it is decoded.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.containers import container_of
from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.file_reader import Field, FileReader
from tb_perfadvisor.note import Note

# Fields of XSpace.
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4
# Limits of the profiler's messages.
_MAX_TEXT_BYTES: Final = 500
_MAX_MESSAGES: Final = 20
# There is one plane per device and per part of a device.
_MAX_PLANES: Final = 1 << 12
# The beginning of the file, to detect the format.
_HEAD_BYTES: Final = 512


class Space(Struct, frozen=True):
    """The top level of an XSpace, with the positions of its planes."""

    planes: tuple[tuple[int, int], ...]
    """Begin and end of each plane in the file."""
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    is_truncated: bool


class Damage(Struct):
    """The parts of planes that could not be read."""

    planes: list[int] = field(default_factory=list)
    """The numbers of the planes that are left out."""
    lines: int = 0
    events: int = 0


def read_space(file: FileReader, *, where: str) -> Space:
    """Find the planes of an XSpace without reading them.

    Raises:
        UnreadableProfileError: If the file is not an XSpace, or ends inside the first plane.
    """
    if not file.size:
        raise UnreadableProfileError(
            "the file is empty.", where=where, hint="Record the profile again."
        )
    planes: list[tuple[int, int]] = []
    texts: dict[int, dict[str, None]] = {_ERRORS: {}, _WARNINGS: {}, _HOSTNAMES: {}}
    at = 0
    # An invalid field is damage if it follows planes; otherwise the file has another format.
    while (part := file.field(at, file.size)) is not None and part.wire_type == wire.DELIMITED:
        at = part.end
        if part.number == _PLANES:
            planes.append((part.begin, part.end))
            if len(planes) > _MAX_PLANES:
                raise UnreadableProfileError(
                    f"this is not a profile: it has more than {_MAX_PLANES:,} planes.",
                    where=where,
                    hint="Record the profile again.",
                )
        elif part.number in texts and len(texts[part.number]) < _MAX_MESSAGES:
            texts[part.number][_beginning(file, part)] = None
    is_truncated = at < file.size
    if not planes:
        head = file.read(0, min(_HEAD_BYTES, file.size))
        container = container_of(bytes(head))
        if container is not None:
            raise UnreadableProfileError(
                f"the file is {container}.", where=where, hint="Unpack it first."
            )
        if is_truncated and looks_like_plane(head):
            raise UnreadableProfileError(
                "the file ends inside its first plane.",
                where=where,
                hint="Copy it again from where it was written, or record the profile again.",
            )
        raise UnreadableProfileError(
            "this is not an XSpace profile.",
            where=where,
            hint="Expected an *.xplane.pb of a TensorFlow, JAX or PyTorch/XLA profiler.",
        )
    errors, warnings, hostnames = (tuple(messages) for messages in texts.values())
    return Space(tuple(planes), errors, warnings, hostnames, is_truncated)


def _beginning(file: FileReader, text: Field) -> str:
    end = min(text.end, text.begin + _MAX_TEXT_BYTES)
    return file.read(text.begin, end).decode("utf-8", "replace")


def looks_like_plane(head: bytes) -> bool:
    """Whether bytes start like an XSpace: a plane (field 1) that starts with its id or name."""
    if head[:1] != b"\x0a":
        return False
    _, begin = wire.varint(head, 1)
    if begin <= 0 or begin >= len(head):
        return False
    at = begin
    if head[at] == 0x08:  # the plane's id
        _, at = wire.varint(head, at + 1)
        if not 0 < at < len(head):
            return False
    if head[at] != 0x12:  # the plane's name
        return False
    length, start = wire.varint(head, at + 1)
    name = head[start : start + max(length, 0)]
    return 0 < length < 256 and all(0x20 <= byte < 0x7F for byte in name)


def space_notes(space: Space, damage: Damage) -> list[Note]:
    """Notes on damage, and the profiler's messages."""
    notes = []
    if space.is_truncated:
        notes.append(
            Note(
                "truncated-file",
                "warning",
                f"The file is truncated: only its first {len(space.planes)} planes were read.",
                "Copy it again from where it was written, or record the profile again.",
            )
        )
    if damage.planes:
        notes.append(
            Note(
                "broken-plane",
                "warning",
                f"{len(damage.planes)} of {len(space.planes)} planes could not be decoded and were "
                f"left out (number {', '.join(map(str, damage.planes[:5]))}).",
                "Record the profile again.",
            )
        )
    if damage.lines:
        notes.append(
            Note(
                "broken-line",
                "warning",
                f"{damage.lines} lines are damaged; only their beginning was read.",
                "Record the profile again.",
            )
        )
    if damage.events:
        notes.append(
            Note(
                "broken-events",
                "warning",
                f"{damage.events} events with impossible times were left out.",
            )
        )
    notes += [Note("profiler-error", "error", _reported(text)) for text in space.errors]
    notes += [Note("profiler-warning", "warning", _reported(text)) for text in space.warnings]
    return notes


def _reported(text: str) -> str:
    return f"The profiler reported: {text}"
