"""How much memory of a device was allocated and reserved, and by what, over a snapshot's history.

A history of n events has n + 1 states: state 0 is before the first event, state i after event
i - 1.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware.lookup import named_device
from tb_perfadvisor.signals.core.device import device_facts
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.memory_snapshot import Action, AllocatorEvents, BlockState, MemorySnapshot
from tb_perfadvisor.trace.tables import Int32, Int64


class Allocations(Struct, frozen=True):
    """All allocations that are known of one device; columns of shape (n,)."""

    bytes: Int64
    """As the program asked for; of memory from before the history, perhaps rounded up."""
    since: Int64
    """The first state in which it is allocated; 0 if it was allocated before the history."""
    until: Int64
    """The first state in which it is no longer allocated; the number of states if it stays."""
    stack: Int32

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.bytes)

    def select(self, chosen: NDArray[np.bool_]) -> Allocations:
        """Some of them."""
        return Allocations(
            self.bytes[chosen], self.since[chosen], self.until[chosen], self.stack[chosen]
        )

    def alive_in(self, state: int) -> Allocations:
        """Those that are allocated in a state."""
        return self.select((self.since <= state) & (self.until > state))


class Course(Struct, frozen=True):
    """One device's memory over the history; columns of shape (states,)."""

    snapshot: MemorySnapshot
    device: int
    rows: Int64
    """The device's events in the snapshot's history; shape (states - 1,)."""
    at_ns: Int64
    """Time of the latest event; from 0 on. All -1 if the file has no times."""
    allocated_bytes: Int64
    reserved_bytes: Int64
    allocations: Allocations
    is_whole: bool
    """Whether the history ends in the state of the snapshot."""

    def __len__(self) -> int:
        """Number of states."""
        return len(self.allocated_bytes)

    @property
    def peak(self) -> int:
        """The first state with the most allocated memory."""
        return int(np.argmax(self.allocated_bytes))

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that was allocated."""
        return int(self.allocated_bytes[self.peak])

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved."""
        return int(self.reserved_bytes.max())

    @property
    def has_times(self) -> bool:
        """Whether the history has times."""
        return len(self) > 1 and bool(self.at_ns[-1] >= 0)

    def states_at(self, times_ns: Int64) -> Int64:
        """The states before the first event at or after some times of the clock."""
        since_first = times_ns - self.snapshot.events.at_ns[self.rows[0]]
        found: Int64 = np.searchsorted(self.at_ns[1:], since_first)
        return found

    def places(self, *actions: Action) -> Int64:
        """Which of the device's events are of some kinds. The state before event i is i."""
        action = self.snapshot.events.action[self.rows]
        found: Int64 = np.flatnonzero(np.isin(action, actions))
        return found


def follow(snapshot: MemorySnapshot, device: int) -> Course:
    """One device's memory over the history."""
    events = snapshot.events
    rows = np.flatnonzero(events.device == device)
    action, size = events.action[rows], events.size_bytes[rows]
    allocations, is_whole = _allocations(snapshot, device, rows)
    states = len(rows) + 1
    change = np.zeros(states + 1, dtype=np.int64)
    np.add.at(change, allocations.since, allocations.bytes)
    np.subtract.at(change, allocations.until, allocations.bytes)
    allocated = np.cumsum(change)[:-1]
    gained = np.where(action == Action.SEGMENT_ALLOCATE, size, 0)
    gained = gained - np.where(action == Action.SEGMENT_FREE, size, 0)
    now = int(snapshot.segments.size_bytes[snapshot.segments.device == device].sum())
    later = np.concatenate([np.cumsum(gained[::-1])[::-1], [0]])
    return Course(
        snapshot=snapshot,
        device=device,
        rows=rows,
        at_ns=_times(events, rows),
        allocated_bytes=allocated,
        # What is allocated is reserved, even if a history was cut off by hand.
        reserved_bytes=np.maximum(now - later, allocated),
        allocations=allocations,
        is_whole=is_whole,
    )


def _times(events: AllocatorEvents, rows: Int64) -> Int64:
    at = events.at_ns[rows]
    if not len(at) or (at < 0).any():
        return np.full(len(rows) + 1, -1, dtype=np.int64)
    # Threads of one process may record in another order than their clocks say.
    rising: Int64 = np.maximum.accumulate(at)
    since_first: Int64 = np.concatenate([rising[:1], rising]) - rising[0]
    return since_first


