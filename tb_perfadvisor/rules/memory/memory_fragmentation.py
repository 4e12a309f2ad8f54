"""The allocator holds much more memory than is ever in use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series
from tb_perfadvisor.rules.evidence.snapshots import memory_over_time
from tb_perfadvisor.rules.finding import Column, Finding, MemorySaving, Series, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import MemoryUse, memory_use
from tb_perfadvisor.signals.snapshots.course import (
    Course,
    exhaustion,
    memory_course,
    reserved_despite_free_bytes,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.signals.snapshots.course import reserved as reserved_now
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("expandable-segments", "repeated-sizes", "less-memory")


class MemoryFragmentation(Rule):
    """The allocator holds much device memory that is never in use at the same time.

    What it finds
    -------------
    Reserved memory far above the peak of allocated memory on a device that is nearly full, and
    reservations that were made while enough memory was free, but in pieces.

    Why it matters
    --------------
    Memory in pieces cannot serve a large request: the program runs out of memory while gigabytes
    are free. Before that, the allocator frees memory and asks the driver for more, which waits for
    the device.

    How it is measured
    ------------------
    The largest reserved total of PyTorch's caching allocator minus the largest allocated total. If
    the reserved total rose although more than that was free, fragmentation is proven. Otherwise
    the memory may be left from an earlier, higher peak, such as an evaluation. A memory snapshot
    is judged in the same way; if the size of the device is unknown, only proven fragmentation
    counts. There is no saving in time: it is a risk.

    When to ignore
    --------------
    When an evaluation or another model in the same process uses that memory at other times.

    How to verify
    -------------
    Record again with memory profiling: reserved memory is close to the allocated peak.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    id = "memory-fragmentation"
    title = "Reduce memory fragmentation"
    category = "memory"
    needs = (Need.DEVICE_EVENTS, Need.MEMORY, Need.MEMORY_CAPACITY)
    needs_of_snapshots = (Need.MEMORY_SNAPSHOT,)
    is_preview = True

    minimum_unused_share = Limit(
        0.2, "share", "A caching allocator needs some slack: up to a fifth of the device's memory."
    )
    minimum_reserved_share = Limit(
        0.7, "share", "While 30 % of the memory is free, no one needs what the allocator holds."
    )
    critical_share = Limit(
        0.9, "share", "Beyond 90 %, the allocator must free memory for the next large request."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when much memory is reserved and unused."""
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
        if unused < self.minimum_unused_share * (capacity or reserved):
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
