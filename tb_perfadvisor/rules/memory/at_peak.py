"""What holds memory at its peak, by PyTorch's snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.declared import declared
from tb_perfadvisor.rules.evidence.tables import memory_by_line, memory_over_time
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, MemorySaving, Severity, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import (
    Course,
    exhaustion,
    memory_course,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.signals.snapshots.held import (
    Held,
    autocast_copies,
    intermediate_results,
    kept_activations,
    optimizer_state,
    resident_memory,
)
from tb_perfadvisor.signals.snapshots.scores import stored_attention, stored_logits
from tb_perfadvisor.signals.snapshots.sites import by_line, growing_lines, growth
from tb_perfadvisor.signals.workload.workload import SERVERS, workload
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

    The course is that of one device; `chosen` has shape (allocations,).
    """
    holders = by_line(course.allocations.select(chosen), course.snapshot.stacks)
    return memory_by_line(title, holders), *memory_over_time(course)


class HeldAtPeak(Rule):
    """Evaluator of the rules about one kind of tensors, which a signal finds."""

    reads_sums = True
    needs: ClassVar[tuple[Need, ...]] = (Need.MEMORY_SNAPSHOT,)
    summary: ClassVar[str]
    """What holds how much, with the names of `check`."""
    holders: ClassVar[str]
    """The title of the table of lines that allocate them."""
    changes: ClassVar[tuple[str, ...]]
    has_price: ClassVar[bool] = False
    """Whether freeing them costs time or accuracy."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        course, found = memory_course(signals), _FINDERS[self.id](signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        yield Finding(
            instance=less_at_peak(saving),
            summary=self.summary.format(
                count=found.count,
                tensors=f"{found.count:,} tensor{'s' if found.count > 1 else ''}",
                hold=f"hold{'s' if found.count == 1 else ''}",
                place=found.place,
                at_place=f" at {found.place}" if found.place else "",
                part=part_of_peak(course, found.held_bytes),
                freed=format_bytes(saving.bytes),
            ),
            severity=severity_of_memory(signals, course, saving, has_price=self.has_price),
            memory=saving,
            evidence=(
                *((_where_to_checkpoint(found),) if self.id == "kept-activations" else ()),
                *evidence_at_peak(course, self.holders, found.at_peak),
            ),
            remedies=advise(*self.changes),
        )


def _where_to_checkpoint(found: Held) -> Table:
    return Table(
        "Where to checkpoint",
        (
            Column("source", "Called at"),
            Column("calls", "Calls", "count"),
            Column("bytes", "Kept", "bytes"),
            Column("freed", "Freed at the peak", "bytes"),
        ),
        ((found.place, found.count, found.held_bytes, found.freed_bytes),),
    )


_FINDERS: Mapping[str, Callable[[Signals], Held | None]] = MappingProxyType(
    {
        "autocast-weight-copies": autocast_copies,
        "kept-activations": kept_activations,
        "out-of-place-update": intermediate_results,
        "stored-attention-scores": stored_attention,
        "stored-logits": stored_logits,
    }
)
RULES = declared(HeldAtPeak, __name__)


class ResidentMemory(Rule):
    """Nearly all memory at the peak is there from start to end."""

    id = "resident-memory"
    title = "Keep less on the device all the time"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(
        0.8, "share", "If a fifth is used only at times, that part is easier to shrink."
    )
    minimum_bytes = 1 << 30
    """Every device that trains or serves models has several gibibytes."""
    maximum_unused_share = 0.05
    """A caching allocator rounds up, and keeps a few percent for the next request."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        course, found = memory_course(signals), resident_memory(signals)
        if course is None or found is None or optimizer_state(signals) is not None:
            return
        if any(workload(signals).has(part) for part in SERVERS):
            return
        peak = course.peak_allocated_bytes
        if found.bytes < max(self.minimum_share * peak, self.minimum_bytes):
            return
        saving = memory_saving(course, found.bytes // 2)
        holders = by_line(course.allocations.select(found.at_peak), course.snapshot.stacks)
        line = next((holder.line for holder in holders if holder.line is not None), None)
        unused = course.peak_reserved_bytes - peak
        yield Finding(
            instance=f"{format_bytes(found.bytes)}{' of weights' if found.are_weights else ''}",
            summary=(
                f"{part_of_peak(course, found.bytes)} stays allocated from start to end"
                f"{f', from {line}' if line else ''}.{self._unused(unused, peak)} In half the bits,"
                f" or split over two devices, it takes {format_bytes(saving.bytes)} less."
            ),
            severity=severity_of_memory(signals, course, saving, has_price=True),
            memory=saving,
            evidence=evidence_at_peak(course, "Allocated all the time", found.at_peak),
            remedies=advise("offloaded-weights", "fewer-bits-for-weights"),
        )

    def _unused(self, unused_bytes: int, peak_bytes: int) -> str:
        """Whether the allocator holds much more than is used; empty if it does."""
        if unused_bytes > self.maximum_unused_share * peak_bytes:
            return ""
        return (
            f" The allocator holds {format_bytes(max(unused_bytes, 0))} more than that peak, so"
            " fragmentation is not the cause if memory runs out."
        )


class UnlimitedCache(Rule):
    """A line of the program allocates again and again, and nothing of it is freed."""

    id = "unlimited-cache"
    title = "Limit what the program keeps from step to step"
    needs = (Need.MEMORY_HISTORY,)
    reads_sums = True
    refines = "memory-growth"

    minimum_share = Limit(
        0.05, "share", "What stays below a twentieth of the peak does not decide what fits."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        course = memory_course(signals)
        found = growth(course) if course is not None else None
        lines = growing_lines(course, found) if course is not None and found is not None else ()
        if course is None or found is None or not lines:
            return
        cache, peak = lines[0], course.peak_allocated_bytes
        kept_bytes = int(cache.kept.bytes.sum())
        if kept_bytes < self.minimum_share * peak:
            return
        yield Finding(
            instance=cache.line,
            summary=(
                f"{cache.line} allocates {len(cache.kept):,} tensors in {cache.steps} of"
                f" {len(found.state)} parts of the history, and none of them is freed:"
                f" {format_bytes(kept_bytes)} so far, of {format_bytes(peak)} at the peak. It looks"
                " like a cache without a limit."
            ),
            severity="medium",
            evidence=(
                memory_by_line(
                    "Allocated in several parts of the history and not freed",
                    by_line(cache.kept, course.snapshot.stacks),
                ),
                *memory_over_time(course),
            ),
            remedies=advise("limited-cache", "keep-numbers"),
        )
