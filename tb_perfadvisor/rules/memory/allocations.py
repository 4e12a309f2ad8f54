"""Memory that grows, or that the allocator cannot use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import (
    allocated_memory_series,
    memory_by_line,
    memory_by_operator,
    memory_over_time,
    series_by_step,
)
from tb_perfadvisor.rules.finding import (
    Column,
    Evidence,
    Finding,
    MemorySaving,
    Series,
    Table,
    costliest,
)
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import (
    Allocations,
    MemoryUse,
    by_operator,
    leaked_memory,
    memory_use,
)
from tb_perfadvisor.signals.snapshots.course import (
    Course,
    exhaustion,
    memory_course,
    reserved_despite_free_bytes,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.signals.snapshots.course import reserved as reserved_now
from tb_perfadvisor.signals.snapshots.sites import Growth, by_line, growth
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("expandable-segments", "repeated-sizes", "less-memory")


class MemoryFragmentation(Rule):
    """The allocator holds much device memory that is never in use at the same time."""

    id = "memory-fragmentation"
    title = "Reduce memory fragmentation"
    needs = (Need.DEVICE_EVENTS, Need.MEMORY, Need.MEMORY_CAPACITY)
    needs_of_snapshots = (Need.MEMORY_SNAPSHOT,)
    is_preview = True

    minimum_unused_share = Limit(
        0.2, "share", "A caching allocator needs some slack: up to a fifth of the device's memory."
    )
    minimum_reserved_share = Limit(
        0.7, "share", "While 30 % of the memory is free, no one needs what the allocator holds."
    )
    critical_share = 0.9
    """Beyond 90 %, the allocator must free memory for the next large request."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        course = memory_course(signals)
        if course is not None:
            yield from self._of_snapshot(course, snapshot_capacity_bytes(signals))
            return
        memory, use = signals.memory, memory_use(signals)
        if memory is None or use is None or memory.capacity_bytes is None or not use.has_totals:
            return
        reserved, capacity = int(use.reserved_bytes.max()), memory.capacity_bytes
        allocated = int(use.allocated_bytes[use.peak])
        unused = reserved - allocated
        if unused < self.minimum_unused_share * capacity:
            return
        if reserved < self.minimum_reserved_share * capacity:
            return
        in_pieces = _reserved_despite_free(use)
        why = (
            f"{format_bytes(in_pieces)} of it was reserved while more than that was free in pieces"
            if in_pieces
            else "it is fragmented, or left from an earlier peak"
        )
        yield Finding(
            instance=f"{format_bytes(unused)} cannot be used",
            summary=(
                f"{format_bytes(unused)} of {format_bytes(capacity)} of device memory"
                f" ({format_share(unused / capacity)}) is reserved but never in use at the same"
                f" time as the rest: {why}."
            ),
            severity="high" if reserved >= self.critical_share * capacity else "medium",
            evidence=(
                Table(
                    "Device memory",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("largest reserved", reserved),
                        ("largest allocated", allocated),
                        ("reserved while as much was free", in_pieces),
                        ("device memory", capacity),
                    ),
                ),
                allocated_memory_series(use),
                _reserved_memory_series(use),
            ),
            remedies=advise(*_ADVICE),
        )

    def _of_snapshot(self, course: Course, capacity: int | None) -> Iterable[Finding]:
        """A finding when a snapshot's peaks of reserved and allocated memory lie far apart."""
        reserved, allocated = course.peak_reserved_bytes, course.peak_allocated_bytes
        unused, in_pieces = reserved - allocated, reserved_despite_free_bytes(course)
        failed = exhaustion(course)
        if not reserved or unused < self.minimum_unused_share * (capacity or reserved):
            return
        if capacity is not None and reserved < self.minimum_reserved_share * capacity:
            return
        # Without the device's size, only proof counts: it may have plenty of room.
        if capacity is None and not (in_pieces >= self.minimum_unused_share * reserved):
            return
        is_full = failed is not None or (reserved >= self.critical_share * (capacity or np.inf))
        whole = f" of {format_bytes(capacity)} of device memory" if capacity is not None else ""
        why = (
            f"{format_bytes(in_pieces)} was reserved while more than that was free in pieces"
            if in_pieces
            else "it is fragmented, or left from an earlier peak"
        )
        now = reserved_now(course)
        yield Finding(
            instance=f"{format_bytes(unused)} cannot be used",
            summary=(
                f"{format_bytes(unused)}{whole} ({format_share(unused / (capacity or reserved))}"
                f"{'' if capacity else ' of what is reserved'}) is reserved but never in use at the"
                f" same time as the rest: {why}."
            ),
            severity="high" if is_full else "low" if capacity is None else "medium",
            memory=MemorySaving(unused, reserved),
            evidence=(
                Table(
                    "Device memory",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("largest reserved", reserved),
                        ("largest allocated", allocated),
                        ("reserved while as much was free", in_pieces),
                        ("free in segments in use, at the end", now.in_pieces_bytes),
                        ("free segments, at the end", now.in_free_segments_bytes),
                        ("largest free block, at the end", now.largest_free_bytes),
                        ("device memory", capacity),
                    ),
                ),
                *memory_over_time(course),
            ),
            remedies=advise(*(_ADVICE[1:] if course.snapshot.expandable_segments else _ADVICE)),
        )


def _reserved_despite_free(use: MemoryUse) -> int:
    """How much was newly reserved while more than that was reserved and free."""
    rise = np.diff(use.reserved_bytes)
    free = use.reserved_bytes[:-1] - use.allocated_bytes[:-1]
    return int(rise[(rise > 0) & (free > rise)].sum())


