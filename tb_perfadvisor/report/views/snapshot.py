"""The part of the memory view that comes from a memory snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_perfadvisor.report.views.memory import (
    MemoryOverTime,
    PhaseStart,
    category_bytes,
    category_courses,
)
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import sample_maxima
from tb_perfadvisor.signals.ranks.ranks import snapshot_peaks
from tb_perfadvisor.signals.snapshots.categories import SnapshotCategories, snapshot_categories
from tb_perfadvisor.signals.snapshots.course import (
    Course,
    exhaustion,
    memory_course,
    reserved,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.signals.snapshots.sites import (
    Growth,
    LineMemory,
    by_line,
    growth,
    line_of,
    shown,
)
from tb_perfadvisor.trace.tables import Int64

MAX_POINTS = 1_000
MAX_HOLDERS = 50
MAX_FRAMES = 20
MAX_DEVICES = 256
_NUMBERED = "ProfilerStep#"


class LineHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one line of the program allocated."""

    line: str | None
    """None if it was allocated before the history, or by an unknown line."""
    count: int
    bytes: int
    frames: list[str]
    """The call stack with most of it, the innermost frame first."""


class SnapshotStep(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at the end of a step, or the least in a slice of the history."""

    at_ns: int
    allocated_bytes: int


class SnapshotGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory from step to step."""

    source: str
    """The annotation that begins each step, or what the history was cut into."""
    is_inferred: bool
    steps: list[SnapshotStep]
    kept: list[LineHolder]
    """Allocated between the second and the last step, and never freed."""


class SnapshotReserved(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator holds when the snapshot is taken."""

    segments: int
    reserved_bytes: int
    allocated_bytes: int
    in_pieces_bytes: int
    """Free, in segments that are in use."""
    in_free_segments_bytes: int
    largest_free_bytes: int


class SnapshotFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last allocation that failed; null is unknown."""

    count: int
    line: str | None
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    driver_free_bytes: int | None
    largest_free_bytes: int | None
    largest_fit_bytes: int | None
    is_in_pieces: bool
    """Whether enough was free, but not in one piece."""


class SnapshotDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device, as one rank's process sees it."""

    rank: int | None
    device: int
    allocated_bytes: int
    reserved_bytes: int


class SnapshotView(MemoryOverTime, frozen=True, kw_only=True):
    """The device with the highest peak in the reference worker's memory snapshot.

    Times are since the first event.
    """

    file: str
    device: int
    events: int
    """Of all devices."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    alive: list[LineHolder]
    """Allocated at the peak, the largest first."""
    alive_truncated: int
    growth: SnapshotGrowth | None
    reserved: SnapshotReserved
    failure: SnapshotFailure | None
    devices: list[SnapshotDevice]
    is_whole: bool
    """Whether the history ends in the state of the snapshot."""


def make_snapshot_view(signals: Signals) -> SnapshotView | None:
    """The memory snapshot; None without one, or if it is empty."""
    course = memory_course(signals)
    if course is None:
        return None
    picks = sample_maxima(course.allocated_bytes, MAX_POINTS)
    picks = picks if course.has_times else picks[:0]
    holders = by_line(course.allocations.alive_in(course.peak), course.snapshot.stacks)
    held, found, grown = reserved(course), snapshot_categories(signals), growth(course)
    number, ends = _steps(course, grown)
    return SnapshotView(
        file=course.snapshot.path,
        device=course.device,
        events=len(course.snapshot.events),
        at_ns=course.at_ns[picks].tolist(),
        allocated_bytes=course.allocated_bytes[picks].tolist(),
        reserved_bytes=course.reserved_bytes[picks].tolist(),
        capacity_bytes=snapshot_capacity_bytes(signals),
        peak_at_ns=int(course.at_ns[course.peak]),
        step=number,
        step_end_ns=course.at_ns[ends].tolist(),
        step_end_bytes=course.allocated_bytes[ends].tolist(),
        categories=category_bytes(
            {category: int(size[0]) for category, size in found.at(np.array([course.peak])).items()}
        )
        if found
        else [],
        course=category_courses(found.at(picks), found.at(ends), len(ends)) if found else [],
        phases=_phases(course, found) if found else [],
        peak_allocated_bytes=course.peak_allocated_bytes,
        peak_reserved_bytes=course.peak_reserved_bytes,
        alive=_lines(course, holders),
        alive_truncated=max(len(holders) - MAX_HOLDERS, 0),
        growth=_growth(course, grown),
        reserved=SnapshotReserved(
            segments=held.segments,
            reserved_bytes=held.reserved_bytes,
            allocated_bytes=held.allocated_bytes,
            in_pieces_bytes=held.in_pieces_bytes,
            in_free_segments_bytes=held.in_free_segments_bytes,
            largest_free_bytes=held.largest_free_bytes,
        ),
        failure=_failure(course),
        devices=[
            SnapshotDevice(
                rank=peak.rank,
                device=peak.device,
                allocated_bytes=peak.allocated_bytes,
                reserved_bytes=peak.reserved_bytes,
            )
            for peak in snapshot_peaks(signals)[:MAX_DEVICES]
        ],
        is_whole=course.is_whole,
    )


def _lines(course: Course, holders: Sequence[LineMemory]) -> list[LineHolder]:
    return [
        LineHolder(
            line=holder.line,
            count=holder.count,
            bytes=holder.bytes,
            frames=[shown(frame) for frame in course.snapshot.stacks.of(holder.stack)[:MAX_FRAMES]]
            if holder.line is not None
            else [],
        )
        for holder in holders[:MAX_HOLDERS]
    ]


def _steps(course: Course, grown: Growth | None) -> tuple[list[int], Int64]:
    """The numbers of the annotated steps, and the states at their ends."""
    rows = grown.rows if grown is not None else np.empty(0, dtype=np.int64)
    table = course.snapshot.annotations
    rows = rows[table.end_ns[rows] >= 0][-MAX_POINTS:]
    names = [table.names[name] for name in table.name[rows].tolist()]
    # Only the profiler numbers its steps.
    numbers = [
        int(name.partition(_NUMBERED)[2]) if name.startswith(_NUMBERED) else place
        for place, name in enumerate(names)
    ]
    return numbers, course.states_at(table.end_ns[rows]) if len(rows) else rows


def _phases(course: Course, found: SnapshotCategories) -> list[PhaseStart]:
    """Where the parts of steps begin; empty if there are too many to be drawn."""
    if not course.has_times or len(found.phases) > MAX_POINTS:
        return []
    last = len(course) - 1
    return [
        PhaseStart(at_ns=int(course.at_ns[min(state + 1, last)]), phase=phase.value)
        for state, phase in found.phases
    ]


def _growth(course: Course, found: Growth | None) -> SnapshotGrowth | None:
    if found is None:
        return None
    picks = sample_maxima(found.allocated_bytes, MAX_POINTS)
    return SnapshotGrowth(
        source=found.source,
        is_inferred=found.is_inferred,
        steps=[
            SnapshotStep(at_ns=at_ns, allocated_bytes=size)
            for at_ns, size in zip(
                course.at_ns[found.state[picks]].tolist(),
                found.allocated_bytes[picks].tolist(),
                strict=True,
            )
        ],
        kept=_lines(course, by_line(found.kept, course.snapshot.stacks)),
    )


def _failure(course: Course) -> SnapshotFailure | None:
    failed = exhaustion(course)
    if failed is None:
        return None
    return SnapshotFailure(
        count=failed.count,
        line=line_of(course.snapshot.stacks.of(failed.stack)),
        requested_bytes=failed.requested_bytes,
        allocated_bytes=failed.allocated_bytes,
        reserved_bytes=failed.reserved_bytes,
        driver_free_bytes=failed.driver_free_bytes,
        largest_free_bytes=failed.largest_free_bytes,
        largest_fit_bytes=failed.largest_fit_bytes,
        is_in_pieces=failed.is_in_pieces,
    )
