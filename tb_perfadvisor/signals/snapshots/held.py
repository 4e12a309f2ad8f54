"""What holds memory in a snapshot: activations, gradients, optimizer state, needless copies.

A program calls its blocks in a loop: one line, several calls, each of which keeps the same tensors.
With checkpointing, each call keeps only its input, and the backward pass repeats the call: then
one call's tensors are alive at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, freed_at_peak, held_bytes, memory_course
from tb_perfadvisor.signals.snapshots.sites import Site, Sites, allocation_sites, shown
from tb_perfadvisor.trace.memory_snapshot import Frame
from tb_perfadvisor.trace.names import is_framework_file
from tb_perfadvisor.trace.tables import Int64

_FEWEST_CALLS = 3
"""Fewer may be different parts of a model by chance."""
_HOOK = "new_forward"
"""Accelerate's, around the module's own."""
_REPEATED_SHARE = 0.9
"""Of what the calls hold: the rest was freed already, or belongs to one call only."""

_SAME_SHARE = 0.9
"""Lines that free about as much as another one call the same blocks."""


class Held(Struct, frozen=True):
    """Tensors of one kind that are alive at the peak of one device."""

    place: str
    """The line or function that makes them; empty if unknown."""
    count: int
    """Of tensors, or of calls that keep them."""
    held_bytes: int
    at_peak: NDArray[np.bool_]
    """Which allocations they are; shape (allocations,)."""
    freed_bytes: int
    """By how much the peak falls without what is not needed of them."""


@memoized
def kept_activations(signals: Signals) -> Held | None:
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
) -> Held | None:
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
    return Held(
        shown(frame), calls, int(alive.bytes.sum()), is_alive, freed_at_peak(course, removed)
    )


def _number_of_calls(count: Int64, held: NDArray[np.float64]) -> int | None:
    """How often a line was called, if nearly all below it was allocated so often; else None.

    A call may make several tensors at one line. At a peak in the backward pass, the latest call's
    tensors are partly freed.

    `count` is how many tensors each call stack has, and `held` what they hold; shape (stacks,).
    """
    for calls in np.unique(count[count >= _FEWEST_CALLS]).tolist():
        in_each = np.maximum(np.rint(count / calls), 1)
        fits = np.abs(count - in_each * calls) <= in_each
        if held[fits].sum() >= _REPEATED_SHARE * held.sum():
            return int(calls)
    return None


_ADAM = regex(r"^Optimizer\.\w+#\w*(?:Adam|LAMB|Lion8)\w*\.", re.IGNORECASE)
_AVERAGES = 2
"""Adam keeps two averages of each gradient."""
_SETS = (4, 3)
"""Parameters and both averages, with gradients or without."""
_LARGE_SHARE = 0.01
"""Smaller tensors are biases and norms, whose sizes coincide with those of other things."""


class OptimizerState(Struct, frozen=True):
    """What an optimizer keeps from step to step, on one device."""

    bytes: int
    """At the peak."""
    is_inferred: bool
    """Whether it follows from sizes: what was there before the history comes in equal sets."""


@memoized
def optimizer_state(signals: Signals) -> OptimizerState | None:
    """The optimizer's state at the peak; None if nothing shows it."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    is_state = sites.are(allocations, sites.flags("is_optimizer"))
    is_state &= allocations.until >= len(course)
    made = int(allocations.bytes[is_state & (allocations.since <= course.peak)].sum())
    # Optimizers that are written in Python may replace their state, tensor by tensor.
    earlier = _earlier_state_bytes(course)
    if not made and not earlier:
        return None
    return OptimizerState(max(made, earlier), earlier > made)


def _earlier_state_bytes(course: Course) -> int:
    """State that was there before the history, by sizes: all come in sets. 0 if they do not."""
    allocations = course.allocations
    names = course.snapshot.annotations.names
    sizes = allocations.bytes[allocations.since == 0]
    if not any(_ADAM.match(name) for name in names) or not len(sizes):
        return 0
    size, count = np.unique(sizes, return_counts=True)
    held = size * count
    is_large = held >= _LARGE_SHARE * held.sum()
    for sets in _SETS:
        # Layers repeat, too. Embeddings do not: a model has one or two of that size.
        if (count[is_large] % sets == 0).all() and count[is_large].min() in (sets, 2 * sets):
            return int(held[is_large].sum()) * _AVERAGES // sets
    return 0


