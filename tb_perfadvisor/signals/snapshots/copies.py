"""Copies at the peak that the program could do without: autocast's, and those of an update."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.origins import is_framework_file
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.activations import kept_activations
from tb_perfadvisor.signals.snapshots.lower_peak import freed_at_peak, held_bytes
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.sites import Site, allocation_sites
from tb_perfadvisor.signals.snapshots.source_lines import shown
from tb_perfadvisor.trace.memory_snapshot import Frame

_SHORT = 100
"""Events. What one function makes and drops again lies close together in the history."""
_FEWEST = 3
"""An update out of place needs its operand and its result. More are intermediate results."""


class Copies(Struct, frozen=True):
    """Copies that are alive at the peak of one device."""

    place: str
    """What makes them."""
    at_peak: NDArray[np.bool_]
    """Which allocations they are; shape (allocations,)."""
    count: int
    held_bytes: int
    freed_bytes: int
    """By how much the peak falls without them."""


@memoized
def autocast_copies(signals: Signals) -> Copies | None:
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
    return Copies(
        "autocast",
        is_copy & is_alive,
        int((is_copy & is_alive).sum()),
        held,
        freed_at_peak(course, np.maximum(removed, 0)),
    )


@memoized
def intermediate_results(signals: Signals) -> Copies | None:
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
    best: Copies | None = None
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
            best = Copies(shown(frames[key]), alive, int(alive.sum()), held, freed)
    return best


def _function(site: Site) -> Frame | None:
    """The program's innermost function; None in modules and in the backward pass."""
    if site.is_backward or any(frame.function == "forward" for frame in site.frames):
        return None
    for frame in site.frames:
        if not is_framework_file(frame.file.replace("\\", "/")):
            return frame
    return None
