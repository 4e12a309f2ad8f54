"""Where each of a run of records lies: fields of one number, one behind the other.

Each record tells where the next one begins, so a run has to be walked from its start, a hundred
thousand Python steps for a megabyte of events. Yet a walk that starts anywhere falls into step
with the true one after a few records: what it takes for a record ends, sooner or later, where a
record ends. So many walks start at once, spread over the run, each a little before the stretch
that it is to cover, and go on side by side as columns. Where one ends its stretch the next must
have begun its own; a stretch that fails this is walked anew, from the place that is known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.xplane.decode import wire
from tb_perfadvisor.ingest.xplane.decode.wire import Bytes, Rows

# Long enough that many records lie in it, short enough that side by side there are many.
_STRETCH: Final = 2048
_RUN_UP: Final = 256
# Records and their own fields are shorter than this, mostly.
_NEAR: Final = 64
# Below this, one walk alone is faster.
_MANY: Final = 64 * _STRETCH


class Run(Struct, frozen=True):
    """Whole records of one number."""

    begin: Rows
    """Of each payload."""
    end: Rows
    after: int
    """Where the run ends: at another field, or at a record that is cut off."""


def find_records(buffer: Bytes, at: int, end: int, tag: int) -> Run:
    """The run of delimited fields that begins at a position.

    Args:
        buffer: Ends with `wire.PADDING`.
        at: Where the first record's tag is.
        end: Where the message ends.
        tag: Of one byte.
    """
    walk = _walk_alone if end - at < _MANY else _walk_side_by_side
    tags, after = walk(buffer, at, end, tag)
    size, begin = wire.lengths(buffer, tags + 1)
    return Run(begin, begin + size, after)


def _walk_alone(
    buffer: Bytes, at: int, end: int, tag: int, until: int | None = None
) -> tuple[Rows, int]:
    """The tags of records that begin before `until`, and what follows the last one."""
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


def _walk_side_by_side(buffer: Bytes, at: int, end: int, tag: int) -> tuple[Rows, int]:
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
    """What may be a record's tag, a little after each position."""
    found: Rows = at.copy()
    missing = np.arange(at.size)
    for _ in range(_NEAR):
        missing = missing[buffer[found[missing]] != tag]
        found[missing] += 1
    return found


def _stitch(
    buffer: Bytes, edges: Rows, tag: int, walked: list[tuple[Rows, Rows]], after: Rows
) -> tuple[Rows, int]:
    """Join what was walked in each stretch, and walk anew what was out of step."""
    stretch = np.concatenate([part for part, _ in walked])
    place = np.concatenate([part for _, part in walked])
    is_inside = place >= edges[stretch]  # the rest was the run-up
    stretch, place = stretch[is_inside], place[is_inside]
    # Sixteen bits are sorted by radix, in a tenth of the time.
    keys = stretch.astype(np.uint16) if after.size < 2**16 else stretch
    place = place[np.argsort(keys, kind="stable")]
    last = np.cumsum(np.bincount(stretch, minlength=after.size))
    first = np.append(0, last[:-1])
    enters = np.where(first < last, np.append(place, -1)[first], -1)
    # Stretches after which the next one is out of step.
    breaks = np.flatnonzero(np.append(enters[1:] != after[:-1], True))
    begin, end = int(edges[0]), int(edges[-1])
    at, parts = begin, []
    while at < end:
        own = (at - begin) // _STRETCH
        if enters[own] == at:
            final = breaks[np.searchsorted(breaks, own)]
            parts.append(place[first[own] : last[final]])
            at = int(after[final])
        else:
            part, next_at = _walk_alone(buffer, at, end, tag, until=int(edges[own + 1]))
            if next_at == at:
                break
            parts.append(part)
            at = next_at
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), at
