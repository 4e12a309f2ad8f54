"""How much memory of a device was allocated and reserved, and by what, over a snapshot's history.

A history of n events has n + 1 states: state 0 is before the first event, state i after event
i - 1.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
