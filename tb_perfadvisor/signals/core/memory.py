"""Device memory over the trace, its peaks, and what it is for in training.

PyTorch's allocator records who allocates and when, not what for. The life of an allocation tells:
gradients are allocated in the backward pass and alive when the optimizer starts, activations are
allocated in the forward pass and alive when the backward pass starts. Lives are told in moments,
integers that rise: nanoseconds of a profile, or states of a snapshot.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.tables import Int8, Int64

NEVER: Final = np.iinfo(np.int64).max


class Memory(Struct, frozen=True):
    """Allocated memory of one device; fields are None if the file has no totals."""

    at_ns: Int64
    """Shape (changes,)."""
    allocated_bytes: Int64
    """Allocated after each change; -1 if unknown."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None


def sample_maxima(values: Int64, count: int) -> Int64:
    """Indexes of at most `count` values for a chart: the first, the last and local maxima."""
    total = len(values)
    if total <= count:
        return np.arange(total)
    first = np.linspace(1, total - 1, count - 1).astype(np.int64)
    highest = [
        begin + int(np.argmax(values[begin:end]))
        for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
    ]
    return np.array([0, *highest, total - 1], dtype=np.int64)


def find_memory(trace: Trace, device: int | None, capacity_bytes: int | None) -> Memory | None:
    """The memory of a device; None if the trace has no memory events of it."""
    if device is None:
        return None
    if trace.totals is not None:
        peak = trace.totals.peak_allocated_bytes
        none = np.empty(0, dtype=np.int64)
        return None if peak is None else Memory(none, none, peak, None, capacity_bytes)
    table = trace.memory
    on_device = table.device == device
    if not on_device.any():
        return None
    allocated, reserved = table.allocated_bytes[on_device], table.reserved_bytes[on_device]
    has_totals = bool((allocated >= 0).any())
    has_reserved = bool((reserved > 0).any())
    return Memory(
        at_ns=table.at_ns[on_device],
        allocated_bytes=allocated,
        peak_allocated_bytes=int(allocated.max()) if has_totals else None,
        peak_reserved_bytes=int(reserved.max()) if has_reserved else None,
        capacity_bytes=capacity_bytes,
    )


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

    @property
    def code(self) -> int:
        """Its number in columns."""
        return _PHASES.index(self)


_PHASES: Final = tuple(Phase)


class MemoryCategory(Enum):
    """What memory is for."""

    PARAMETERS = "parameters"
    """What functions allocated that build, load or move a model; without their stacks, as much as
    there are gradients, which have the same shapes and types."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer-state"
    """Allocated by the optimizer while it was recorded. Earlier state is `EARLIER`, unless the
    sizes of what a snapshot holds tell it."""
    ACTIVATIONS = "activations"
    INPUT = "input"
    TEMPORARY = "temporary"
    """Freed in the part of the step that allocated it."""
    EARLIER = "earlier"
    """Other memory from before the recording: optimizer state, frozen parameters, buffers, and
    parameters and gradients where gradients are kept from step to step."""
    UNKNOWN = "unknown"

    @property
    def code(self) -> int:
        """Its number in columns."""
        return _CATEGORIES.index(self)


_CATEGORIES: Final = tuple(MemoryCategory)


class Lives(Struct, frozen=True):
    """Allocations from their beginning to their end; columns of shape (n,)."""

    bytes: Int64
    since: Int64
    until: Int64
    """The first moment in which it is no longer allocated; `NEVER` if it stays."""


def categorize(lives: Lives, phase: Int8, backward: Int64, optimizer: Int64) -> Int8:
    """The code of the `MemoryCategory` of each allocation; shape (n,).

    `phase` is the code of the `Phase` that allocated each. The others are the moments before the
    first event of each backward pass, and of each of the optimizer's steps, in order.
    """
    found = np.full(len(lives.bytes), MemoryCategory.UNKNOWN.code, dtype=np.int8)
    for name, later, starts in (
        (Phase.FORWARD, MemoryCategory.ACTIVATIONS, backward),
        (Phase.BACKWARD, MemoryCategory.GRADIENTS, optimizer),
        (Phase.OPTIMIZER, MemoryCategory.OPTIMIZER_STATE, backward),
    ):
        is_in, is_alive = phase == name.code, lives.until > _next(starts, lives.since)
        found[is_in & ~is_alive & (lives.until < NEVER)] = MemoryCategory.TEMPORARY.code
        found[is_in & is_alive] = later.code
    # The step after the backward pass ends what activations are for. What is alive in the next
    # backward pass, too, is something that the program keeps.
    stepped = _next(optimizer, _next(backward, lives.since))
    is_kept = lives.until > _next(backward, stepped)
    is_kept |= (lives.until == NEVER) & (stepped < NEVER)
    found[is_kept & (phase == Phase.FORWARD.code)] = MemoryCategory.UNKNOWN.code
    # State that the last recorded optimizer step allocates outlives the recording.
    is_state = (phase == Phase.OPTIMIZER.code) & (lives.until == NEVER)
    found[is_state] = MemoryCategory.OPTIMIZER_STATE.code
    found[phase == Phase.INPUT.code] = MemoryCategory.INPUT.code
    return found


def _next(starts: Int64, moments: Int64) -> Int64:
    """The first start at or after each moment; `NEVER` without one; shape (n,)."""
    following: Int64 = np.append(starts, NEVER)[np.searchsorted(starts, moments)]
    return following


def gradient_bytes(lives: Lives, category: Int8, optimizer: Int64) -> int:
    """Gradients alive when an optimizer step starts: the median over the recorded steps."""
    is_gradient = category == MemoryCategory.GRADIENTS.code
    if not len(optimizer) or not is_gradient.any():
        return 0
    return int(np.median(_held(lives, is_gradient, optimizer)))


def held_by_category(lives: Lives, category: Int8, moments: Int64) -> dict[MemoryCategory, Int64]:
    """Bytes of each category at some moments; shape (moments,)."""
    return {name: _held(lives, category == name.code, moments) for name in MemoryCategory}


def _held(lives: Lives, chosen: NDArray[np.bool_], moments: Int64) -> Int64:
    rows = np.flatnonzero(chosen)

    def until_then(changes: Int64) -> Int64:
        order = rows[np.argsort(changes[rows], kind="stable")]
        total = np.append(0, np.cumsum(lives.bytes[order]))
        return total[np.searchsorted(changes[order], moments, "right")]

    return until_then(lives.since) - until_then(lives.until)


def name_earlier(
    held: dict[MemoryCategory, Int64], earlier: Int64, parameters: int, state: int = 0
) -> dict[MemoryCategory, Int64]:
    """Add memory from before the recording, of which some is known to be of two categories.

    Parameters and optimizer state stay from step to step. Categories without memory are left out.
    """
    named = dict(held)
    for category, size in (
        (MemoryCategory.PARAMETERS, parameters),
        (MemoryCategory.OPTIMIZER_STATE, state),
    ):
        part = np.minimum(earlier, size)
        named[category] = named[category] + part
        earlier = earlier - part
    named[MemoryCategory.EARLIER] = earlier
    return {category: size for category, size in named.items() if size.any()}
