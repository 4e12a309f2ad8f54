"""Memory in detail: its course, what was alive at the peak, and what each step leaves behind.

An allocation lives from its change to the next change of its address. What the file does not show
being allocated was there before the recording: parameters, optimizer state, whatever else.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64

_NEVER = np.iinfo(np.int64).max
_BACKWARD = "autograd::engine::evaluate_function: "
"""torch/csrc/autograd/engine.cpp records each node under this name."""
_GRADIENTS = "gradient_tape/"
"""The name scope of tf.GradientTape (tensorflow/python/eager/backprop.py)."""
_OPTIMIZER = "Optimizer.step#"


class Phase(Enum):
    """In which part of a step something was allocated."""

    BEFORE = "before-recording"
    INPUT = "input"
    FORWARD = "forward"
    """By an operator that is in none of the other phases."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    """By no operator that the profile shows."""


class Allocations(Struct, frozen=True):
    """Single allocations; columns of shape (n,)."""

    bytes: Int64
    at_ns: Int64
    freed_ns: Int64
    """When it was given back; the largest int64 where it was not."""
    row: Int32
    """The innermost event around the change on its thread; -1 where none is."""

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.bytes)

    def select(self, chosen: NDArray[np.bool_]) -> Allocations:
        """Some of them."""
        return Allocations(
            self.bytes[chosen], self.at_ns[chosen], self.freed_ns[chosen], self.row[chosen]
        )


class MemoryUse(Struct, frozen=True):
    """The memory of the busiest device, or of the host where there is no device."""

    device: int | None
    """None is the host."""
    at_ns: Int64
    """Of each change; shape (changes,)."""
    allocated_bytes: Int64
    """After each change; counted from the recording's start where the file has no totals."""
    reserved_bytes: Int64
    """What the allocator holds after each change; -1 unknown."""
    has_totals: bool
    allocations: Allocations | None
    """None where the file has no addresses."""

    @property
    def peak(self) -> int:
        """The change after which most is allocated."""
        return int(np.argmax(self.allocated_bytes))

    def alive_at(self, at_ns: int) -> Allocations | None:
        """What was allocated at a time, and is not freed by then."""
        found = self.allocations
        if found is None:
            return None
        return found.select((found.at_ns <= at_ns) & (found.freed_ns > at_ns))

    def before_bytes(self, at_change: int) -> int | None:
        """What is allocated after a change and was before the recording; None when unknown."""
        alive = self.alive_at(int(self.at_ns[at_change])) if self.has_totals else None
        if alive is None:
            return None
        return max(int(self.allocated_bytes[at_change]) - int(alive.bytes.sum()), 0)

    def sample(self, count: int) -> NDArray[np.int64]:
        """Places of at most `count` changes that draw the course: of each stretch the highest.

        The first and the last are always among them.
        """
        total = len(self.at_ns)
        if total <= count:
            return np.arange(total)
        first = np.linspace(1, total - 1, count - 1).astype(np.int64)
        begins, ends = first[:-1], first[1:]
        highest = [
            begin + int(np.argmax(self.allocated_bytes[begin:end]))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        return np.array([0, *highest, total - 1], dtype=np.int64)

    def at_times(self, times_ns: Int64) -> Int64:
        """What is allocated at some times, none before the first change; shape (n,)."""
        slot = last_before(self.at_ns, times_ns)
        found: Int64 = self.allocated_bytes[np.maximum(slot, 0)]
        return found


@memoized
def memory_use(signals: Signals) -> MemoryUse | None:
    """The memory of the device, or of the host; None when no change of it was recorded."""
    trace, device = signals.trace, signals.device.index
    table = trace.memory
    if device is None and signals.device.is_missing:
        return None
    own = np.flatnonzero(table.device == (-1 if device is None else device))
    if len(own) == 0:
        return None
    change, at = table.bytes[own], table.at_ns[own]
    known = table.allocated_bytes[own]
    has_totals = bool((known >= 0).all())
    allocated = known if has_totals else np.cumsum(change)
    has_addresses = bool((table.address[own] >= 0).all() and (change != 0).any())
    return MemoryUse(
        device=device,
        at_ns=at,
        allocated_bytes=allocated,
        reserved_bytes=table.reserved_bytes[own],
        has_totals=has_totals,
        allocations=_allocations(trace, own) if has_addresses else None,
    )


def _allocations(trace: Trace, own: NDArray[np.int64]) -> Allocations:
    """The allocations among some changes, each with the next change of its address as its end.

    An address that is allocated twice in a row was freed between, unseen.
    """
    table = trace.memory
    change, at, address = table.bytes[own], table.at_ns[own], table.address[own]
    order = np.argsort(address, kind="stable")
    follows = np.flatnonzero(address[order][1:] == address[order][:-1])
    freed = np.full(len(own), _NEVER, dtype=np.int64)
    freed[order[follows]] = at[order[follows + 1]]
    given = np.flatnonzero(change > 0)
    return Allocations(
        bytes=change[given],
        at_ns=at[given],
        freed_ns=freed[given],
        row=_enclosing(trace, table.track[own][given], at[given]),
    )


def _enclosing(trace: Trace, track: Int32, at_ns: Int64) -> Int32:
    """The innermost event of a thread around each time; -1 for none; shape (n,)."""
    events = trace.events
    found = np.full(len(at_ns), -1, dtype=np.int32)
    for one in distinct(track[track >= 0]).tolist():
        rows = np.flatnonzero(events.track == one).astype(np.int32)
        if len(rows) == 0:
            continue
        mine = np.flatnonzero(track == one)
        slot = last_before(events.start_ns[rows], at_ns[mine])
        found[mine] = np.where(slot >= 0, rows[np.maximum(slot, 0)], -1)
    end = events.end_ns
    while True:
        # The last to begin may have ended: what encloses it may go on.
        is_over = (found >= 0) & (end[found] < at_ns)
        if not is_over.any():
            return found
        found = np.where(is_over, events.parent[found], found)


def owners(trace: Trace, rows: Int32) -> Int32:
    """The outermost operator around each event, itself included; -1 for none; shape (n,)."""
    events = trace.events
    owner = np.full(len(rows), -1, dtype=np.int32)
    at = rows
    while (at >= 0).any():
        is_operator = (at >= 0) & (events.kind[at] == EventKind.OPERATOR)
        owner = np.where(is_operator, at, owner)
        at = np.where(at >= 0, events.parent[at], -1)
    return owner


def phases(trace: Trace, rows: Int32, owner: Int32) -> NDArray[np.int8]:
    """The place in `Phase` of each event; shape (n,).

    Args:
        trace: The trace.
        rows: Events; -1 for none.
        owner: The outermost operator around each.
    """
    events = trace.events
    order = {phase: place for place, phase in enumerate(Phase)}
    marks = np.full(len(events) + 1, -1, dtype=np.int8)
    marks[:-1][events.kind == EventKind.INPUT_WAIT] = order[Phase.INPUT]
    marks[:-1][is_in(events.name, _starting(trace, _OPTIMIZER))] = order[Phase.OPTIMIZER]
    is_backward = is_in(events.name, _naming_gradients(trace))
    is_backward |= is_in(events.name, _starting(trace, _BACKWARD))
    marks[:-1][is_backward] = order[Phase.BACKWARD]
    found = np.where(owner >= 0, order[Phase.FORWARD], order[Phase.OTHER]).astype(np.int8)
    at = rows
    while (at >= 0).any():
        mark = marks[at]
        found = np.where((at >= 0) & (mark >= 0), mark, found)
        at = np.where(at >= 0, events.parent[at], -1)
    return found


def _starting(trace: Trace, beginning: str) -> list[int]:
    return [index for index, text in enumerate(trace.strings) if text.startswith(beginning)]


def _naming_gradients(trace: Trace) -> list[int]:
    return [index for index, text in enumerate(trace.strings) if _GRADIENTS in text]


class Holder(Struct, frozen=True):
    """Allocations of one operator in one module and phase."""

    operator: str
    """Empty where no operator is known."""
    module: str
    """Empty where the profile does not tell."""
    phase: Phase
    count: int | None
    """None of what was there before the recording."""
    bytes: int


def alive_by_operator(signals: Signals, use: MemoryUse, at_change: int) -> tuple[Holder, ...]:
    """What is allocated after a change, by the operator that asked for it, the largest first.

    Without addresses it is not known: empty.
    """
    alive = use.alive_at(int(use.at_ns[at_change]))
    if alive is None:
        return ()
    holders = list(by_operator(signals, alive))
    before = use.before_bytes(at_change)
    if before:
        holders.append(Holder("", "", Phase.BEFORE, None, before))
    return tuple(sorted(holders, key=lambda holder: -holder.bytes))


def by_operator(signals: Signals, allocations: Allocations) -> tuple[Holder, ...]:
    """Allocations summed by operator, module and phase, in no order."""
    trace, rows = signals.trace, allocations.row
    known = signals.origins
    owner = owners(trace, rows)
    name = np.where(owner >= 0, trace.events.name[owner], -1)
    module = np.where(rows >= 0, known.module[rows], -1)
    keys, inverse, count = np.unique(
        np.stack((name, module, phases(trace, rows, owner))),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    total = np.bincount(inverse.ravel(), weights=allocations.bytes, minlength=keys.shape[1])
    places, modules = list(Phase), (*known.names, "")
    return tuple(
        Holder(trace.text(operator), modules[at], places[place], many, int(held))
        for operator, at, place, many, held in zip(
            *keys.tolist(), count.tolist(), total.tolist(), strict=True
        )
    )