def _reserved_memory_series(use: MemoryUse) -> Series:
    places = np.flatnonzero(np.diff(use.reserved_bytes, prepend=-1))
    places = distinct(np.append(places, len(use.at_ns) - 1))[-400:]
    points = zip(use.at_ns[places].tolist(), use.reserved_bytes[places].tolist(), strict=True)
    return Series("Reserved memory", "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


_STEPS_LEFT = 10_000


class MemoryGrowth(Rule):
    """More memory is allocated at the end of each step than at the end of the one before."""

    id = "memory-growth"
    title = "Stop keeping memory from step to step"
    needs = (Need.WORK, Need.STEPS, Need.MEMORY_CHANGES)
    needs_of_snapshots = (Need.MEMORY_HISTORY,)
    is_preview = False

    minimum_steps = 5
    """Caches, workspaces and optimizer state fill in the first two or three steps."""
    minimum_growth = Limit(0.01, "share", "Growth by less than 1 % of the peak is bookkeeping.")
    minimum_bytes = Limit(
        1 << 20, "bytes", "Less than a mebibyte over a few steps may be rounding of block sizes."
    )
    rising_share = 0.8
    """A program that logs every few steps may free a little in some steps."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        course = memory_course(signals)
        found = growth(course) if course is not None else None
        if course is not None and found is not None:
            yield from self._of_snapshot(course, found, snapshot_capacity_bytes(signals))
            return
        use, steps = memory_use(signals), signals.steps
        if use is None or len(steps) < self.minimum_steps:
            return
        ends = use.allocated_at(steps.host_end_ns)
        grown = self._grown_bytes(ends, int(use.allocated_bytes[use.peak]))
        if grown is None:
            return
        per_step_bytes = grown / (len(ends) - 1)
        memory = signals.memory
        capacity = memory.capacity_bytes if memory is not None and use.has_totals else None
        steps_left = None
        if capacity is not None:
            steps_left = max(
                int((capacity - int(use.allocated_bytes[use.peak])) / per_step_bytes), 0
            )
        leaked = leaked_memory(signals, use)
        holders = sorted(by_operator(signals, leaked), key=lambda holder: -holder.bytes)
        operators = [holder.operator for holder in holders if holder.operator]
        where = f", mostly from {operators[0]}" if operators else ""
        outlook = (
            f": at that rate it is full in {steps_left:,} steps" if steps_left is not None else ""
        )
        yield Finding(
            instance=f"{format_bytes(round(per_step_bytes))} more in each",
            summary=(
                f"Each step leaves {format_bytes(round(per_step_bytes))} allocated{where}, "
                f"{format_bytes(grown)} over {len(steps)} steps{outlook}."
            ),
            severity="high" if steps_left is not None and steps_left < _STEPS_LEFT else "medium",
            evidence=_evidence(signals, use, ends, leaked),
            remedies=advise("keep-numbers", "memory-history"),
        )

    def _grown_bytes(self, ends: Int64, peak_bytes: int) -> int | None:
        """By how much memory rose over the steps; None if it did not rise steadily."""
        rise = np.diff(ends)
        grown, half = int(ends[-1] - ends[0]), len(rise) // 2
        if (rise < 0).any() or (rise > 0).mean() < self.rising_share:
            return None
        # A cache that fills up grows only in the first half.
        if grown < self.minimum_bytes or min(rise[:half].sum(), rise[half:].sum()) == 0:
            return None
        return grown if grown >= self.minimum_growth * peak_bytes else None

    def _of_snapshot(
        self, course: Course, found: Growth, capacity: int | None
    ) -> Iterable[Finding]:
        """A finding when memory rises with the steps of a snapshot's history."""
        # The first two steps fill caches and the optimizer's state.
        levels = found.allocated_bytes[2:]
        if len(levels) < self.minimum_steps:
            return
        grown = self._grown_bytes(levels, course.peak_allocated_bytes)
        if grown is None:
            return
        each = round(grown / (len(levels) - 1))
        holders = by_line(found.kept, course.snapshot.stacks)
        known = [holder.line for holder in holders if holder.line is not None]
        left = None
        if capacity is not None and not found.is_inferred:
            left = max((capacity - course.peak_allocated_bytes) // max(each, 1), 0)
        unit = "slice of the history" if found.is_inferred else f"step ({found.source})"
        yield Finding(
            instance=f"{format_bytes(each)} more in each",
            summary=(
                f"Each {unit} leaves {format_bytes(each)} allocated"
                f"{f', mostly from {known[0]}' if known else ''}, {format_bytes(grown)} over"
                f" {len(levels)}"
                + (f": at that rate it is full in {left:,} steps." if left is not None else ".")
                + (
                    f" The history has no steps, so it was cut into {found.source}."
                    if found.is_inferred
                    else ""
                )
            ),
            severity="high" if left is not None and left < _STEPS_LEFT else "medium",
            evidence=(
                memory_by_line("Allocated in steps before the last and not freed", holders),
                *memory_over_time(course),
            ),
            remedies=advise("keep-numbers"),
        )


def _evidence(
    signals: Signals, use: MemoryUse, ends: Int64, leaked: Allocations
) -> tuple[Evidence, ...]:
    evidence: list[Evidence] = [
        series_by_step("Allocated at the end of each step", signals, ends, unit="bytes")
    ]
    if len(leaked):
        holders = sorted(by_operator(signals, leaked), key=lambda holder: -holder.bytes)
        evidence.append(
            memory_by_operator("Allocated in steps before the last and not freed", holders)
        )
        is_recorded = leaked.row >= 0
        if is_recorded.any():
            rows, first = unique_inverse(leaked.row[is_recorded])
            total = np.bincount(first, weights=leaked.bytes[is_recorded]).astype(np.int64)
            evidence.append(costliest("Allocations that stay", signals.worker, rows, total))
    evidence.append(allocated_memory_series(use))
    return tuple(evidence)
