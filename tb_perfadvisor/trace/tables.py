"""The columns of a trace. Every table is a frozen struct of read-only numpy arrays.

Times are integer nanoseconds from the trace's start. `row` columns hold rows of the
`EventTable`; columns that hold strings hold their index in `Trace.strings`. An unknown integer
is -1, an unknown float NaN.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Int8 = NDArray[np.int8]
UInt8 = NDArray[np.uint8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class EventTable(Struct, frozen=True, dict=True):
    """Everything that has a start and a duration, sorted by start, longest first on ties."""

    start_ns: Int64
    duration_ns: Int64
    kind: UInt8
    """`EventKind`."""
    name: Int32
    track: Int32
    """Row of the `TrackTable`."""
    parent: Int32
    """The event that encloses this one on the same track."""
    step: Int32
    """The number on a step marker; -1 elsewhere."""
    launched_by: Int32
    """The runtime call that enqueued this device event."""
    forward: Int32
    """The forward operator that this backward node belongs to."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)

    @cached_property
    def end_ns(self) -> Int64:
        """Shape (n,)."""
        end_ns = self.start_ns + self.duration_ns
        end_ns.setflags(write=False)
        return end_ns

    @cached_property
    def by_kind(self) -> tuple[Int32, ...]:
        """The rows of each kind, in order of start."""
        order = np.argsort(self.kind, kind="stable").astype(np.int32)
        order.setflags(write=False)
        ends = np.cumsum(np.bincount(self.kind, minlength=256))
        return tuple(np.split(order, ends[:-1]))


class KernelTable(Struct, frozen=True):
    """What is known of the `KERNEL` events (and of collectives that run as kernels)."""

    row: Int32
    family: UInt8
    """`KernelFamily`."""
    precision: UInt8
    """`Precision` by the kernel's own name or HLO; signals refine it by the operator."""
    tensor_cores: Int8
    """1 used, 0 not used, -1 unknown."""
    grid_blocks: Int64
    block_threads: Int32
    registers: Int32
    shared_memory_bytes: Int64
    occupancy_share: Float32


class CopyTable(Struct, frozen=True):
    """What is known of the `COPY` events."""

    row: Int32
    direction: UInt8
    """`CopyDirection`."""
    size_bytes: Int64
    pageable: Int8
    """1 from or to pageable host memory, 0 pinned, -1 unknown."""


class CollectiveTable(Struct, frozen=True):
    """What is known of the `COLLECTIVE` and `HOST_COLLECTIVE` events."""

    row: Int32
    operation: Int32
    """String: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, … or unknown."""
    size_bytes: Int64
    """The full buffer on one rank: the larger of input and output message."""
    sent_bytes: Int64
    """What this rank puts in; of an all-to-all, ranks may differ."""
    dtype: Int32
    group_size: Int32
    group: Int32
    sequence: Int64
    waiting_ns: Int64
    """What of its duration was waiting for others, where the recorder tells them apart."""


class MemoryTable(Struct, frozen=True):
    """Changes of allocated memory, in order of time."""

    at_ns: Int64
    device: Int32
    """Device index, -1 for the host's memory."""
    allocated_bytes: Int64
    """Allocated after this change; -1 where the file has no totals."""
    reserved_bytes: Int64
    bytes: Int64
    """The change: positive allocates."""
    address: Int64
    track: Int32
    """The host thread that made the change; -1 where the file does not tell."""


class OperatorTable(Struct, frozen=True):
    """What is known of `OPERATOR` events that carry more than a name."""

    row: Int32
    shapes: Int32
    """String: the input shapes as JSON, `[[8,128],[128,64]]`."""
    dtypes: Int32
    """String: the input types, separated by semicolons, as the framework names them."""
    values: Int32
    """String: the inputs that are no tensors, as a JSON list of texts with one for each input:
    `["","[1, 1]","False"]`."""
    frame: Int32
    """String: the Python frame or source line, where the file has it."""
    module: Int32
    """String: the module that the operator belongs to, where the file has it."""
    sequence: Int64
    """Autograd's sequence number."""


