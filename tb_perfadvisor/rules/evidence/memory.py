"""Memory over time, and memory by the operator that allocated it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.finding import Column, Series, Table
from tb_perfadvisor.signals.device.memory_use import Holder, MemoryUse, Phase

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
