"""Device memory is nearly full."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series, memory_by_operator
from tb_perfadvisor.rules.evidence.snapshots import (
    holders_in,
    largest_holder,
    memory_by_line,
    memory_over_time,
)
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_categories import (
    MemoryCategory,
    forward_device_ns,
    memory_categories,
)
from tb_perfadvisor.signals.device.memory_use import Holder, Phase, alive_by_operator, memory_use
from tb_perfadvisor.signals.device.recomputation import recomputation
from tb_perfadvisor.signals.snapshots.course import Course, memory_course, snapshot_capacity_bytes
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("activation-checkpointing", "expandable-segments", "less-memory")


class MemoryNearCapacity(Rule):
    """The peak of device memory is close to the capacity of the device.

    What it finds
    -------------
    A peak of reserved (or, if that is unknown, allocated) device memory above 90 % of the device's
    memory.

    Why it matters
    --------------
    A longer sequence, more fragmentation or another process on the device ends the run with an
    out-of-memory error. Close to the limit, the allocator also frees memory and retries, which
    waits for the device.

    How it is measured
    ------------------
    The largest total in the profile's memory events, or in a memory snapshot, divided by the
    device's memory size from the profile or the hardware table. Memory in use at the peak is what
    was allocated by then and freed later, listed by the outermost operator around each allocation
    and by the part of the step; everything else was there before the recording. A snapshot lists
    it by line of the program. There is no saving in time: it is a risk.

    When to ignore
    --------------
    When the framework reserves all memory at the start by design (JAX, TensorFlow): then look at
    allocated memory, not reserved memory.

    How to verify
    -------------
    Record again with memory profiling: the peak is below 90 %.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: Memory management".
    """

    id = "memory-near-capacity"
    title = "Free some device memory"
    category = "memory"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.MEMORY, Need.MEMORY_CAPACITY)
    needs_of_snapshots = (Need.MEMORY_SNAPSHOT, Need.SNAPSHOT_CAPACITY)
    is_preview = True

    maximum_share = Limit(0.9, "share", "Fragmentation and workspaces commonly take the last 10 %.")
    critical_share = Limit(
        0.97, "share", "A large activation or workspace takes more than the remaining 3 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the peak is near the capacity of the device."""
        course, size = memory_course(signals), snapshot_capacity_bytes(signals)
        if course is not None and size is not None:
            yield from self._of_snapshot(course, size)
            return
        memory = signals.memory
        if memory is None or memory.capacity_bytes is None:
            return
        # Reserved memory means nothing in frameworks that reserve all of it at the start.
        reserves_all = signals.trace.source.framework != "pytorch"
        reserved = None if reserves_all else memory.peak_reserved_bytes
        peak = reserved if reserved is not None else memory.peak_allocated_bytes
        if peak is None or peak <= self.maximum_share * memory.capacity_bytes:
            return
        share = peak / memory.capacity_bytes
        what = "reserved" if reserved is not None else "allocated"
        use = memory_use(signals)
        holders = alive_by_operator(signals, use, use.peak) if use is not None else ()
        kept = _activations(signals)
        most = f"; the largest part was {_largest_part(holders[0], peak)}" if holders else ""
        yield Finding(
            instance=f"{format_share(share)} is in use",
            summary=(
                f"Peak {what} memory is {format_bytes(peak)} of"
                f" {format_bytes(memory.capacity_bytes)} ({format_share(share)}){most}.{kept}"
            ),
            severity="high" if share >= self.critical_share else "medium",
            evidence=(
                _sizes(
                    memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.capacity_bytes
                ),
                *((memory_by_operator("Alive at the peak", holders),) if holders else ()),
                *((allocated_memory_series(use),) if use is not None else ()),
            ),
            remedies=advise(*_ADVICE),
        )

    def _of_snapshot(self, course: Course, capacity: int) -> Iterable[Finding]:
        """A finding when the peak of a snapshot is near the capacity."""
        peak = course.peak_reserved_bytes
        if peak <= self.maximum_share * capacity:
            return
        allocated, share = course.peak_allocated_bytes, peak / capacity
        holders = holders_in(course, course.peak)
        yield Finding(
            instance=f"{format_share(share)} is in use",
            summary=(
                f"Peak reserved memory is {format_bytes(peak)} of {format_bytes(capacity)}"
                f" ({format_share(share)}). {format_bytes(allocated)} was allocated at the peak"
                f"{largest_holder(holders, allocated)}."
            ),
            severity="high" if share >= self.critical_share else "medium",
            evidence=(
                _sizes(allocated, peak, capacity),
                memory_by_line("Allocated at the peak", holders),
                *memory_over_time(course),
            ),
            remedies=advise(*_ADVICE),
        )


def _sizes(allocated: int | None, reserved: int | None, capacity: int | None) -> Table:
    return Table(
        "Device memory",
        (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
        (
            ("peak allocated", allocated),
            ("peak reserved", reserved),
            ("device memory", capacity),
        ),
    )


def _activations(signals: Signals) -> str:
    """What activations hold, and what it costs to recompute them; empty if unknown."""
    categories = memory_categories(signals)
    held = categories.at_peak.get(MemoryCategory.ACTIVATIONS, 0) if categories else 0
    forward_ns = forward_device_ns(signals)
    if not held or not forward_ns or len(recomputation(signals).rows):
        return ""
    return (
        f" Activations hold {format_bytes(held)} of it. Checkpointing every second block frees"
        f" about half of that, and recomputes {per_step(forward_ns // 2, signals)} of device work."
    )


def _largest_part(holder: Holder, peak: int) -> str:
    where = {
        Phase.BEFORE: "allocated before the recording",
        Phase.OTHER: "allocated outside recorded operators",
    }.get(holder.phase, f"allocated in {holder.operator}")
    return f"{where} ({format_share(holder.bytes / peak)})"
