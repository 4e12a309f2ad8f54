"""Gradients that stay after the optimizer has used them, and lie idle in the next forward pass."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.lower_peak import held_bytes
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.sites import Sites, allocation_sites
from tb_perfadvisor.trace.tables import Int64

_FORWARD, _BACKWARD, _OPTIMIZER = 0, 1, 2


class IdleGradients(Struct, frozen=True):
    """Gradients of an earlier step that are alive at the peak of one device."""

    at_peak: NDArray[np.bool_]
    """Which allocations they are; shape (allocations,)."""
    count: int
    held_bytes: int
    freed_bytes: int
    """By how much the peak falls if each step frees its gradients."""


@memoized
def idle_gradients(signals: Signals) -> IdleGradients | None:
    """Gradients that the optimizer has used already; None without any.

    Gradients that are accumulated over several backward passes are in use from the first of them
    on, even if they are older and were only filled with zeros: only those are idle that are older
    than the latest step of the optimizer before the peak, in the forward pass after it.
    """
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    order = np.argsort(allocations.since, kind="stable")
    order = order[allocations.since[order] > 0]
    since, phase = allocations.since[order], _phases(course, sites)[order]
    before = np.flatnonzero(since <= course.peak)
    steps = before[phase[before] == _OPTIMIZER]
    if not len(before) or not len(steps) or phase[before[-1]] == _OPTIMIZER:
        return None
    stepped = int(since[steps[-1]])
    is_gradient = sites.are(allocations, sites.flags("is_backward"))
    is_idle = is_gradient & (allocations.since < stepped) & (allocations.until > course.peak)
    held = int(allocations.bytes[is_idle].sum())
    if not held:
        return None
    needed = _progress(since, phase, len(course))
    removed = (held_bytes(course, is_idle) * (1 - needed)).astype(np.int64)
    removed[:stepped] = 0
    # Earlier steps would be as full, but for the gradients that they leave.
    later = np.maximum(course.allocated_bytes - removed, 0)
    return IdleGradients(
        is_idle, int(is_idle.sum()), held, course.peak_allocated_bytes - int(later[stepped:].max())
    )


def _phases(course: Course, sites: Sites) -> Int64:
    """What made each allocation: the forward pass, the backward pass or the optimizer."""
    phase = np.full(len(course.allocations), _FORWARD, dtype=np.int64)
    phase[sites.are(course.allocations, sites.flags("is_backward"))] = _BACKWARD
    phase[sites.are(course.allocations, sites.flags("is_optimizer"))] = _OPTIMIZER
    return phase


def _progress(since: Int64, phase: Int64, states: int) -> NDArray[np.float64]:
    """How much of the gradients exists in each state.

    None in the forward pass, all in the optimizer's step, and in the backward pass as much as it
    has come along. Between the first of several backward passes and the step, all of them.

    Args:
        since: The states in which allocations begin, rising; shape (n,).
        phase: What made each; shape (n,).
        states: How many states there are.
    """
    done = np.where(phase == _FORWARD, 0.0, 1.0)
    edges = np.flatnonzero(np.diff(np.concatenate([[-1], phase, [-1]])))
    is_accumulated = False
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if is_accumulated and phase[begin] != _OPTIMIZER:
            done[begin:end] = 1.0
        elif phase[begin] == _BACKWARD:
            done[begin:end] = np.linspace(0.0, 1.0, end - begin)
        is_accumulated = phase[begin] == _BACKWARD or (
            is_accumulated and phase[begin] != _OPTIMIZER
        )
    place = np.searchsorted(since, np.arange(states), side="right") - 1
    return np.where(place >= 0, done[np.maximum(place, 0)], 0.0)
