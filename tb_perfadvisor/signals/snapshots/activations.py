"""What a forward pass keeps for the backward pass, by the call that could be checkpointed.

A program calls its blocks in a loop: one line, several calls, each of which keeps the same tensors.
With checkpointing, each call keeps only its input, and the backward pass repeats the call: then
one call's tensors are alive at a time.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.lower_peak import freed_at_peak, held_bytes
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.sites import Sites, allocation_sites
from tb_perfadvisor.signals.snapshots.source_lines import shown
from tb_perfadvisor.trace.memory_snapshot import Frame
from tb_perfadvisor.trace.tables import Int64

_FEWEST_CALLS = 3
"""Fewer may be different parts of a model by chance."""
_HOOK = "new_forward"
"""Accelerate's, around the module's own."""
_REPEATED_SHARE = 0.9
"""Of what the calls hold: the rest was freed already, or belongs to one call only."""

_SAME_SHARE = 0.9
"""Lines that free about as much as another one call the same blocks."""


class RepeatedCall(Struct, frozen=True):
    """A line that calls blocks, and what they keep."""

    place: str
    """`model.py:253 forward`."""
    calls: int
    """How many calls' tensors are alive at the peak."""
    held_bytes: int
    """What they hold at the peak."""
    at_peak: NDArray[np.bool_]
    """Which allocations these are; shape (allocations,)."""
    freed_bytes: int
    """By how much the peak falls if each call keeps only its result, the next one's input."""


@memoized
def kept_activations(signals: Signals) -> RepeatedCall | None:
    """The line whose calls could free most at the peak; None if none repeats."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    of_forward = ~(sites.flags("is_backward") | sites.flags("is_optimizer"))
    of_forward &= ~sites.flags("is_autocast_copy")
    is_forward = sites.are(allocations, of_forward) & (allocations.stack >= 0)
    is_forward &= allocations.since > 0
    is_alive = is_forward & (allocations.since <= course.peak) & (allocations.until > course.peak)
    alive = set(np.unique(allocations.stack[is_alive]).tolist())
    found = []
    for frame, stacks in _calls(sites, alive).items():
        below = is_forward & np.isin(allocations.stack, stacks)
        repeated = _repeated(course, frame, below, below & is_alive)
        if repeated is not None:
            depth = max(_depth(sites.of(stack).frames, frame) for stack in stacks)
            found.append((repeated, depth))
    most = max((repeated.freed_bytes for repeated, _ in found), default=0)
    # What calls the model holds as much as the loop in it: the innermost line is meant.
    good = [pair for pair in found if pair[0].freed_bytes >= _SAME_SHARE * most > 0]
    return max(good, key=lambda pair: pair[1])[0] if good else None


def _depth(frames: tuple[Frame, ...], frame: Frame) -> int:
    """How far inside a frame is."""
    return len(frames) - frames.index(frame)


def _calls(sites: Sites, alive: set[int]) -> dict[Frame, list[int]]:
    """Lines that call modules, and the stacks below each call."""
    lines: dict[Frame, list[int]] = defaultdict(list)
    for stack in sorted(alive):
        frames = [frame for frame in sites.of(stack).frames if frame.function != _HOOK]
        callers = {
            outer for inner, outer in pairwise(frames) if inner.function in ("forward", "__call__")
        }
        for frame in callers:
            lines[frame].append(stack)
    return lines


def _repeated(
    course: Course, frame: Frame, below: NDArray[np.bool_], is_alive: NDArray[np.bool_]
) -> RepeatedCall | None:
    """The calls of one line; None if they do not repeat."""
    allocations = course.allocations
    alive = allocations.select(is_alive)
    stack, place, count = np.unique(alive.stack, return_inverse=True, return_counts=True)
    held = np.bincount(place, weights=alive.bytes).astype(np.float64)
    calls = _number_of_calls(count, held)
    if calls is None:
        return None
    # A call begins where the tensor is made that is the first one of all calls.
    first = np.full(len(stack), len(course))
    np.minimum.at(first, place, alive.since)
    opening = int(np.argmin(np.where(count == calls, first, len(course))))
    begins = np.sort(alive.since[place == opening])
    call = np.maximum(np.searchsorted(begins, alive.since, side="right") - 1, 0)
    of_call = int(np.bincount(call, weights=alive.bytes).max())
    # Its result is what it makes last: the input of the next call, which is kept.
    result = int(alive.stack[np.argmax(np.where(call == call.max() - 1, alive.since, -1))])
    removed = held_bytes(course, below & (allocations.stack != result))
    removed = np.maximum(removed - of_call, 0)
    return RepeatedCall(
        shown(frame), calls, int(alive.bytes.sum()), is_alive, freed_at_peak(course, removed)
    )


def _number_of_calls(count: Int64, held: NDArray[np.float64]) -> int | None:
    """How often a line was called, if nearly all below it was allocated so often; else None.

    A call may make several tensors at one line. At a peak in the backward pass, the latest call's
    tensors are partly freed.

    Args:
        count: How many tensors each call stack has, shape (stacks,).
        held: What they hold, shape (stacks,).
    """
    for calls in np.unique(count[count >= _FEWEST_CALLS]).tolist():
        in_each = np.maximum(np.rint(count / calls), 1)
        fits = np.abs(count - in_each * calls) <= in_each
        if held[fits].sum() >= _REPEATED_SHARE * held.sum():
            return int(calls)
    return None
