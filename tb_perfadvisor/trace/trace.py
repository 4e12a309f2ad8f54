"""`Trace` is the recording of one rank or host; `Run` holds the traces of one capture."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import UNKNOWN, Facts, RunTimers
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace.columns import TableLookup
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.memory_snapshot import MemorySnapshot
from tb_perfadvisor.trace.program import Program, ProgramMemory
from tb_perfadvisor.trace.rank_summary import RankSummary
from tb_perfadvisor.trace.recorded_totals import Totals
from tb_perfadvisor.trace.soundness import SOUND, Soundness
from tb_perfadvisor.trace.tables import (
    CapturedTable,
    CollectiveTable,
    CopyTable,
    CounterTable,
    EventTable,
    HloEventTable,
    HloTable,
    Int32,
    IteratorTable,
    KernelTable,
    LaunchTable,
    MemoryTable,
    OperatorTable,
    TrackTable,
    empty_table,
)

Framework = Literal["pytorch", "tensorflow", "jax", "none", "unknown"]


class Source(Struct, frozen=True):
    """Where a trace comes from and what it was recorded with.

    The `has_*` flags are None if the file does not say.
    """

    path: str
    """The path to show to users: relative to the logdir, with forward slashes."""
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
    """Wall-clock time at time 0 of the trace."""
    backend: str = ""
    """Communication library: nccl, gloo, …; empty if unknown."""
    has_shapes: bool | None = None
    has_stacks: bool | None = None
    has_memory: bool | None = None
    recorded_calls_share: float | None = None
    """The part of the calls of the device's runtime that the file has; None if it does not say."""
    named_by: str = ""
    """The path of the rich recording that shapes and lines were taken from; empty for none."""
    is_synthetic: bool = False


class Device(Struct, frozen=True):
    """An accelerator as the file describes it; None if unknown.

    The `reported_*` peaks are stated by the file. The device signal looks up peaks in the hardware
    table, by the name or else by the other properties.
    """

    index: int
    name: str
    """Empty if the file has no name."""
    kind: Literal["gpu", "tpu", "other"]
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    vendor: str = ""
    """`nvidia` or `amd`; empty if unknown."""
    compute_capability: str = ""
    """As in `9.4`; AMD's runtime derives one from the gfx target."""
    clock_hz: float | None = None
    """The highest clock of the multiprocessors."""
    reported_flop_per_s: float | None = None
    """Dense 16-bit peak."""
    reported_bandwidth_bytes_per_s: float | None = None
    matrix_unit_use: float | None = None
    """Utilization of the matrix units by hardware counters, over the whole profile."""


