"""Evidence that rules on memory share."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.evidence.evidence import Column, Series, Table
from tb_perfadvisor.signals.device.memory_use import Holder, MemoryUse, Phase

_POINTS = 400
PHASES = {
    Phase.BEFORE: "before the recording (parameters, optimizer state and what else was there)",
    Phase.INPUT: "input",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "outside operators",
}


def course(use: MemoryUse) -> Series:
    """Allocated memory over time."""
    picks = use.sample(_POINTS)
    points = zip(use.at_ns[picks].tolist(), use.allocated_bytes[picks].tolist(), strict=True)
    title = "Allocated memory" if use.has_totals else "Allocated memory, from the profile's start"
    return Series(title, "ns", "bytes", tuple((float(x), float(y)) for x, y in points))


def held_by(title: str, holders: Iterable[Holder]) -> Table:
    """Memory by the operator that asked for it."""
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
            (one.operator or None, one.module or None, PHASES[one.phase], one.count, one.bytes)
            for one in holders
        ),
    )
