"""The trace model: numpy columns with integer nanoseconds, the same for every file format."""

from tb_perfadvisor.trace.assembler import Assembler
from tb_perfadvisor.trace.kinds import (
    BUSY_KINDS,
    CopyDirection,
    EventKind,
    KernelFamily,
    Precision,
    TrackKind,
)
from tb_perfadvisor.trace.recorded_totals import (
    Aspect,
    KernelTotal,
    OperatorTotal,
    Totals,
)
from tb_perfadvisor.trace.tables import (
    CapturedTable,
    CollectiveTable,
    CopyTable,
    EventTable,
    HloEventTable,
    HloTable,
    IteratorTable,
    KernelTable,
    LaunchTable,
    MemoryTable,
    OperatorTable,
    TrackTable,
)
from tb_perfadvisor.trace.trace import Device, Framework, LazyTraces, Run, Source, Trace

__all__ = [
    "BUSY_KINDS",
    "Aspect",
    "Assembler",
    "CapturedTable",
    "CollectiveTable",
    "CopyDirection",
    "CopyTable",
    "Device",
    "EventKind",
    "EventTable",
    "Framework",
    "HloEventTable",
    "HloTable",
    "IteratorTable",
    "KernelFamily",
    "KernelTable",
    "KernelTotal",
    "LaunchTable",
    "LazyTraces",
    "MemoryTable",
    "OperatorTable",
    "OperatorTotal",
    "Precision",
    "Run",
    "Source",
    "Totals",
    "Trace",
    "TrackKind",
    "TrackTable",
]