class Trace(Struct, frozen=True):
    """The recording of one rank or host. Immutable; built by `Assembler`."""

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
    launches: LaunchTable = empty_table(LaunchTable)
    captured: CapturedTable = empty_table(CapturedTable)
    counters: CounterTable = empty_table(CounterTable)
    devices: tuple[Device, ...] = ()
    notes: tuple[Note, ...] = ()
    totals: Totals | None = None
    """Set if the file holds sums instead of events; the events are made from those sums."""
    compile_log: CompileLog | None = None
    """Set if the file is a log of torch.compile; the events are the compiler's phases."""
    program_memory: tuple[ProgramMemory, ...] = ()
    """Of XLA programs that ran, as far as the file tells."""
    lookups: tuple[TableLookup, ...] = ()
    """In XLA programs, as far as the file tells."""
    programs: tuple[Program, ...] = ()
    """What the XLA programs compute that ran on a TPU, as far as the file tells."""
    snapshot: MemorySnapshot | None = None
    """The memory snapshot of the same process. A trace that has nothing else has no events."""
    facts: Facts = UNKNOWN
    """What the recorder knew of the machine and the program; all unknown of other recorders."""
    soundness: Soundness = SOUND
    """What checks against physics found; a trace that was not checked is taken for sound."""

    @property
    def is_snapshot_only(self) -> bool:
        """Whether there is a memory snapshot and nothing else."""
        return self.snapshot is not None and len(self.events) == 0

    @property
    def duration_ns(self) -> int:
        """Time from the first start to the last end; 0 without events."""
        return int(self.events.end_ns.max()) if len(self.events) else 0

    def text(self, index: int) -> str:
        """The string at an index; empty for -1."""
        return self.strings[index] if index >= 0 else ""

    def texts(self, indices: Int32) -> tuple[str, ...]:
        """The strings at many indices; empty for -1."""
        strings = self.strings
        return tuple([strings[index] if index >= 0 else "" for index in indices.tolist()])

    def is_any_of(self, indices: Int32, *texts: str) -> NDArray[np.bool_]:
        """Which of many indices are those of some strings; shape as given."""
        return is_in(indices, [at for at, text in enumerate(self.strings) if text in texts])

    def name(self, row: int) -> str:
        """An event's name."""
        return self.strings[int(self.events.name[row])]

    def rows(self, *kinds: EventKind) -> Int32:
        """Rows of the events of the given kinds, in order of start."""
        by_kind = self.events.by_kind
        present = [by_kind[kind] for kind in kinds if len(by_kind[kind])] or [by_kind[kinds[0]]]
        if len(present) == 1:
            return present[0]
        rows: Int32 = np.concatenate(present)
        rows.sort(kind="stable")  # merges what is in order, in a tenth of the default's time
        return rows

    def by_event(self, rows: Int32, values: NDArray[Any], default: int) -> NDArray[Any]:
        """Expand a column of an attribute table to all events; shape (events,).

        `rows` is the table's `row` column, and `values` another one. Events that are not in the
        table have the default.
        """
        expanded = np.full(len(self.events), default, dtype=values.dtype)
        expanded[rows.astype(np.intp, copy=False)] = values  # see `row_mask`
        return expanded

    def operations(self, rows: Int32) -> Int32:
        """The row in `hlo` of the XLA operation that each event executes; -1 for none."""
        operations: Int32 = self.by_event(self.hlo_events.row, self.hlo_events.op, -1)[rows]
        return operations


class Run(Struct, frozen=True):
    """One capture: the traces of all its ranks or hosts, in order of rank, then host."""

    id: str
    """Opaque and stable: a hash of the file paths."""
    name: str
    """Name for users: the run's directory relative to the logdir."""
    session: str
    traces: Sequence[Trace]
    """With thousands of ranks, each trace is read on access (`LazyTraces`)."""
    notes: tuple[Note, ...] = field(default=())
    summaries: tuple[RankSummary, ...] = ()
    """The summary of each trace, if they were made when the traces were read."""
    compile_logs: tuple[CompileLog, ...] = ()
    """The logs of torch.compile that lie beside the profile."""
    timers: tuple[RunTimers, ...] = ()
    """What was measured of the whole run without a trace, by rank."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the traces, without reading them."""
        if isinstance(self.traces, LazyTraces):
            return self.traces.sources
        return tuple(trace.source for trace in self.traces)


class LazyTraces(Sequence[Trace]):
    """Traces that are read on access; the most recently used ones stay in memory."""

    def __init__(
        self, sources: Sequence[Source], reads: Sequence[Callable[[], Trace]], kept: int = 2
    ) -> None:
        """Create the sequence without reading anything; at most `kept` traces stay in memory.

        `sources` replace those that reading finds.
        """
        self.sources = tuple(sources)
        self._reads = tuple(reads)
        self._kept = kept
        self._recent: OrderedDict[int, Trace] = OrderedDict()

    def __len__(self) -> int:
        """Number of traces."""
        return len(self.sources)

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Trace]: ...
    def __getitem__(self, index: int | slice) -> Trace | Sequence[Trace]:
        """A trace, read unless it is in memory; a slice reads all its traces."""
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        index = range(len(self))[index]
        if index not in self._recent:
            trace = replace(self._reads[index](), source=self.sources[index])
            self._recent[index] = trace
            if len(self._recent) > self._kept:
                self._recent.popitem(last=False)
        self._recent.move_to_end(index)
        return self._recent[index]
