"""Memory that stays: the optimizer's state, and what is there from start to end."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.sites import Sites, allocation_sites

_ADAM = re.compile(r"^Optimizer\.\w+#\w*(?:Adam|LAMB|Lion8)\w*\.", re.IGNORECASE)
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