def _allocations(snapshot: MemorySnapshot, device: int, rows: Int64) -> tuple[Allocations, bool]:
    """The allocations of a device, and whether the history ends in the state of the snapshot."""
    events, blocks = snapshot.events, snapshot.blocks
    action = events.action[rows]
    # Recording can leave out one of the two kinds of frees.
    freed = Action.FREE if (action == Action.FREE).any() else Action.FREE_COMPLETED
    places = np.flatnonzero((action == Action.ALLOCATE) | (action == freed))
    address, size = events.address[rows[places]], events.size_bytes[rows[places]]
    is_start, stack = action[places] == Action.ALLOCATE, events.stack[rows[places]]
    order = np.argsort(address, kind="stable")
    is_next_same = np.append(address[order][1:] == address[order][:-1], False)[: len(order)]
    # An allocation ends at the next event of its address, whatever that is.
    until = np.full(len(places), len(rows) + 1, dtype=np.int64)
    follower = np.flatnonzero(is_next_same)
    until[order[follower]] = places[order[follower + 1]] + 1
    is_first = np.ones(len(places), dtype=bool)
    is_first[order[follower + 1]] = False
    freed_later = is_first & ~is_start
    held = np.flatnonzero(
        (blocks.state == BlockState.ALLOCATED)
        & (snapshot.segments.device[blocks.segment] == device)
    )
    stays = is_start & (until > len(rows))
    is_known = np.isin(blocks.address[held], address[stays]) & (blocks.address[held] >= 0)
    earlier = held[~is_known]
    return (
        Allocations(
            bytes=np.concatenate(
                [size[is_start], size[freed_later], blocks.requested_bytes[earlier]]
            ),
            since=np.concatenate(
                [places[is_start] + 1, np.zeros(int(freed_later.sum()) + len(earlier), np.int64)]
            ),
            until=np.concatenate(
                [
                    until[is_start],
                    places[freed_later] + 1,
                    np.full(len(earlier), len(rows) + 1, np.int64),
                ]
            ),
            stack=np.concatenate(
                [
                    stack[is_start],
                    # The stack of a free says who freed it, not who allocated it.
                    np.full(int(freed_later.sum()), -1, np.int32),
                    blocks.stack[earlier],
                ]
            ).astype(np.int32),
        ),
        int(stays.sum()) == int(is_known.sum()),
    )


@memoized
def courses(signals: Signals) -> tuple[Course, ...]:
    """The memory of each device in the worker's snapshot; empty without a snapshot."""
    snapshot = signals.trace.snapshot
    if snapshot is None:
        return ()
    return tuple(follow(snapshot, device) for device in snapshot.devices)


@memoized
def memory_course(signals: Signals) -> Course | None:
    """The memory of the device with the highest peak; None without a snapshot."""
    of_devices = courses(signals)
    return max(of_devices, key=lambda course: course.peak_allocated_bytes, default=None)


def snapshot_capacity_bytes(signals: Signals) -> int | None:
    """The size of that device's memory; None if neither the user nor the profile says."""
    course = memory_course(signals)
    if course is None:
        return None
    chosen = signals.options.device
    if chosen is not None:
        return named_device(chosen).memory_bytes
    facts = device_facts(signals.trace, course.device) if signals.trace.devices else None
    return facts.memory_bytes if facts is not None else None


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


def held_bytes(course: Course, chosen: NDArray[np.bool_]) -> Int64:
    """What some allocations hold in each state; shape (states,)."""
    some = course.allocations.select(chosen)
    change = np.zeros(len(course) + 1, dtype=np.int64)
    np.add.at(change, some.since, some.bytes)
    np.subtract.at(change, some.until, some.bytes)
    held: Int64 = np.cumsum(change)[:-1]
    return held


def freed_at_peak(course: Course, removed: Int64) -> int:
    """By how much the peak falls if so much less is allocated in each state.

    It falls by less than what is removed at the peak if another state is then the fullest.

    `removed` are bytes, shape (states,).
    """
    return course.peak_allocated_bytes - int((course.allocated_bytes - removed).max())
