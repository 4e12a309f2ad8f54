"""The top of an XSpace: where its planes lie, what it says of itself, how damaged it is.

Walked by hand rather than as one message, so that a file that was cut off gives the planes
before the cut, and so that only one plane at a time is in memory twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xplane import wire
from tb_perfadvisor.trace import Note


@dataclass(frozen=True, slots=True)
class Space:
    """What an XSpace holds at the top: planes still as bytes, so that one is in memory at once."""

    planes: tuple[tuple[int, int], ...]
    """Begin and end of each plane."""
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    hostnames: tuple[str, ...]
    is_truncated: bool


def read_space(data: bytes, *, where: str) -> Space:
    """Find the planes of an XSpace without decoding them.

    Raises:
        UnreadableProfileError: When the bytes are no XSpace, or stop before the first plane ends.
    """
    if not data:
        raise UnreadableProfileError(
            "the file is empty.", where=where, hint="Record the profile again."
        )
    planes: list[tuple[int, int]] = []
    texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
    at, size = 0, len(data)
    is_truncated = False
    while at < size:
        tag, at = _varint(data, at)
        length, begin = _varint(data, at)
        if not 0 <= tag >> 3 <= 2**29 or tag & 7 != wire.DELIMITED:
            # After whole planes the rest is damage; at the start the file is something else.
            is_truncated = True
            break
        if length < 0 or begin + length > size:
            is_truncated = True
            break
        at = begin + length
        if tag >> 3 == 1:
            planes.append((begin, at))
        elif tag >> 3 in texts:
            texts[tag >> 3].append(data[begin:at].decode("utf-8", "replace"))
    if not planes:
        if is_truncated and looks_like_plane(data):
            raise UnreadableProfileError(
                "the file stops before its first plane ends.",
                where=where,
                hint="Copy it again from where it was written, or record the profile again.",
            )
        raise UnreadableProfileError(
            "this is not an XSpace profile.",
            where=where,
            hint="Expected what a TensorFlow, JAX or PyTorch/XLA profiler writes as *.xplane.pb.",
        )
    return Space(tuple(planes), tuple(texts[2]), tuple(texts[3]), tuple(texts[4]), is_truncated)


def looks_like_plane(head: bytes) -> bool:
    """Whether bytes begin as an XSpace does: a plane (field 1) that starts with its id or name."""
    if head[:1] != b"\x0a":
        return False
    _, begin = _varint(head, 1)
    if begin <= 0 or begin >= len(head):
        return False
    at = begin
    if head[at] == 0x08:  # the plane's id
        _, at = _varint(head, at + 1)
        if not 0 < at < len(head):
            return False
    if head[at] != 0x12:  # the plane's name
        return False
    length, start = _varint(head, at + 1)
    name = head[start : start + max(length, 0)]
    return 0 < length < 256 and all(0x20 <= byte < 0x7F for byte in name)


def space_notes(space: Space, broken: list[str], broken_events: int) -> list[Note]:
    """What the file itself and its damage have to say."""
    notes = []
    if space.is_truncated:
        notes.append(
            Note(
                "truncated-file",
                "warning",
                f"The file stops in the middle: {len(space.planes)} planes were read, "
                "what follows them is lost.",
                "Copy it again from where it was written, or record the profile again.",
            )
        )
    if broken:
        notes.append(
            Note(
                "broken-plane",
                "warning",
                f"{len(broken)} of {len(space.planes)} planes could not be decoded and are left "
                f"out (number {', '.join(broken[:5])}).",
                "Record the profile again.",
            )
        )
    if broken_events:
        notes.append(
            Note(
                "broken-events",
                "warning",
                f"{broken_events} events with impossible times were left out.",
            )
        )
    notes += [
        Note("profiler-error", "error", _reported(text)) for text in dict.fromkeys(space.errors)
    ]
    notes += [
        Note("profiler-warning", "warning", _reported(text))
        for text in dict.fromkeys(space.warnings)
    ]
    return notes


def _reported(text: str) -> str:
    return f"The profiler reported: {text[:500]}"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and the position after it; (-1, -1) when there is none."""
    if at < 0:
        return -1, -1
    value = 0
    for count in range(10):
        if at + count >= len(data):
            return -1, -1
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    return -1, -1
