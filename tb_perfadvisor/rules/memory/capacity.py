"""How full the device's memory is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import (
    allocated_memory_series,
    holders_in,
    largest_holder,
    memory_by_line,
    memory_by_operator,
    memory_over_time,
)
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.operators import Phase
from tb_perfadvisor.signals.device.memory_use import (
    Holder,
    alive_by_operator,
    batch_room,
    memory_use,
)
from tb_perfadvisor.signals.host.idle import OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.launch.delays import (
    LONGEST_LAUNCH_GAP_NS,
    launch_queue,
    short_and_long_gaps,
)
from tb_perfadvisor.signals.ranks.ranks import DevicePeak, snapshot_peaks
from tb_perfadvisor.signals.snapshots.course import (
    Course,
    Exhaustion,
    courses,
    exhaustion,
    memory_course,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.signals.snapshots.sites import line_of
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, total_ns
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("activation-checkpointing", "expandable-segments", "less-memory")


class MemoryNearCapacity(Rule):
    """The peak of device memory is close to the capacity of the device."""

    id = "memory-near-capacity"
    title = "Free some device memory"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.MEMORY, Need.MEMORY_CAPACITY)
    needs_of_snapshots = (Need.MEMORY_SNAPSHOT, Need.SNAPSHOT_CAPACITY)
    is_preview = True

    maximum_share = Limit(0.9, "share", "Fragmentation and workspaces commonly take the last 10 %.")
    critical_share = 0.97
    """A large activation or workspace takes more than the remaining 3 %."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
        most = f"; the largest part was {_largest_part(holders[0], peak)}" if holders else ""
        yield Finding(
            instance=f"{format_share(share)} is in use",
            summary=(
                f"Peak {what} memory is {format_bytes(peak)} of"
                f" {format_bytes(memory.capacity_bytes)} ({format_share(share)}){most}."
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


def _largest_part(holder: Holder, peak: int) -> str:
    where = {
        Phase.BEFORE: "allocated before the recording",
        Phase.OTHER: "allocated outside recorded operators",
    }.get(holder.phase, f"allocated in {holder.operator}")
    return f"{where} ({format_share(holder.bytes / peak)})"


_MOST_DOUBLINGS = 6


class MemoryHeadroom(Rule):
    """The device waits for launches while most of its memory is free."""

    id = "memory-headroom"
    title = "Use the free memory for a larger batch"
    needs = (
        Need.DEVICE_EVENTS,
        Need.LAUNCH_LINKS,
        Need.EVERY_LAUNCH,
        Need.STEPS,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
    )
    is_preview = False

    minimum_idle_share = Limit(
        0.2,
        "share",
        "A larger batch changes training, which is not worth it for less than 10 % of the step, "
        "half of the idle time.",
    )
    maximum_use_share = Limit(
        0.8, "share", "The remaining 20 % is for workspaces, fragmentation and longer inputs."
    )
    minimum_empty_share = Limit(
        0.5, "share", "If most launches find work queued, the host does not limit the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        memory, use = signals.memory, memory_use(signals)
        if memory is None or use is None or memory.capacity_bytes is None:
            return
        peak, before = memory.peak_allocated_bytes, use.preexisting_bytes(use.peak)
        if peak is None or before is None or peak <= before:
            return
        if (launch_queue(signals).empty_share or 0.0) < self.minimum_empty_share:
            return
        idle = _idle_of_launching(signals)
        idle_ns = total_ns(idle)
        if share_of_window(idle_ns, signals) < self.minimum_idle_share:
            return
        room = self.maximum_use_share * memory.capacity_bytes - before
        # Reserved but unallocated memory may be fragments that grow with the batch.
        held = max(peak, memory.peak_reserved_bytes or 0) - before
        factor = 1
        while factor < 2**_MOST_DOUBLINGS and 2 * factor * held <= room:
            factor *= 2
        if factor == 1:
            return
        grown = before + 2 * held
        activations = batch_room(signals)
        most = factor if activations is None else max(factor, activations.high)
        holders = alive_by_operator(signals, use, use.peak)
        yield Finding(
            instance=f"{format_bytes(memory.capacity_bytes - before - held)} is free",
            summary=(
                f"The device idles {per_step(idle_ns, signals)} because the host launches work too"
                f" slowly, and at most {format_bytes(before + held)} of"
                f" {format_bytes(memory.capacity_bytes)} of device memory is in use: a batch of"
                f" twice the size fits and halves the launches per sample.{_range(signals)}"
            ),
            saving=Saving(0, idle_ns // 2, round(idle_ns * (1 - 1 / most)), idle, "modeled"),
            evidence=(
                Table(
                    "Device memory",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("before the recording", before),
                        ("allocated or reserved since, at the peak", held),
                        ("with twice the batch", grown),
                        ("device memory", memory.capacity_bytes),
                    ),
                ),
                memory_by_operator("Alive at the peak", holders),
                allocated_memory_series(use),
            ),
            remedies=advise("larger-batch", "double-batch"),
        )


def _idle_of_launching(signals: Signals) -> Intervals:
    """Idle time that a larger batch does not lengthen: the host launches, and computes nothing."""
    short_gaps, _ = short_and_long_gaps(signals.attribution.idle, LONGEST_LAUNCH_GAP_NS)
    idle = intersect(
        signals.attribution.of(Cause.LAUNCHING, Cause.FRAMEWORK, Cause.PYTHON),
        intersect(short_gaps, idle_without(signals, *OVERRIDING, IdleOwner.SLOW_LAUNCH)),
    )
    events, rows = signals.trace.events, signals.placement.host_rows
    return minus(idle, events.spans(rows))


def _range(signals: Signals) -> str:
    """How much larger a batch fits by what grows with it; empty if that is unknown."""
    room = batch_room(signals)
    if room is None or room.low < 1:
        return ""
    return (
        " Activations and temporary memory alone grow with it, so"
        f" {room.low:.1f} to {room.high:.1f} times the batch would fit."
    )


class OutOfMemory(Rule):
    """An allocation failed while the memory's history was recorded."""

    id = "out-of-memory"
    title = "Make the failed allocation fit"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)

    def check(self, signals: Signals) -> Iterable[Finding]:
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


class MemoryImbalance(Rule):
    """One device's peak of memory is far above that of the others."""

    id = "memory-imbalance"
    title = "Spread memory over the devices"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)

    minimum_share = Limit(
        0.2, "share", "Ranks of one program commonly differ by a tenth: sequences differ in length."
    )
    minimum_bytes = Limit(
        1 << 30, "bytes", "A gibibyte more would seldom change what fits on the other devices."
    )
    used_share = 0.05
    """A device with a twentieth of the highest peak only has a context on it."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        peaks = snapshot_peaks(signals)
        most = max((peak.allocated_bytes for peak in peaks), default=0)
        used = [peak for peak in peaks if peak.allocated_bytes >= self.used_share * most]
        if len(used) < 2:
            return
        usual = int(np.median([peak.allocated_bytes for peak in used]))
        if len(used) == 2:
            usual = min(peak.allocated_bytes for peak in used)
        fullest = max(used, key=lambda peak: peak.allocated_bytes)
        excess = most - usual
        if excess < self.minimum_bytes or excess < self.minimum_share * most:
            return
        yield Finding(
            instance=f"{_name(fullest)} holds {format_bytes(excess)} more",
            summary=(
                f"At its peak, {_name(fullest)} has {format_bytes(most)} allocated, "
                f"{format_bytes(excess)} ({format_share(excess / most)}) more than the others' "
                f"usual {format_bytes(usual)}: it limits the batch of all {len(used)}."
            ),
            severity="medium",
            evidence=(
                Table(
                    "Peak by device",
                    (
                        Column("device", "Device"),
                        Column("allocated", "Allocated", "bytes"),
                        Column("reserved", "Reserved", "bytes"),
                    ),
                    tuple(
                        (_name(peak), peak.allocated_bytes, peak.reserved_bytes) for peak in used
                    ),
                ),
            ),
            remedies=advise(
                "process-per-device", "even-stages", "own-device-checkpoint", "even-tokens"
            ),
        )


def _name(peak: DevicePeak) -> str:
    device = f"device {peak.device}"
    return device if peak.rank is None else f"rank {peak.rank}'s {device}"


class ReplicatedState(Rule):
    """Every rank holds all parameters and optimizer state although memory is short."""

    id = "replicated-state"
    title = "Shard parameters and optimizer state across the ranks"
    needs = (
        Need.DEVICE_EVENTS,
        Need.COLLECTIVES,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
        Need.MEMORY_CHANGES,
    )

    minimum_of_capacity = 0.8
    """With more than 20 % of the memory free, there is no need to shard."""
    minimum_of_peak = 0.4
    """If activations fill the memory, checkpointing them helps more."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        memory, use = signals.memory, memory_use(signals)
        ranks = signals.trace.source.world_size or len(signals.run.traces)
        operations = set(collectives_of(signals).operation.texts)
        if memory is None or use is None or memory.capacity_bytes is None or ranks < 2:
            return
        if "all-reduce" not in operations or "reduce-scatter" in operations:
            return
        peak = int(use.allocated_bytes[use.peak])
        state = use.preexisting_bytes(use.peak)
        if state is None or peak < self.minimum_of_capacity * memory.capacity_bytes:
            return
        if state < self.minimum_of_peak * peak:
            return
        yield Finding(
            instance=f"{format_bytes(state)} on each of {ranks} ranks",
            summary=(
                f"{format_bytes(state)} of the {format_bytes(peak)} in use at the peak"
                f" ({format_share(state / peak)}) was allocated before the steps, in full on each"
                f" of {ranks} ranks; sharded, it would be {format_bytes(state / ranks)}."
            ),
            severity="medium",
            evidence=(
                Table(
                    "Memory at the peak",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("allocated before the steps", state),
                        ("allocated in the steps", peak - state),
                        ("device memory", memory.capacity_bytes),
                        (f"before the steps, sharded across {ranks} ranks", state // ranks),
                    ),
                ),
            ),
            remedies=advise("sharded-updates", "sharded-state"),
        )
