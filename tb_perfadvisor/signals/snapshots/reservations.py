"""How the allocator gets memory from the driver and gives it back, and what of it lies idle."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.trace.memory_snapshot import Action, BlockState

_PARTS = 10
_EMPTY_CACHE = "empty_cache"


class Reserved(Struct, frozen=True):
    """What the allocator holds when the snapshot is taken."""

    segments: int
    reserved_bytes: int
    allocated_bytes: int
    """Blocks in use, rounded up as the allocator does."""
    in_free_segments_bytes: int
    """Segments that nothing uses: `empty_cache` would give them back."""
    in_pieces_bytes: int
    """Free blocks of segments that are in use."""
    largest_free_bytes: int


class Churn(Struct, frozen=True):
    """Memory that the allocator gave back to the driver and got again."""

    gets: int
    """How often it got memory after it first gave some back."""
    returns: int
    parts: int
    """In how many tenths of the history it did both."""
    bytes: int
    """What it got again."""
    by_empty_cache: int
    """How many of the returns `empty_cache` caused, as far as their stacks tell."""
    stack: int
    """The most frequent stack of the returns; -1 if unknown."""


def reserved(course: Course) -> Reserved:
    """What the allocator holds when the snapshot is taken."""
    segments, blocks = course.snapshot.segments, course.snapshot.blocks
    rows = np.flatnonzero(segments.device == course.device)
    is_free = blocks.state == BlockState.FREE
    free = np.bincount(
        blocks.segment[is_free], weights=blocks.size_bytes[is_free], minlength=len(segments)
    ).astype(np.int64)[rows]
    size = segments.size_bytes[rows]
    is_unused = free >= size
    of_device = segments.device[blocks.segment] == course.device
    return Reserved(
        segments=len(rows),
        reserved_bytes=int(size.sum()),
        allocated_bytes=int(
            blocks.size_bytes[of_device & (blocks.state == BlockState.ALLOCATED)].sum()
        ),
        in_free_segments_bytes=int(size[is_unused].sum()),
        in_pieces_bytes=int(free[~is_unused].sum()),
        largest_free_bytes=int(blocks.size_bytes[of_device & is_free].max(initial=0)),
    )


def reserved_despite_free_bytes(course: Course) -> int:
    """How much the allocator got from the driver while more than that was reserved and free."""
    places = course.places(Action.SEGMENT_ALLOCATE)
    size = course.snapshot.events.size_bytes[course.rows[places]]
    free = course.reserved_bytes[places] - course.allocated_bytes[places]
    return int(size[free > size].sum())


def churn(course: Course) -> Churn | None:
    """What the allocator gave back and got again; None if it did not, or without times."""
    if not course.has_times:
        return None
    returns, gets = course.places(Action.SEGMENT_FREE), course.places(Action.SEGMENT_ALLOCATE)
    if not len(returns):
        return None
    gets = gets[gets > returns[0]]
    if not len(gets):
        return None
    edges = np.linspace(0, int(course.at_ns[-1]) + 1, _PARTS + 1)
    both = [np.histogram(course.at_ns[places + 1], edges)[0] > 0 for places in (returns, gets)]
    events, stacks = course.snapshot.events, course.snapshot.stacks
    stack, count = np.unique(events.stack[course.rows[returns]], return_counts=True)
    emptied = sum(
        times
        for number, times in zip(stack.tolist(), count.tolist(), strict=True)
        if any(frame.function == _EMPTY_CACHE for frame in stacks.of(number))
    )
    return Churn(
        gets=len(gets),
        returns=len(returns),
        parts=int((both[0] & both[1]).sum()),
        bytes=int(events.size_bytes[course.rows[gets]].sum()),
        by_empty_cache=emptied,
        stack=int(stack[np.argmax(count)]),
    )
