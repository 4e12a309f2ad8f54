"""The tables of a trace: frozen structs of read-only numpy arrays.

Times are integer nanoseconds from the start of the trace. A `row` column holds rows of the
`EventTable`; string columns hold indices into `Trace.strings`. Unknown integers are -1, unknown
floats NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace.intervals import Intervals, union

Int8 = NDArray[np.int8]
UInt8 = NDArray[np.uint8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class EventTable(Struct, frozen=True, dict=True):
    """All events, sorted by start, longest first on ties."""

    start_ns: Int64
    duration_ns: Int64
    kind: UInt8
    """`EventKind`."""
    name: Int32
    track: Int32
    """Row of the `TrackTable`."""
    parent: Int32
    """Row of the event that encloses this one on the same track."""
    step: Int32
    """The number of a step marker; -1 for other events."""
    launched_by: Int32
    """Row of the runtime call that enqueued this device event."""
    forward: Int32
    """Row of the forward operator that this backward node belongs to."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)

    @cached_property
    def end_ns(self) -> Int64:
        """Shape (n,)."""
        end_ns = self.start_ns + self.duration_ns
        end_ns.setflags(write=False)
        return end_ns

    def spans(self, rows: NDArray[Any]) -> Intervals:
        """When any of some events runs; `rows` may be a mask."""
        # NumPy takes twice as long by 32-bit rows.
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.intp, copy=False)
        return union(self.start_ns.take(rows), self.end_ns.take(rows))

    @cached_property
    def by_kind(self) -> tuple[Int32, ...]:
        """The rows of each kind, in order of start."""
        order = np.argsort(self.kind, kind="stable").astype(np.int32)
        order.setflags(write=False)
        ends = np.cumsum(np.bincount(self.kind, minlength=64)).tolist()
        # `numpy.split` takes ten times as long for the rows of a small file.
        return tuple(order[low:high] for low, high in pairwise([0, *ends]))


class KernelTable(Struct, frozen=True):
    """Attributes of `KERNEL` events, and of collectives that run as kernels."""

    row: Int32
    family: UInt8
    """`KernelFamily`."""
    precision: UInt8
    """`Precision` according to the kernel's name or HLO; signals refine it by the operator."""
    tensor_cores: Int8
    """1 used, 0 not used, -1 unknown."""
    grid_blocks: Int64
    block_threads: Int32
    registers: Int32
    shared_memory_bytes: Int64
    occupancy_share: Float32


class LaunchTable(Struct, frozen=True):
    """Attributes of `LAUNCH` events, as far as the runtime states them; ROCm's does."""

    row: Int32
    kernel: Int32
    """String: the kernel's name."""


class CapturedTable(Struct, frozen=True):
    """Device events of replayed GPU graphs whose capture was recorded."""

    row: Int32
    operator: Int32
    """Row of the innermost operator that put this work into the graph."""


class CopyTable(Struct, frozen=True):
    """Attributes of `COPY` events."""

    row: Int32
    direction: UInt8
    """`CopyDirection`."""
    size_bytes: Int64
    pageable: Int8
    """1 if the host memory is pageable, 0 if it is pinned, -1 unknown."""


class CollectiveTable(Struct, frozen=True):
    """Attributes of `COLLECTIVE` and `HOST_COLLECTIVE` events."""

    row: Int32
    operation: Int32
    """String: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, … or unknown."""
    size_bytes: Int64
    """Size of the full buffer on one rank: the larger of the input and output message."""
    sent_bytes: Int64
    """Size of this rank's input; ranks may differ in an all-to-all."""
    dtype: Int32
    group_size: Int32
    group: Int32
    neighbors: Int32
    """Members next to each in a torus: two along each axis of the mesh that the group spans, one
    along an axis of two; -1 if unknown."""
    description: Int32
    """String: what the program calls the group, such as `mesh_tp`; `default_pg` is all ranks. In
    XLA programs, the axes of the mesh that the group spans, such as `data,fsdp`."""
    ranks: Int32
    """String: the group's ranks as the file lists them, such as `[0, 1]`; in XLA programs, all
    groups: `{{0,1},{2,3}}`."""
    sequence: Int64
    waiting_ns: Int64
    """The part of the duration spent waiting for other ranks, if the recorder separates it."""


class MemoryTable(Struct, frozen=True):
    """Allocations and frees, in order of time."""

    at_ns: Int64
    device: Int32
    """Device index, -1 for the host's memory."""
    allocated_bytes: Int64
    """Total allocated after this change; -1 if the file has no totals."""
    reserved_bytes: Int64
    bytes: Int64
    """The change: positive for an allocation, negative for a free."""
    address: Int64
    track: Int32
    """The host thread that made the change; -1 if the file does not say."""


class CounterTable(Struct, frozen=True):
    """What counters of the device's hardware measured from one moment to another, in order of time.

    A counter is sampled whatever runs, so that a sample covers all kernels of its time.
    """

    at_ns: Int64
    """When the sample began. It ends with the next one of the same counter."""
    device: Int32
    metric: Int32
    """String: the counter's name, such as `sm__warps_active.avg.pct_of_peak_sustained_active`."""
    value: Float64


