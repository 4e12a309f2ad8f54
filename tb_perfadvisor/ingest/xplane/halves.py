"""Decodes the second half of a large file's events, for who decodes the first in another process.

Most of an xplane are events, often of a single line. Who decodes the second half begins in the
middle of a line, where one event seems to end and the next to begin. Who decodes the first half
comes upon that place from the line's start, or does not: then it goes on by itself. So the result
is the same as if one had decoded all.
"""

from __future__ import annotations

from typing import BinaryIO, Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xplane.events import EventRun
from tb_perfadvisor.ingest.xplane.parts import Parts
from tb_perfadvisor.ingest.xplane.reading import Outline, outline, read_plane
from tb_perfadvisor.ingest.xplane.space import read_space

# Below this, half of the events are decoded in less time than it takes to hand them over.
_WORTH_BYTES: Final = 8_000_000


def middle_of(stream: BinaryIO) -> int | None:
    """Where the second half of a file's lines begins; None if it is not worth that."""
    try:
        file = Parts(stream, where="")
        spans = [span for plane in _outlines(file) for span in plane.lines]
    except UnreadableProfileError:
        return None
    left = sum(end - begin for begin, end in spans) // 2
    if 2 * left < _WORTH_BYTES:
        return None
    for begin, end in spans:
        if end - begin > left:
            return begin + left
        left -= end - begin
    return None


def read_rest(stream: BinaryIO, middle: int) -> dict[int, EventRun]:
    """Decode what lies behind a position."""
    file = Parts(stream, where="")
    found: dict[int, EventRun] = {}
    for one in _outlines(file):
        if one.end <= middle:
            continue
        plane = read_plane(file, one)
        if plane is not None:
            found |= plane.runs_behind(middle)
    return found


def _outlines(file: Parts) -> list[Outline]:
    planes = read_space(file, where="").planes
    return [found for begin, end in planes if (found := outline(file, begin, end)) is not None]
