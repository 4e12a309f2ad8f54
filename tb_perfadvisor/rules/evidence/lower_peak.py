"""Findings about what is allocated at the peak of a memory snapshot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.evidence.snapshots import memory_by_line, memory_over_time
from tb_perfadvisor.rules.finding import Evidence, MemorySaving, Severity
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, exhaustion, snapshot_capacity_bytes
from tb_perfadvisor.signals.snapshots.sites import by_line
from tb_perfadvisor.units import format_bytes, format_share

_FULL_SHARE = 0.9
"""The same limit as that of memory-near-capacity."""
_LARGE_SHARE = 0.1
_ONE_LOWER: dict[Severity, Severity] = {"high": "medium", "medium": "low", "low": "low"}


def memory_saving(course: Course, freed_bytes: int) -> MemorySaving:
    """A saving of memory at the peak."""
    return MemorySaving(freed_bytes, course.peak_allocated_bytes)


def severity_of_memory(
    signals: Signals, course: Course, saving: MemorySaving, *, has_price: bool = False
) -> Severity:
    """How much it matters: more where memory is short, and less if freeing it has a price."""
    capacity = snapshot_capacity_bytes(signals)
    is_full = exhaustion(course) is not None
    is_full |= capacity is not None and course.peak_reserved_bytes > _FULL_SHARE * capacity
    severity: Severity = "low"
    if saving.share >= _LARGE_SHARE:
        severity = "high" if is_full else "medium"
    elif is_full:
        severity = "medium"
    return _ONE_LOWER[severity] if has_price else severity


def less_at_peak(saving: MemorySaving) -> str:
    """`2.25 GiB less at the peak`, what a finding is about."""
    return f"{format_bytes(saving.bytes)} less at the peak"


def part_of_peak(course: Course, held_bytes: int) -> str:
    """`2.25 GiB of the 13.0 GiB at the peak (17.3 %)`."""
    peak = course.peak_allocated_bytes
    share = format_share(held_bytes / peak)
    return f"{format_bytes(held_bytes)} of the {format_bytes(peak)} at the peak ({share})"


def evidence_at_peak(course: Course, title: str, chosen: NDArray[np.bool_]) -> tuple[Evidence, ...]:
    """Some of what is allocated at the peak by line, and memory over time.

    Args:
        course: Of one device.
        title: Of the table.
        chosen: Which allocations; shape (allocations,).
    """
    holders = by_line(course.allocations.select(chosen), course.snapshot.stacks)
    return memory_by_line(title, holders), *memory_over_time(course)
