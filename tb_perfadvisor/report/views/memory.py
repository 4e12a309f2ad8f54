"""The memory view: memory over time, and what was allocated at the peak."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import MemoryCategory
from tb_perfadvisor.signals.device.memory_use import (
    alive_by_operator,
    batch_room,
    categories_at,
    memory_categories,
    memory_use,
    peak_by_step,
    phase_starts,
)
from tb_perfadvisor.trace.tables import Int64

MAX_POINTS = 1_000
MAX_HOLDERS = 50


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in use at the peak that one operator of one module and phase allocated."""

    operator: str | None
    """The outermost operator around the allocation; None if unknown."""
    module: str | None
    phase: str
    """before-recording, input, forward, backward, optimizer or other."""
    count: int | None
    """None for memory allocated before the recording."""
    bytes: int


class CategoryBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What memory is for."""

    category: str
    """parameters, gradients, optimizer-state, activations, input, temporary, earlier or unknown."""
    bytes: int


class CategoryCourse(msgspec.Struct, frozen=True, kw_only=True):
    """One category over time."""

    category: str
    bytes: list[int]
    """At each of the view's points."""
    step_end_bytes: list[int]
    """At the end of each step."""


class PhaseStart(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a part of a step."""

    at_ns: int
    phase: str
    """forward, backward or optimizer."""


class LargerBatchRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as large a batch fits into 90 % of the device's memory."""

    low: float
    high: float


class MemoryOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Memory over time by what it is for, of a profile or of a memory snapshot."""

    at_ns: list[int]
    """The points keep the maximum between any two of them. Empty if the file has no times."""
    allocated_bytes: list[int]
    reserved_bytes: list[int] | None
    """What the allocator has reserved, which includes the allocated memory."""
    capacity_bytes: int | None
    peak_at_ns: int
    step: list[int]
    """The steps' numbers."""
    step_end_ns: list[int]
    step_end_bytes: list[int]
    """Allocated memory at the end of each step."""
    categories: list[CategoryBytes]
    """Memory at the peak by what it is for, the largest first; empty if unknown."""
    course: list[CategoryCourse]
    """Memory over time by what it is for; empty if unknown."""
    phases: list[PhaseStart]
    """When the parts of each step begin, in order of time; empty if unknown."""


class MemoryView(MemoryOverTime, frozen=True, kw_only=True):
    """The memory of the reference worker's busiest device, or of the host without a device."""

    device: int | None
    """None for the host's memory."""
    is_relative: bool
    """Counted from the start of the recording; more may have been allocated before."""
    changes: int
    """Number of changes in the profile."""
    step_peak_bytes: list[int] | None
    """The most allocated memory in each step; None without steps."""
    batch_room: LargerBatchRoom | None
    """None if activations, the rest of the memory or the capacity are unknown."""
    alive: list[MemoryHolder]
    """Memory in use at the peak, the largest first; empty if unknown."""
    alive_truncated: int
    """How many are not listed."""


def make_memory_view(signals: Signals) -> MemoryView | None:
    """The memory view; None if no change of memory was recorded."""
    use = memory_use(signals)
    if use is None:
        return None
    picks, steps, facts = use.sample(MAX_POINTS), signals.steps, signals.device_facts
    reserved = use.reserved_bytes[picks]
    holders = alive_by_operator(signals, use, use.peak)
    categories, room, peaks = memory_categories(signals), batch_room(signals), peak_by_step(signals)
    held = categories.at_peak if categories is not None else {}
    return MemoryView(
        device=use.device,
        is_relative=not use.has_totals,
        changes=len(use.at_ns),
        at_ns=use.at_ns[picks].tolist(),
        allocated_bytes=use.allocated_bytes[picks].tolist(),
        # An allocator without a pool records 0.
        reserved_bytes=reserved.tolist() if (reserved > 0).all() else None,
        capacity_bytes=facts.memory_bytes if facts is not None else None,
        peak_at_ns=int(use.at_ns[use.peak]),
        step=steps.number.tolist(),
        step_end_ns=steps.host_end_ns.tolist(),
        step_end_bytes=use.allocated_at(steps.host_end_ns).tolist(),
        step_peak_bytes=None if peaks is None else peaks.tolist(),
        categories=category_bytes(held),
        course=category_courses(
            categories_at(signals, use.at_ns[picks]),
            categories_at(signals, steps.host_end_ns),
            len(steps),
        ),
        phases=[PhaseStart(at_ns=ns, phase=phase.value) for ns, phase in phase_starts(signals)],
        batch_room=None if room is None else LargerBatchRoom(low=room.low, high=room.high),
        alive=[
            MemoryHolder(
                operator=holder.operator or None,
                module=holder.module or None,
                phase=holder.phase.value,
                count=holder.count,
                bytes=holder.bytes,
            )
            for holder in holders[:MAX_HOLDERS]
        ],
        alive_truncated=max(len(holders) - MAX_HOLDERS, 0),
    )


def category_bytes(held: Mapping[MemoryCategory, int]) -> list[CategoryBytes]:
    """Categories for a view, the largest first."""
    return [
        CategoryBytes(category=category.value, bytes=size)
        for category, size in sorted(held.items(), key=lambda item: -item[1])
    ]


def category_courses(
    course: Mapping[MemoryCategory, Int64], at_step_ends: Mapping[MemoryCategory, Int64], steps: int
) -> list[CategoryCourse]:
    """Categories over time for a view, at its points and at the ends of its steps."""
    nothing = np.zeros(steps, dtype=np.int64)
    return [
        CategoryCourse(
            category=category.value,
            bytes=held.tolist(),
            step_end_bytes=at_step_ends.get(category, nothing).tolist(),
        )
        for category, held in course.items()
    ]
