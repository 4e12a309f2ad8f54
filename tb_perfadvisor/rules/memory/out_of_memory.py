"""An allocation failed."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.snapshots import (
    holders_in,
    largest_holder,
    memory_by_line,
    memory_over_time,
)
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import Exhaustion, courses, exhaustion
from tb_perfadvisor.signals.snapshots.sites import line_of
from tb_perfadvisor.units import format_bytes


class OutOfMemory(Rule):
    """An allocation failed while the memory's history was recorded.

    What it finds
    -------------
    The last allocation that failed, what was free at that moment, and what held the rest.

    Why it matters
    --------------
    The program ends, or catches the error and repeats the work with a smaller batch.

    How it is measured
    ------------------
    The snapshot's out-of-memory event has the requested size and what the driver had left. If what
    the allocator held unused and what the driver had left add up to the requested size, enough was
    free, but in pieces. The largest block that was free is known if the snapshot was taken at
    once, before anything was freed. There is no saving in time.

    When to ignore
    --------------
    When the program tries for the largest batch that fits, and handles the error.

    How to verify
    -------------
    The program runs through, and its next snapshot has no such event.

    References:
    ----------
    PyTorch documentation, "Understanding CUDA Memory Usage" and "CUDA semantics: Optimizing memory
    usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    id = "out-of-memory"
    title = "Make the failed allocation fit"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each device on which an allocation failed."""
        for course in courses(signals):
            failed = exhaustion(course)
            if failed is None:
                continue
            line = line_of(course.snapshot.stacks.of(failed.stack))
            holders = holders_in(course, failed.state)
            size = format_bytes(failed.requested_bytes)
            yield Finding(
                instance=f"{size} did not fit",
                summary=(
                    f"{size} could not be allocated{f' at {line}' if line else ''}"
                    f"{_times(failed)}. {_left(failed)} {format_bytes(failed.allocated_bytes)} was"
                    f" allocated{largest_holder(holders, failed.allocated_bytes)}."
                ),
                severity="high",
                evidence=(
                    _table(failed),
                    memory_by_line("Allocated when it failed", holders),
                    *memory_over_time(course),
                ),
                remedies=advise(*_changes(failed, course.snapshot.expandable_segments)),
            )


def _times(failed: Exhaustion) -> str:
    return f", the last of {failed.count} failures" if failed.count > 1 else ""


def _left(failed: Exhaustion) -> str:
    """What was free, and whether it would have been enough."""
    driver = (
        f"The driver had {format_bytes(failed.driver_free_bytes)} left"
        if failed.driver_free_bytes is not None
        else "What the driver had left is unknown"
    )
    held = f"the allocator held {format_bytes(failed.unused_bytes)} unused"
    if failed.largest_fit_bytes is not None:
        held += f", and {format_bytes(failed.largest_fit_bytes)} would have fit"
    if failed.is_in_pieces:
        return f"{driver}, {held}: enough was free, but in pieces."
    if failed.driver_free_bytes is None:
        return f"{driver}; {held}."
    missing = failed.requested_bytes - failed.free_bytes
    return f"{driver}, {held}: {format_bytes(missing)} more was needed."


def _table(failed: Exhaustion) -> Table:
    return Table(
        "When it failed",
        (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
        (
            ("requested", failed.requested_bytes),
            ("left by the driver", failed.driver_free_bytes),
            ("reserved by the allocator", failed.reserved_bytes),
            ("of it allocated", failed.allocated_bytes),
            ("largest free block of the allocator", failed.largest_free_bytes),
            ("largest request that would have fit", failed.largest_fit_bytes),
        ),
    )


def _changes(failed: Exhaustion, is_expandable: bool | None) -> tuple[str, ...]:
    less = ("activation-checkpointing", "less-memory")
    if not failed.is_in_pieces:
        return less
    joined = () if is_expandable else ("expandable-segments",)
    return (*joined, "repeated-sizes", *less)
