"""What memory holds in training: gradients, activations, optimizer state and so on.

PyTorch's allocator records who allocates and when, not what for. The life of an allocation tells:
gradients are allocated in the backward pass and alive when the optimizer starts, activations are
allocated in the forward pass and alive when the backward pass starts.

Moments are integers that rise: nanoseconds of a profile, or states of a snapshot.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.tables import Int8, Int64

NEVER: Final = np.iinfo(np.int64).max


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