class OperatorTable(Struct, frozen=True):
    """Attributes of `OPERATOR` events that have more than a name."""

    row: Int32
    shapes: Int32
    """String: the input shapes as JSON, such as `[[8,128],[128,64]]`."""
    dtypes: Int32
    """String: the input types, separated by semicolons, as the framework names them."""
    values: Int32
    """String: the non-tensor inputs as a JSON list with one text per input, such as
    `["","[1, 1]","False"]`."""
    frame: Int32
    """String: the Python frame or source line, if the file has it."""
    module: Int32
    """String: the module that the operator belongs to, if the file has it."""
    sequence: Int64
    """Autograd's sequence number."""


class IteratorTable(Struct, frozen=True):
    """Attributes of tf.data iterator calls and of the user functions that they run."""

    row: Int32
    iterator: Int64
    """Identifies the iterator in all its calls; each epoch creates new ones. 0 if unknown."""
    parent: Int64
    """The iterator that consumes its elements; 0 if unknown."""
    run: Int64
    """Identifies one run of a user function in all its events; 0 for other calls."""
    dataset: Int32
    """String: the dataset and its number in the program, such as `MapDataset:9`."""
    shapes: Int32
    """String: the shapes of an element's components, such as `[?,32,32,3] [?]`."""
    types: Int32
    """String: the types of an element's components, such as `float int64`."""
    parallelism: Int32
    """Number of parallel calls of its function."""
    is_autotuned: Int8
    """1 if tf.data chooses the parallelism, 0 if the program fixes it, -1 unknown."""
    batch_size: Int64
    buffer_size: Int64
    """Capacity of its buffer, in elements."""
    buffered: Int64
    """Elements in its buffer at this call."""
    buffered_bytes: Int64
    cores: Int32
    """CPU budget of the pipeline; only on its root."""
    threads: Int32
    """Size of the pipeline's own thread pool; only on its root."""
    memory_bytes: Int64
    """Memory budget of all buffers of the pipeline; only on its root."""


class HloTable(Struct, frozen=True):
    """Distinct XLA operations, not their executions."""

    name: Int32
    category: Int32
    module: Int32
    text: Int32
    """String: the HLO text with shapes, layouts and tiles; -1 if the file has none."""
    flop: Float64
    """Per execution."""
    traffic_bytes: Float64
    """Per execution, of the device's memory where the file tells the memories apart."""
    source_line: Int32
    """String, such as `file.py:37`."""
    path: Int32
    """String: the framework's name of it, such as `jit(step)/layer/dot_general`."""
    inside_opcodes: Int32
    """String: opcodes inside a fusion, separated by spaces; -1 if unknown. Readers look only into
    fusions that take much time."""
    inside_paths: Int32
    """String: framework names inside a fusion, separated by newlines; -1 if unknown."""
    inside_elements: Int64
    """Elements of the largest array that is computed inside a fusion; -1 if unknown."""
    product: Int32
    """String: HLO text of the matrix product or convolution inside a fusion; -1 if unknown."""
    transposed: Int8
    """1 if a copy is there because the program transposes an argument or a result, 0 if it has
    another reason, -1 if unknown."""
    before_loop: Int8
    """1 if an operation in a loop depends on nothing that a trip changes but the counter, so that
    it could run before the loop; 0 if not, -1 if unknown."""


class HloEventTable(Struct, frozen=True):
    """Links events to the XLA operations that they execute."""

    row: Int32
    op: Int32
    """Row of the `HloTable`."""


class TrackTable(Struct, frozen=True):
    """Host threads, device streams and derived device lines."""

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
    LaunchTable,
    CapturedTable,
    CopyTable,
    CounterTable,
    CollectiveTable,
    MemoryTable,
    OperatorTable,
    IteratorTable,
    HloTable,
    HloEventTable,
    TrackTable,
)


@cache
def column_types(table: type[Struct]) -> Mapping[str, Any]:
    """The numpy type of each column of a table, in order."""
    return {name: COLUMN_TYPES[table.__annotations__[name]] for name in table.__struct_fields__}


def make_table(table: type[Table], columns: dict[str, Any]) -> Table:
    """Build a table from columns: cast them to the declared types and make them read-only.

    A column made by `repeated` keeps its single value in memory.
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
    """A read-only column with the same value in all rows, stored once."""
    # `np.broadcast_to` does the same and takes ten times as long, which counts for small tables.
    column: NDArray[Any] = np.ndarray((count,), dtype, np.asarray(value, dtype), strides=(0,))
    column.setflags(write=False)
    return column


def is_repeated(column: Any) -> bool:
    """Whether a column stores a single value for all rows, as `repeated` does."""
    return isinstance(column, np.ndarray) and column.strides == (0,) and column.size > 1


def empty_table(table: type[Table]) -> Table:
    """A table without rows."""
    return table(**_empty_columns(table))


@cache
def _empty_columns(table: type[Struct]) -> Mapping[str, NDArray[Any]]:
    return {name: repeated(0, 0, dtype) for name, dtype in column_types(table).items()}
