"""Memory over time, and memory by the operator or the line that allocated it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.rules.finding import Column, Series, Table
from tb_perfadvisor.signals.core.memory import Phase, sample_maxima
from tb_perfadvisor.signals.device.memory_use import Holder, MemoryUse
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.sites import EARLIER, LineMemory, by_line
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes, format_share

_POINTS = 400
PHASES = {
    Phase.BEFORE: "before the recording (parameters, optimizer state and other earlier memory)",
    Phase.INPUT: "input",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "outside operators",
}


def allocated_memory_series(use: MemoryUse) -> Series:
    """Allocated memory over time."""
    picks = use.sample(_POINTS)
    points = zip(use.at_ns[picks].tolist(), use.allocated_bytes[picks].tolist(), strict=True)
    title = "Allocated memory" if use.has_totals else "Allocated memory, since the profile's start"
    return Series(title, "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


def memory_by_operator(title: str, holders: Iterable[Holder]) -> Table:
    """Memory by the operator that allocated it."""
    return Table(
        title,
        (
            Column("operator", "Operator"),
            Column("module", "Module"),
            Column("phase", "Allocated in"),
            Column("count", "Allocations", "count"),
            Column("bytes", "Held", "bytes"),
        ),
        tuple(
            (
                holder.operator or None,
                holder.module or None,
                PHASES[holder.phase],
                holder.count,
                holder.bytes,
            )
            for holder in holders
        ),
    )


def memory_over_time(course: Course) -> tuple[Series, ...]:
    """Allocated and reserved memory; none without times."""
    if not course.has_times:
        return ()
    picks = sample_maxima(course.allocated_bytes, _POINTS)
    return (
        _series("Allocated memory", course.at_ns[picks], course.allocated_bytes[picks]),
        _series("Reserved memory", course.at_ns[picks], course.reserved_bytes[picks]),
    )


def _series(title: str, at_ns: Int64, size_bytes: Int64) -> Series:
    points = zip(at_ns.tolist(), size_bytes.tolist(), strict=True)
    return Series(title, "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


def holders_in(course: Course, state: int) -> tuple[LineMemory, ...]:
    """What is allocated in a state, by line."""
    return by_line(course.allocations.alive_in(state), course.snapshot.stacks)


def memory_by_line(title: str, holders: Sequence[LineMemory]) -> Table:
    """Memory by the line of the program that allocated it."""
    return Table(
        title,
        (
            Column("source", "Allocated at"),
            Column("tensor", "By"),
            Column("count", "Allocations", "count"),
            Column("bytes", "Held", "bytes"),
        ),
        tuple(
            (holder.line or EARLIER, holder.tensor, holder.count, holder.bytes)
            for holder in holders
        ),
    )


def largest_holder(holders: Sequence[LineMemory], total_bytes: int) -> str:
    """A clause on the line that holds most: `; model.py:54 forward holds 20.1 GiB (40 %) of it`."""
    known = [holder for holder in holders if holder.line is not None]
    if not known or total_bytes <= 0:
        return ""
    share = format_share(known[0].bytes / total_bytes)
    return f"; {known[0].line} holds {format_bytes(known[0].bytes)} ({share}) of it"
