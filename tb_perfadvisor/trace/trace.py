"""A trace: what one worker recorded, in columns; and a run: the traces of one capture."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.recorded_totals import Totals
from tb_perfadvisor.trace.tables import (
    CollectiveTable,
    CopyTable,
    EventTable,
    HloEventTable,
    HloTable,
    Int32,
    IteratorTable,
    KernelTable,
    MemoryTable,
    OperatorTable,
    TrackTable,
)

Framework = Literal["pytorch", "tensorflow", "jax", "unknown"]
NoteSeverity = Literal["info", "warning", "error"]


class Note(Struct, frozen=True):
    """Something a user should know of the profile itself: not a finding."""

    id: str
    severity: NoteSeverity
    message: str
    remedy: str = ""


class Source(Struct, frozen=True):
    """Where a trace comes from and what its recorder was asked to keep.

    The three `has_*` flags are three-valued: None when the file does not say.
    """

    path: str
    """As the user may see it: relative to the logdir, with forward slashes."""
    format: str
    framework: Framework = "unknown"
    producer: str = ""
    version: str = ""
    run: str = ""
    session: str = ""
    host: str = ""
    rank: int | None = None
    world_size: int | None = None
    origin_unix_ns: int | None = None
    """Wall clock at the trace's time 0."""
    backend: str = ""
    """Of collectives: nccl, gloo, …; empty when unknown."""
    has_shapes: bool | None = None
    has_stacks: bool | None = None
    has_memory: bool | None = None
    is_synthetic: bool = False


class Device(Struct, frozen=True):
    """An accelerator as the file describes it; None is unknown.

    `reported_*` are peaks that the file itself states. Peaks by name come from the hardware
    table, through the device signal.
    """

    index: int
    name: str
    kind: Literal["gpu", "tpu", "other"]
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    reported_flop_per_s: float | None = None
    """Dense 16-bit peak."""
    reported_bandwidth_bytes_per_s: float | None = None
    matrix_unit_use: float | None = None
    """Share of what it can do, by its hardware counters over the whole profile; None without."""


class Trace(Struct, frozen=True):
    """What one worker (rank, host) recorded. Immutable; made by the assembler alone."""

    source: Source
    strings: tuple[str, ...]
    events: EventTable
    tracks: TrackTable
    kernels: KernelTable
    copies: CopyTable
    collectives: CollectiveTable
    memory: MemoryTable
    operators: OperatorTable
    hlo: HloTable
    hlo_events: HloEventTable
    iterators: IteratorTable
    devices: tuple[Device, ...] = ()
    notes: tuple[Note, ...] = ()
    totals: Totals | None = None
    """Where the file keeps sums in place of events: the events here are those sums."""

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end; 0 without events."""
        return int(self.events.end_ns.max()) if len(self.events) else 0

    def text(self, index: int) -> str:
        """The string at an index; -1 is the empty string."""
        return self.strings[index] if index >= 0 else ""

    def texts(self, indices: Int32) -> tuple[str, ...]:
        """The strings at many indices; those at -1 are empty."""
        # Index -1 is the last one.
        return tuple(map((*self.strings, "").__getitem__, indices.tolist()))

    def name(self, row: int) -> str:
        """An event's name."""
        return self.strings[int(self.events.name[row])]

    def rows(self, *kinds: EventKind) -> Int32:
        """Rows of the events of some kinds, in order of start."""
        by_kind = self.events.by_kind
        present = [by_kind[kind] for kind in kinds if len(by_kind[kind])] or [by_kind[kinds[0]]]
        if len(present) == 1:
            return present[0]
        rows: Int32 = np.concatenate(present)
        rows.sort()
        return rows

    def by_event(self, rows: Int32, values: NDArray[Any], default: int) -> NDArray[Any]:
        """A table's column spread over the events: shape (events,), `default` elsewhere.

        Args:
            rows: The table's `row` column.
            values: Another column of it.
            default: What unknown looks like in that column.
        """
        spread = np.full(len(self.events), default, dtype=values.dtype)
        spread[rows] = values
        return spread

    def operations(self, rows: Int32) -> Int32:
        """The XLA operation that each event executes: its row in `hlo`; -1 for none."""
        own: Int32 = self.by_event(self.hlo_events.row, self.hlo_events.op, -1)[rows]
        return own


class Run(Struct, frozen=True):
    """One capture: the traces of all its workers, in order of rank, then host."""

    id: str
    """Opaque and stable: derived from the paths of the files, reveals none."""
    name: str
    """What a person calls it: the run's directory relative to the logdir."""
    session: str
    traces: Sequence[Trace]
    """Of thousands of workers each is read when it is asked for (`LazyTraces`)."""
    notes: tuple[Note, ...] = field(default=())
    summaries: tuple[Any, ...] = ()
    """Of each trace, what was made of it when it was read (signals/rank_summary.py); or none."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the traces come from; reads none."""
        if isinstance(self.traces, LazyTraces):
            return self.traces.sources
        return tuple(trace.source for trace in self.traces)


class LazyTraces(Sequence[Trace]):
    """Traces that are read when they are asked for; the last few stay."""

    def __init__(
        self, sources: Sequence[Source], reads: Sequence[Callable[[], Trace]], kept: int = 2
    ) -> None:
        """Read none yet.

        Args:
            sources: Where each comes from; what a trace says of itself gives way to it.
            reads: Reads each.
            kept: How many stay in memory.
        """
        self.sources = tuple(sources)
        self._reads = tuple(reads)
        self._kept = kept
        self._last: OrderedDict[int, Trace] = OrderedDict()

    def __len__(self) -> int:
        """Number of traces."""
        return len(self.sources)

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Trace]: ...
    def __getitem__(self, index: int | slice) -> Trace | Sequence[Trace]:
        """A trace, read again unless it was among the last; a slice reads all of its own."""
        if isinstance(index, slice):
            return tuple(self[one] for one in range(*index.indices(len(self))))
        index = range(len(self))[index]
        if index not in self._last:
            trace = replace(self._reads[index](), source=self.sources[index])
            self._last[index] = trace
            if len(self._last) > self._kept:
                self._last.popitem(last=False)
        self._last.move_to_end(index)
        return self._last[index]
