"""Memory in detail: its course over time, and the allocations alive at any time.

An allocation lives until the next change at its address. Memory whose allocation was not recorded
was allocated before the recording: parameters, optimizer state and so on.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.memory import sample_maxima
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.nesting import outermost
from tb_perfadvisor.trace.tables import Int32, Int64

_NEVER = np.iinfo(np.int64).max
_BACKWARD = "autograd::engine::evaluate_function: "
"""Prefix of the name of each node (torch/csrc/autograd/engine.cpp)."""
_GRADIENTS = "gradient_tape/"
"""The name scope of tf.GradientTape (tensorflow/python/eager/backprop.py)."""
_OPTIMIZER = "Optimizer.step#"


class Phase(Enum):
    """The part of a step in which memory was allocated."""

    BEFORE = "before-recording"
    INPUT = "input"
    FORWARD = "forward"
    """By an operator outside of the other phases."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    """By no recorded operator."""


class Allocations(Struct, frozen=True):
    """Single allocations; columns of shape (n,)."""

    bytes: Int64
    at_ns: Int64
    freed_ns: Int64
    """When it was freed; the largest int64 if never."""
    row: Int32
    """The innermost event on its thread around the allocation; -1 for none."""

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.bytes)

    def select(self, mask: NDArray[np.bool_]) -> Allocations:
        """The allocations that a mask selects; shape of the mask: (n,)."""
        return Allocations(self.bytes[mask], self.at_ns[mask], self.freed_ns[mask], self.row[mask])


class MemoryUse(Struct, frozen=True):
    """The memory of the busiest device, or of the host if there is no device."""

    device: int | None
    """None for the host."""
    at_ns: Int64
    """Time of each change; shape (changes,)."""
    allocated_bytes: Int64
    """Total after each change; relative to the start of the recording if `has_totals` is false."""
    reserved_bytes: Int64
    """Memory that the allocator reserves after each change; -1 if unknown."""
    has_totals: bool
    """Whether the file has totals."""
    allocations: Allocations | None
    """None if the file has no addresses."""

    @property
    def peak(self) -> int:
        """Index of the change after which the most memory is allocated."""
        return int(np.argmax(self.allocated_bytes))

    def alive_at(self, at_ns: int) -> Allocations | None:
        """Allocations alive at a time; None if the file has no addresses."""
        allocations = self.allocations
        if allocations is None:
            return None
        return allocations.select((allocations.at_ns <= at_ns) & (allocations.freed_ns > at_ns))

    def preexisting_bytes(self, at_change: int) -> int | None:
        """Memory after a change that was allocated before the recording; None if unknown."""
        alive = self.alive_at(int(self.at_ns[at_change])) if self.has_totals else None
        if alive is None:
            return None
        return max(int(self.allocated_bytes[at_change]) - int(alive.bytes.sum()), 0)

    def sample(self, count: int) -> NDArray[np.int64]:
        """Indexes of at most `count` changes for a chart: the first, the last and local maxima."""
        return sample_maxima(self.allocated_bytes, count)

    def allocated_at(self, times_ns: Int64) -> Int64:
        """Allocated bytes at some times, none of them before the first change; shape (n,)."""
        slot = last_before(self.at_ns, times_ns)
        allocated: Int64 = self.allocated_bytes[np.maximum(slot, 0)]
        return allocated


@memoized
def memory_use(signals: Signals) -> MemoryUse | None:
    """Memory of the device, or of the host; None if no change was recorded."""
    trace, device = signals.trace, signals.device.index
    table = trace.memory
    if device is None and signals.device.is_missing:
        return None
    entries = np.flatnonzero(table.device == (-1 if device is None else device))
    if len(entries) == 0:
        return None
    change, totals = table.bytes[entries], table.allocated_bytes[entries]
    # On the host, PyTorch counts only what was allocated since memory was first recorded
    # (c10/core/CPUAllocator.cpp, ProfiledCPUMemoryReporter).
    counts_all = device is not None or trace.source.framework != "pytorch"
    has_totals = counts_all and bool((totals >= 0).all())
    has_addresses = bool((table.address[entries] >= 0).all() and (change != 0).any())
    return MemoryUse(
        device=device,
        at_ns=table.at_ns[entries],
        allocated_bytes=totals if has_totals else np.cumsum(change),
        reserved_bytes=table.reserved_bytes[entries],
        has_totals=has_totals,
        allocations=_allocations(trace, entries) if has_addresses else None,
    )


def _allocations(trace: Trace, entries: NDArray[np.int64]) -> Allocations:
    """The allocations among some changes, each freed at the next change of its address.

    If an address is allocated twice in a row, the free between was not recorded.
    """
    table = trace.memory
    change, at, address = table.bytes[entries], table.at_ns[entries], table.address[entries]
    order = np.argsort(address, kind="stable")
    has_next = np.flatnonzero(address[order][1:] == address[order][:-1])
    freed = np.full(len(entries), _NEVER, dtype=np.int64)
    freed[order[has_next]] = at[order[has_next + 1]]
    allocated = np.flatnonzero(change > 0)
    return Allocations(
        bytes=change[allocated],
        at_ns=at[allocated],
        freed_ns=freed[allocated],
        row=_enclosing(trace, table.track[entries][allocated], at[allocated]),
    )


def _enclosing(trace: Trace, track: Int32, at_ns: Int64) -> Int32:
    """The innermost event on each track around each time; -1 for none; shape (n,)."""
    events = trace.events
    enclosing = np.full(len(at_ns), -1, dtype=np.int32)
    rows_by_track = dict(places_by_value(events.track))
    for number, on_track in places_by_value(track):
        rows = rows_by_track.get(number)
        if rows is None:
            continue
        slot = last_before(events.start_ns[rows], at_ns[on_track])
        enclosing[on_track] = np.where(slot >= 0, rows[np.maximum(slot, 0)], -1)
    end = events.end_ns
    # If the last event to begin is over, an event around it may still be open.
    climbing = np.flatnonzero((enclosing >= 0) & (end[enclosing] < at_ns))
    while climbing.size:
        enclosing[climbing] = events.parent[enclosing[climbing]]
        climbing = climbing[enclosing[climbing] >= 0]
        climbing = climbing[end[enclosing[climbing]] < at_ns[climbing]]
    return enclosing


def _outermost_operators(trace: Trace, rows: Int32) -> Int32:
    """The outermost operator at or around each event; -1 for none; shape (n,)."""
    events = trace.events
    found = outermost(events.parent, events.kind == EventKind.OPERATOR)
    return np.where(rows >= 0, found[rows], -1).astype(np.int32)


def phases_of(trace: Trace, rows: Int32) -> NDArray[np.str_]:
    """The value of the `Phase` of each event, -1 for none; shape (n,)."""
    values = np.array([phase.value for phase in Phase])
    return values[_phases(trace, rows, _outermost_operators(trace, rows))]


def _phases(trace: Trace, rows: Int32, operator: Int32) -> NDArray[np.int8]:
    """Index into `Phase` of each event; shape (n,).

    Args:
        trace: The trace.
        rows: Events; -1 for none.
        operator: The outermost operator around each event; -1 for none.
    """
    events = trace.events
    index = {phase: number for number, phase in enumerate(Phase)}
    marks = np.full(len(events), -1, dtype=np.int8)
    marks[events.kind == EventKind.INPUT_WAIT] = index[Phase.INPUT]
    marks[is_in(events.name, _with_prefix(trace, _OPTIMIZER))] = index[Phase.OPTIMIZER]
    is_backward = is_in(events.name, _in_gradient_tape(trace))
    is_backward |= is_in(events.name, _with_prefix(trace, _BACKWARD))
    marks[is_backward] = index[Phase.BACKWARD]
    phases = np.where(operator >= 0, index[Phase.FORWARD], index[Phase.OTHER]).astype(np.int8)
    marked = np.where(rows >= 0, outermost(events.parent, marks >= 0)[rows], -1)
    phases[marked >= 0] = marks[marked[marked >= 0]]
    return phases


def _with_prefix(trace: Trace, prefix: str) -> list[int]:
    return [index for index, text in enumerate(trace.strings) if text.startswith(prefix)]


def _in_gradient_tape(trace: Trace) -> list[int]:
    return [index for index, text in enumerate(trace.strings) if _GRADIENTS in text]


class Holder(Struct, frozen=True):
    """Memory that one operator allocated in one module and phase."""

    operator: str
    """Empty if unknown."""
    module: str
    """Empty if unknown."""
    phase: Phase
    count: int | None
    """Number of allocations; None for memory from before the recording."""
    bytes: int


def alive_by_operator(signals: Signals, use: MemoryUse, at_change: int) -> tuple[Holder, ...]:
    """Memory allocated after a change, by operator, largest first; empty without addresses."""
    alive = use.alive_at(int(use.at_ns[at_change]))
    if alive is None:
        return ()
    holders = list(by_operator(signals, alive))
    preexisting_bytes = use.preexisting_bytes(at_change)
    if preexisting_bytes:
        holders.append(Holder("", "", Phase.BEFORE, None, preexisting_bytes))
    return tuple(sorted(holders, key=lambda holder: -holder.bytes))


def by_operator(signals: Signals, allocations: Allocations) -> tuple[Holder, ...]:
    """Allocations summed by operator, module and phase, in no order."""
    trace, rows = signals.trace, allocations.row
    origins = signals.origins
    operator = _outermost_operators(trace, rows)
    name = np.where(operator >= 0, trace.events.name[operator], -1)
    module = np.where(rows >= 0, origins.module[rows], -1)
    keys, inverse, count = np.unique(
        np.stack((name, module, _phases(trace, rows, operator))),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    total = np.bincount(inverse.ravel(), weights=allocations.bytes, minlength=keys.shape[1])
    phases, module_names = list(Phase), (*origins.names, "")
    return tuple(
        Holder(trace.text(text), module_names[module], phases[phase], allocations, int(size_bytes))
        for text, module, phase, allocations, size_bytes in zip(
            *keys.tolist(), count.tolist(), total.tolist(), strict=True
        )
    )


def leaked_memory(signals: Signals, use: MemoryUse) -> Allocations:
    """What steps before the last one allocated and the last one has not freed."""
    steps, allocations = signals.steps, use.allocations
    if allocations is None:
        none = np.empty(0, dtype=np.int64)
        return Allocations(none, none, none, none.astype(np.int32))
    # The first step may allocate what every program keeps, such as state and gradients.
    inside = (allocations.at_ns >= steps.host_start_ns[1]) & (
        allocations.at_ns < steps.host_start_ns[-1]
    )
    return allocations.select(inside & (allocations.freed_ns > steps.host_end_ns[-1]))
