"""Finds the positions of consecutive fields with the same number (a run of records).

The length of each record tells where the next one starts, so a run must be walked from its start:
a hundred thousand Python steps per megabyte of events. But a walk that starts at any position
synchronizes with the correct one after a few records, because what it mistakes for a record soon
ends where a record ends. So the run is divided into stretches that are walked in parallel with
array operations. Each walk starts a little before its stretch. Where a walk leaves its stretch,
the next one must have entered its own. Stretches that fail this check are walked again from the
known position.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.wire import Bytes, Rows

# Long enough for many records per stretch, short enough for many parallel stretches.
_STRETCH: Final = 2048
_RUN_UP: Final = 256
# Most records and their fields are shorter.
_MAX_TAG_DISTANCE: Final = 64
# Below this size, a single walk is faster.
_MIN_PARALLEL_BYTES: Final = 64 * _STRETCH


class RecordRun(Struct, frozen=True):
    """Complete records of one field number."""

    begin: Rows
    """The start of each payload."""
    end: Rows
    after: int
    """The end of the run: another field, or a truncated record."""


def find_records(buffer: Bytes, at: int, end: int, tag: int) -> RecordRun:
    """Find the run of delimited fields that starts at a position.

    Args:
        buffer: Ends with `wire.PADDING`.
        at: The position of the first record's tag.
        end: The end of the message.
        tag: The tag of one byte.
    """
    walk = _walk_single if end - at < _MIN_PARALLEL_BYTES else _walk_parallel
    tags, after = walk(buffer, at, end, tag)
    size, begin = wire.lengths(buffer, tags + 1)
    return RecordRun(begin, begin + size, after)


def _walk_single(
    buffer: Bytes, at: int, end: int, tag: int, until: int | None = None
) -> tuple[Rows, int]:
    """The tags of the records that start before `until`, and the position after the last one."""
    data = buffer.data
    until = end if until is None else until
    tags = []
    while at < until and data[at] == tag:
        size, begin = data[at + 1], at + 2
        if size >= 0x80:
            size, begin = wire.varint(data, at + 1)
        if begin < 0 or begin + size > end:
            break
        tags.append(at)
        at = begin + size
    return np.array(tags, dtype=np.int64), at


def _walk_parallel(buffer: Bytes, at: int, end: int, tag: int) -> tuple[Rows, int]:
    edges = np.append(np.arange(at, end, _STRETCH), end)
    limit = edges[1:]
    place = _some_tag(buffer, np.maximum(edges[:-1] - _RUN_UP, at), tag)
    place[0] = at
    after = place.copy()
    stretch = np.arange(limit.size)
    walked = []
    while stretch.size:
        size, rest = wire.lengths(buffer, place + 1)
        rest += size
        is_record = (buffer[place] == tag) & (rest <= end)
        if not is_record.all():
            stretch, place, rest = stretch[is_record], place[is_record], rest[is_record]
            limit = limit[is_record]
        walked.append((stretch, place))
        after[stretch] = place = rest
        goes_on = rest < limit
        if not goes_on.all():
            stretch, place, limit = stretch[goes_on], rest[goes_on], limit[goes_on]
    return _stitch(buffer, edges, tag, walked, after)


def _some_tag(buffer: Bytes, at: Rows, tag: int) -> Rows:
    """The first byte after each position that looks like a record's tag."""
    candidate: Rows = at.copy()
    missing = np.arange(at.size)
    for _ in range(_MAX_TAG_DISTANCE):
        missing = missing[buffer[candidate[missing]] != tag]
        candidate[missing] += 1
    return candidate


def _stitch(
    buffer: Bytes, edges: Rows, tag: int, walked: list[tuple[Rows, Rows]], after: Rows
) -> tuple[Rows, int]:
    """Join the walks of all stretches, and repeat those that were not synchronized."""
    stretch = np.concatenate([part for part, _ in walked])
    place = np.concatenate([part for _, part in walked])
    is_inside = place >= edges[stretch]  # the others precede the stretch
    stretch, place = stretch[is_inside], place[is_inside]
    # NumPy sorts 16-bit integers by radix, in a tenth of the time.
    keys = stretch.astype(np.uint16) if after.size < 2**16 else stretch
    place = place[np.argsort(keys, kind="stable")]
    last = np.cumsum(np.bincount(stretch, minlength=after.size))
    first = np.append(0, last[:-1])
    enters = np.where(first < last, np.append(place, -1)[first], -1)
    # Stretches whose successor is not synchronized.
    breaks = np.flatnonzero(np.append(enters[1:] != after[:-1], True))
    begin, end = int(edges[0]), int(edges[-1])
    at, parts = begin, []
    while at < end:
        current = (at - begin) // _STRETCH
        if enters[current] == at:
            final = breaks[np.searchsorted(breaks, current)]
            parts.append(place[first[current] : last[final]])
            at = int(after[final])
        else:
            part, next_at = _walk_single(buffer, at, end, tag, until=int(edges[current + 1]))
            if next_at == at:
                break
            parts.append(part)
            at = next_at
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), at