class Resident(Struct, frozen=True):
    """What is allocated during the whole history, on one device."""

    at_peak: NDArray[np.bool_]
    """Which allocations; shape (allocations,)."""
    bytes: int
    are_weights: bool
    """Whether most of it was allocated by functions that load or move weights."""


@memoized
def resident_memory(signals: Signals) -> Resident | None:
    """What is there from start to end; None without a snapshot."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    stays = allocations.until >= len(course)
    stays &= (allocations.since == 0) | _is_loaded(course, sites)
    total = int(allocations.bytes[stays].sum())
    makes = sites.are(allocations, sites.flags("makes_weights")) & stays
    return Resident(stays, total, 2 * int(allocations.bytes[makes].sum()) > total)


def _is_loaded(course: Course, sites: Sites) -> NDArray[np.bool_]:
    """Weights that were loaded while the history was recorded."""
    return sites.are(course.allocations, sites.flags("makes_weights"))


_SHORT = 100
"""Events. What one function makes and drops again lies close together in the history."""
_FEWEST = 3
"""An update out of place needs its operand and its result. More are intermediate results."""


@memoized
def autocast_copies(signals: Signals) -> Held | None:
    """Copies in 16 bits that autocast keeps of weights, in a program that keeps nothing else.

    None if a backward pass was recorded, or if the forward pass keeps its activations for one: then
    the copies are needed again.
    """
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None or kept_activations(signals) is not None:
        return None
    allocations = course.allocations
    if sites.are(allocations, sites.flags("is_backward")).any():
        return None
    is_copy = sites.are(allocations, sites.flags("is_autocast_copy"))
    is_alive = (allocations.since <= course.peak) & (allocations.until > course.peak)
    held = int(allocations.bytes[is_copy & is_alive].sum())
    others = int(allocations.bytes[is_alive & ~is_copy & (allocations.since > 0)].sum())
    if held <= others:
        return None
    # The copy that is being used is needed.
    removed = held_bytes(course, is_copy) - int(allocations.bytes[is_copy].max())
    freed = freed_at_peak(course, np.maximum(removed, 0))
    return Held("", int((is_copy & is_alive).sum()), held, is_copy & is_alive, freed)


@memoized
def intermediate_results(signals: Signals) -> Held | None:
    """Tensors of one size that one function makes and drops again, of which several are alive.

    Only outside of modules and of the backward pass: where gradients flow, a result cannot be
    written over its operand. None without any.
    """
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    is_short = (allocations.until - allocations.since <= _SHORT) & (allocations.since > 0)
    is_short &= allocations.until < len(course)
    is_alive = (allocations.since <= course.peak) & (allocations.until > course.peak) & is_short
    functions: dict[tuple[str, str], list[int]] = defaultdict(list)
    frames: dict[tuple[str, str], Frame] = {}
    for stack in np.unique(allocations.stack[is_alive & (allocations.stack >= 0)]).tolist():
        frame = _function(sites.of(stack))
        if frame is not None:
            functions[frame.file, frame.function].append(stack)
            frames.setdefault((frame.file, frame.function), frame)
    best: Held | None = None
    for key, stacks in functions.items():
        made = is_short & np.isin(allocations.stack, stacks)
        size, count = np.unique(allocations.bytes[made & is_alive], return_counts=True)
        largest = int(size[np.argmax(size * count)])
        made &= allocations.bytes == largest
        alive = made & is_alive
        if alive.sum() < _FEWEST:
            continue
        removed = np.maximum(held_bytes(course, made) - largest, 0)
        freed = freed_at_peak(course, removed)
        if best is None or freed > best.freed_bytes:
            held = int(allocations.bytes[alive].sum())
            best = Held(shown(frames[key]), int(alive.sum()), held, alive, freed)
    return best


def _function(site: Site) -> Frame | None:
    """The program's innermost function; None in modules and in the backward pass."""
    if site.is_backward or any(frame.function == "forward" for frame in site.frames):
        return None
    for frame in site.frames:
        if not is_framework_file(frame.file.replace("\\", "/")):
            return frame
    return None
