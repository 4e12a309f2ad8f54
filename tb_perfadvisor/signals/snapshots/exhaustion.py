"""When memory ran out: what was asked for, what was left, and what would have fit."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.trace.memory_snapshot import Action, BlockState


class Exhaustion(Struct, frozen=True):
    """An allocation that failed. None is unknown."""

    state: int
    """The state before it."""
    count: int
    """How many failed in the history; this is the last."""
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    driver_free_bytes: int | None
    """What the driver had left."""
    largest_free_bytes: int | None
    """The largest free block of the allocator; None if the snapshot was taken later."""
    stack: int

    @property
    def unused_bytes(self) -> int:
        """What the allocator holds, but nothing uses."""
        return max(self.reserved_bytes - self.allocated_bytes, 0)

    @property
    def free_bytes(self) -> int:
        """What was free in all, in pieces or not."""
        return self.unused_bytes + (self.driver_free_bytes or 0)

    @property
    def largest_fit_bytes(self) -> int | None:
        """The largest request that would have been met; None if unknown."""
        if self.largest_free_bytes is None or self.driver_free_bytes is None:
            return None
        return max(self.largest_free_bytes, self.driver_free_bytes)

    @property
    def is_in_pieces(self) -> bool:
        """Whether enough was free, but not in one piece."""
        return self.free_bytes >= self.requested_bytes


def exhaustion(course: Course) -> Exhaustion | None:
    """The last allocation that failed; None if none did."""
    places = course.places(Action.OUT_OF_MEMORY)
    if not len(places):
        return None
    place = int(places[-1])
    row, events = int(course.rows[place]), course.snapshot.events
    left = int(events.driver_free_bytes[row])
    return Exhaustion(
        state=place,
        count=len(places),
        requested_bytes=int(events.size_bytes[row]),
        allocated_bytes=int(course.allocated_bytes[place]),
        reserved_bytes=int(course.reserved_bytes[place]),
        driver_free_bytes=left if left >= 0 else None,
        largest_free_bytes=largest_free_block(course) if _is_last(course, place) else None,
        stack=int(events.stack[row]),
    )


def largest_free_block(course: Course) -> int:
    """The largest free block when the snapshot was taken; 0 without one."""
    snapshot = course.snapshot
    blocks = snapshot.blocks
    is_free = blocks.state == BlockState.FREE
    is_free &= snapshot.segments.device[blocks.segment] == course.device
    return int(blocks.size_bytes[is_free].max(initial=0))


def _is_last(course: Course, place: int) -> bool:
    """Whether nothing has changed between a failure and the snapshot."""
    action = course.snapshot.events.action[course.rows[place + 1 :]]
    return bool(((action == Action.OUT_OF_MEMORY) | (action >= Action.SNAPSHOT)).all())
