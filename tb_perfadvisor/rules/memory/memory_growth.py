"""Allocated memory rises from step to step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series, memory_by_operator
from tb_perfadvisor.rules.evidence.snapshots import memory_by_line, memory_over_time
from tb_perfadvisor.rules.evidence.tables import series_by_step
from tb_perfadvisor.rules.finding import Evidence, Finding, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import (
    Allocations,
    MemoryUse,
    by_operator,
    leaked_memory,
    memory_use,
)
from tb_perfadvisor.signals.snapshots.course import Course, memory_course, snapshot_capacity_bytes
from tb_perfadvisor.signals.snapshots.sites import Growth, by_line, growth
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes

_STEPS_LEFT = 10_000


class MemoryGrowth(Rule):
    """More memory is allocated at the end of each step than at the end of the one before.

    What it finds
    -------------
    Allocated memory that rises from step to step, and the operators whose results stay.

    Why it matters
    --------------
    A loop that keeps something from every step ends with an out-of-memory error, after minutes or
    after days.

    How it is measured
    ------------------
    The memory allocated at the end of each used step. It must never fall, rise in most steps and
    in both halves of the profile, and grow by a noticeable share. The memory that stays is what
    was allocated in the steps before the last one and is not freed when the last one ends. In a
    CPU-only profile it is the host's memory. The history of a memory snapshot has steps if
    annotations were recorded; else it is cut into equal slices, if each of them frees and
    allocates the memory of whole steps. There is no saving in time: it is a risk.

    When to ignore
    --------------
    When something is meant to fill up over the first steps: a cache, a replay buffer, a sequence
    that is being generated.

    How to verify
    -------------
    Record more steps: the memory allocated at their ends stays the same.

    References:
    ----------
    PyTorch documentation, "Frequently Asked Questions: My model reports out of memory".
    """

    id = "memory-growth"
    title = "Stop keeping memory from step to step"
    category = "memory"
    needs = (Need.WORK, Need.STEPS, Need.MEMORY_CHANGES)
    needs_of_snapshots = (Need.MEMORY_HISTORY,)
    is_preview = False

    minimum_steps = Limit(
        5, "count", "Caches, workspaces and optimizer state fill in the first two or three steps."
    )
    minimum_growth = Limit(0.01, "share", "Growth by less than 1 % of the peak is bookkeeping.")
    minimum_bytes = Limit(
        1 << 20, "bytes", "Less than a mebibyte over a few steps may be rounding of block sizes."
    )
    rising_share = Limit(
        0.8, "share", "A program that logs every few steps may free a little in some steps."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when memory rises with the steps."""
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