class IteratorTable(Struct, frozen=True):
    """What is known of calls of tf.data's iterators, and of the user functions that they run."""

    row: Int32
    iterator: Int64
    """Which iterator: the same for all its calls; an epoch makes new ones. 0 when unknown."""
    parent: Int64
    """The iterator that it feeds; 0 when unknown."""
    run: Int64
    """Of a user function: one number for its start and for all that executes it, else 0."""
    dataset: Int32
    """String: what made it and its number in the program, `MapDataset:9`."""
    shapes: Int32
    """String: shapes of an element's parts, `[?,32,32,3] [?]`."""
    types: Int32
    """String: their types, `float int64`."""
    parallelism: Int32
    """Calls of its function at a time."""
    is_autotuned: Int8
    """1 chosen by tf.data, 0 fixed by the program, -1 unknown."""
    batch_size: Int64
    buffer_size: Int64
    """Elements that its buffer may hold."""
    buffered: Int64
    """Elements in its buffer."""
    buffered_bytes: Int64
    cores: Int32
    """What the pipeline may use of the machine: on its root alone."""
    threads: Int32
    """Of the pipeline's own pool: on its root alone."""
    memory_bytes: Int64
    """What its buffers may take together: on its root alone."""


class HloTable(Struct, frozen=True):
    """One row per distinct XLA operation (not per execution)."""

    name: Int32
    category: Int32
    module: Int32
    text: Int32
    """String: the HLO text with shapes, layouts and tiles; -1 when the file has none."""
    flop: Float64
    """Per execution."""
    traffic_bytes: Float64
    """Per execution."""
    source_line: Int32
    """String: `file.py:37`."""
    path: Int32
    """String: what the framework calls it, `jit(step)/layer/dot_general`."""


class HloEventTable(Struct, frozen=True):
    """Which events are executions of which XLA operation."""

    row: Int32
    op: Int32
    """Row of the `HloTable`."""


class TrackTable(Struct, frozen=True):
    """The time lines."""

    kind: UInt8
    """`TrackKind`."""
    process: Int32
    thread: Int64
    device: Int32
    """Device index, -1 on the host."""
    label: Int32

    def __len__(self) -> int:
        """Number of tracks."""
        return len(self.kind)


COLUMN_TYPES: dict[str, Any] = {
    "UInt8": np.uint8,
    "Int8": np.int8,
    "Int32": np.int32,
    "Int64": np.int64,
    "Float32": np.float32,
    "Float64": np.float64,
}

Table = TypeVar(
    "Table",
    EventTable,
    KernelTable,
    CopyTable,
    CollectiveTable,
    MemoryTable,
    OperatorTable,
    IteratorTable,
    HloTable,
    HloEventTable,
    TrackTable,
)


def column_types(table: type[Any]) -> dict[str, Any]:
    """The numpy type of each column, in order."""
    return {name: COLUMN_TYPES[table.__annotations__[name]] for name in table.__struct_fields__}


def make_table(table: type[Table], columns: dict[str, Any]) -> Table:
    """Build a table from columns: cast to the declared types and made read-only.

    A column that says the same of all rows, as `repeated` makes it, stays one value.
    """
    arrays = {}
    for name, dtype in column_types(table).items():
        column = columns[name]
        array = (
            repeated(column[0], len(column), dtype)
            if is_repeated(column)
            else np.ascontiguousarray(column, dtype=dtype)
        )
        array.setflags(write=False)
        arrays[name] = array
    return table(**arrays)


def repeated(value: Any, count: int, dtype: Any) -> NDArray[Any]:
    """A read-only column that has one value in all rows and takes no memory for them."""
    column: NDArray[Any] = np.broadcast_to(np.asarray(value, dtype=dtype), (count,))
    return column


def is_repeated(column: Any) -> bool:
    """Whether a column is one that `repeated` made."""
    return isinstance(column, np.ndarray) and column.strides == (0,) and column.size > 1


def empty_table(table: type[Table]) -> Table:
    """A table without rows."""
    return make_table(table, dict.fromkeys(column_types(table), ()))
