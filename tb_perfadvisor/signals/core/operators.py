"""The operators of a trace, their shapes, and the calls around them."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import group_rows, is_in, unique_inverse
from tb_perfadvisor.trace.nesting import depths, nearest
from tb_perfadvisor.trace.tables import Int8, Int32, Int64


class OperatorTotals(Struct, frozen=True):
    """Executions in the used window, by name, shapes and types; columns of shape (n,)."""

    name: Int32
    """Index of the string."""
    shapes: Int32
    """Index of the string with the input shapes as JSON; -1 if they were not recorded."""
    dtypes: Int32
    """Index of the string with the input types; -1 if they were not recorded."""
    count: Int64
    """Executions that start in the window."""
    self_ns: Int64
    """Time on the host without the operators inside."""
    device_ns: Int64
    """Time in the window of the device work that it launched, without inner operators."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.name)


def operator_totals(
    trace: Trace,
    launching_operator: Int32,
    device_rows: Int32,
    is_used: NDArray[np.bool_],
) -> OperatorTotals:
    """Operators of the used steps without those of the input pipeline.

    `launching_operator` has the innermost operator around each event, shape (events,).
    """
    events, table = trace.events, trace.operators
    rows = trace.rows(EventKind.OPERATOR)
    is_input = is_in(events.kind, (EventKind.INPUT_WAIT, EventKind.INPUT_WORK))
    rows = rows[~has_ancestor(events.parent, rows, is_input)]
    self_ns = operator_self_ns(trace, rows, launching_operator)
    is_inside = is_used[rows]
    device_ns = launched_ns(trace, launching_operator, device_rows)[rows]
    kept = is_inside | (device_ns > 0)
    rows, self_ns, device_ns = rows[kept], np.where(is_inside, self_ns, 0)[kept], device_ns[kept]
    shapes = trace.by_event(table.row, table.shapes, -1)[rows]
    dtypes = trace.by_event(table.row, table.dtypes, -1)[rows]
    first, group = group_rows(events.name[rows], shapes, dtypes)
    return OperatorTotals(
        name=events.name[rows][first],
        shapes=shapes[first],
        dtypes=dtypes[first],
        count=_summed(group, is_inside[kept], len(first)),
        self_ns=_summed(group, self_ns, len(first)),
        device_ns=_summed(group, device_ns, len(first)),
    )


def launched_ns(trace: Trace, launching_operator: Int32, device_rows: Int32) -> Int64:
    """For each event, the time of the device work that it launched; shape (events,).

    The work counts for the innermost operator around its launch, `launching_operator` of shape
    (events,).
    """
    events = trace.events
    launch = events.launched_by[device_rows]
    launcher = np.where(launch >= 0, launching_operator[launch], -1)
    counts = launcher >= 0
    device_ns: Int64 = np.bincount(
        launcher[counts],
        weights=events.duration_ns[device_rows[counts]],
        minlength=len(events),
    ).astype(np.int64)
    return device_ns


def operator_self_ns(trace: Trace, rows: Int32, launching_operator: Int32) -> Int64:
    """Durations of operators without those of their direct inner operators."""
    events = trace.events
    inner = trace.rows(EventKind.OPERATOR)
    parent = events.parent[inner]
    around = np.where(parent >= 0, launching_operator[parent], -1)
    inside = np.bincount(
        around[around >= 0],
        weights=events.duration_ns[inner][around >= 0],
        minlength=len(events),
    ).astype(np.int64)
    self_ns: Int64 = np.maximum(events.duration_ns[rows] - inside[rows], 0)
    return self_ns


def _summed(group: Int64, values: Int64 | NDArray[np.bool_], size: int) -> Int64:
    # Exact: float64 holds integers up to 2^53 ns, 104 days of work.
    total: Int64 = np.bincount(group, weights=values, minlength=size).astype(np.int64)
    return total


Shape = tuple[int, ...]
_MOST_ELEMENTS = 2**48
"""More elements than any machine's memory holds: such sizes are damaged, and products of them would
not fit into 64 bits."""


@lru_cache(maxsize=16_384)  # layers repeat, and so do steps
def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes of the inputs by position; the empty shape for inputs that are not arrays."""
    try:
        inputs = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(map(_shape, inputs)) if isinstance(inputs, list) else ()


def _shape(value: object) -> Shape:
    return tuple(value) if isinstance(value, list) and is_shape(value) else ()


def is_shape(sizes: list[Any]) -> bool:
    """Whether a list contains only sizes, of a tensor that can exist."""
    if not set(map(type, sizes)) <= {int} or min(sizes, default=0) < 0:
        return False
    return bool(prod(size or 1 for size in sizes) < _MOST_ELEMENTS)


def shapes_of(trace: Trace, operators: Int32) -> Int32:
    """Index of the string with each operator's shapes; -1 if they were not recorded."""
    table = trace.operators
    if not len(table.row):
        return np.full(len(operators), -1, dtype=np.int32)
    slot = np.minimum(np.searchsorted(table.row, operators), len(table.row) - 1)
    return np.where(table.row[slot] == operators, table.shapes[slot], np.int32(-1))


def largest_input(trace: Trace, operators: Int32) -> Int64:
    """Number of elements in each operator's largest input; 0 if unknown."""
    texts, inverse = unique_inverse(shapes_of(trace, operators))
    sizes = [
        max((prod(shape) for shape in parse_shapes(trace.text(text)) if shape), default=0)
        for text in texts.tolist()
    ]
    return np.array(sizes, dtype=np.int64)[inverse]


def launching_operator(trace: Trace) -> Int32:
    """For each event, the innermost operator around it on its thread; shape (events,).

    An operator counts as being inside itself. -1 if no operator encloses the event.
    """
    kind = trace.events.kind
    is_operator = (kind == EventKind.OPERATOR) | (kind == EventKind.CAPTURED_OPERATOR)
    return nearest(trace.events.parent, is_operator)


def work_operators(trace: Trace, launching_operator: Int32, rows: Int32) -> Int32:
    """The innermost operator whose work each device event does; -1 if unknown; shape (rows,).

    That is the operator around its launch. For work of a replayed GPU graph, whose launch is the
    replay of the whole graph, it is the one that put the work into the graph, if that was recorded.

    `launching_operator` has the innermost operator around each event, shape (events,).
    """
    launch = trace.events.launched_by[rows]
    operators = np.where(launch >= 0, launching_operator[launch], np.int32(-1))
    table = trace.captured
    if not len(table.row):
        return operators
    captured = trace.by_event(table.row, table.operator, -1)[rows]
    return np.where(captured >= 0, captured, operators)


class CallNodes(Struct, frozen=True):
    """Nodes, callers before what they call; columns of shape (n,)."""

    parent: Int64
    """The node of the caller; -1 at the top."""
    name: Int64
    count: Int64
    self_ns: Int64
    """Without the calls inside."""
    total_ns: Int64
    example: Int64
    """The first call of the node."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.parent)


def fold_calls(parent: Int64, name: Int32 | Int64, self_ns: Int64) -> tuple[CallNodes, Int64]:
    """Fold calls into nodes, and return the node of each call, too.

    `parent` is the call around each one, or -1; calls of a node have the same `name`. Columns have
    shape (calls,).
    """
    node = np.full(parent.size, -1, dtype=np.int64)
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if parent.size else []
    parents: list[Int64] = []
    examples: list[Int64] = []
    found = 0
    for calls in levels:
        caller = np.where(parent[calls] >= 0, node[parent[calls]], -1)
        first, group = group_rows(caller, name[calls])
        node[calls] = found + group
        parents.append(caller[first])
        examples.append(calls[first])
        found += first.size
    none = np.zeros(0, dtype=np.int64)
    parent_of_node = np.concatenate([none, *parents])
    example = np.concatenate([none, *examples])
    own_ns = np.zeros(found, dtype=np.int64)
    np.add.at(own_ns, node, self_ns)
    total_ns = own_ns.copy()
    last = found
    for nodes in reversed(parents):
        places = np.arange(last - nodes.size, last)
        last -= nodes.size
        below = nodes >= 0
        np.add.at(total_ns, nodes[below], total_ns[places[below]])
    folded = CallNodes(
        parent=parent_of_node,
        name=name[example].astype(np.int64),
        count=np.bincount(node, minlength=found),
        self_ns=own_ns,
        total_ns=total_ns,
        example=example,
    )
    return folded, node


# PyTorch's allocator records who allocates and when, not what for. The life of an allocation tells:
# gradients are allocated in the backward pass and alive when the optimizer starts, activations are
# allocated in the forward pass and alive when the backward pass starts. Lives are told in moments,
# integers that rise: nanoseconds of a profile, or states of a snapshot.

NEVER: Final = np.iinfo(np.int64).max


class Memory(Struct, frozen=True):
    """Allocated memory of one device; fields are None if the file has no totals."""

    at_ns: Int64
    """Shape (changes,)."""
    allocated_bytes: Int64
    """Allocated after each change; -1 if unknown."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None


def sample_maxima(values: Int64, count: int) -> Int64:
    """Indexes of at most `count` values for a chart: the first, the last and local maxima."""
    total = len(values)
    if total <= count:
        return np.arange(total)
    first = np.linspace(1, total - 1, count - 1).astype(np.int64)
    highest = [
        begin + int(np.argmax(values[begin:end]))
        for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
    ]
    return np.array([0, *highest, total - 1], dtype=np.int64)


def find_memory(trace: Trace, device: int | None, capacity_bytes: int | None) -> Memory | None:
    """The memory of a device; None if the trace has no memory events of it."""
    if device is None:
        return None
    if trace.totals is not None:
        peak = trace.totals.peak_allocated_bytes
        none = np.empty(0, dtype=np.int64)
        return None if peak is None else Memory(none, none, peak, None, capacity_bytes)
    table = trace.memory
    on_device = table.device == device
    if not on_device.any():
        return None
    allocated, reserved = table.allocated_bytes[on_device], table.reserved_bytes[on_device]
    has_totals = bool((allocated >= 0).any())
    has_reserved = bool((reserved > 0).any())
    return Memory(
        at_ns=table.at_ns[on_device],
        allocated_bytes=allocated,
        peak_allocated_bytes=int(allocated.max()) if has_totals else None,
        peak_reserved_bytes=int(reserved.max()) if has_reserved else None,
        capacity_bytes=capacity_bytes,
    )


class Phase(Enum):
    """The part of a step in which memory was allocated."""

    BEFORE = "before-recording"
    INPUT = "input"
    FORWARD = "forward"
    """By an operator outside of the other phases."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    """By no recorded operator."""

    @property
    def code(self) -> int:
        """Its number in columns."""
        return _PHASES.index(self)


_PHASES: Final = tuple(Phase)


class MemoryCategory(Enum):
    """What memory is for."""

    PARAMETERS = "parameters"
    """What functions allocated that build, load or move a model; without their stacks, as much as
    there are gradients, which have the same shapes and types."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer-state"
    """Allocated by the optimizer while it was recorded. Earlier state is `EARLIER`, unless the
    sizes of what a snapshot holds tell it."""
    ACTIVATIONS = "activations"
    INPUT = "input"
    TEMPORARY = "temporary"
    """Freed in the part of the step that allocated it."""
    EARLIER = "earlier"
    """Other memory from before the recording: optimizer state, frozen parameters, buffers, and
    parameters and gradients where gradients are kept from step to step."""
    UNKNOWN = "unknown"

    @property
    def code(self) -> int:
        """Its number in columns."""
        return _CATEGORIES.index(self)


_CATEGORIES: Final = tuple(MemoryCategory)


class Lives(Struct, frozen=True):
    """Allocations from their beginning to their end; columns of shape (n,)."""

    bytes: Int64
    since: Int64
    until: Int64
    """The first moment in which it is no longer allocated; `NEVER` if it stays."""


def categorize(lives: Lives, phase: Int8, backward: Int64, optimizer: Int64) -> Int8:
    """The code of the `MemoryCategory` of each allocation; shape (n,).

    `phase` is the code of the `Phase` that allocated each. The others are the moments before the
    first event of each backward pass, and of each of the optimizer's steps, in order.
    """
    found = np.full(len(lives.bytes), MemoryCategory.UNKNOWN.code, dtype=np.int8)
    for name, later, starts in (
        (Phase.FORWARD, MemoryCategory.ACTIVATIONS, backward),
        (Phase.BACKWARD, MemoryCategory.GRADIENTS, optimizer),
        (Phase.OPTIMIZER, MemoryCategory.OPTIMIZER_STATE, backward),
    ):
        is_in, is_alive = phase == name.code, lives.until > _next(starts, lives.since)
        found[is_in & ~is_alive & (lives.until < NEVER)] = MemoryCategory.TEMPORARY.code
        found[is_in & is_alive] = later.code
    # The step after the backward pass ends what activations are for. What is alive in the next
    # backward pass, too, is something that the program keeps.
    stepped = _next(optimizer, _next(backward, lives.since))
    is_kept = lives.until > _next(backward, stepped)
    is_kept |= (lives.until == NEVER) & (stepped < NEVER)
    found[is_kept & (phase == Phase.FORWARD.code)] = MemoryCategory.UNKNOWN.code
    # State that the last recorded optimizer step allocates outlives the recording.
    is_state = (phase == Phase.OPTIMIZER.code) & (lives.until == NEVER)
    found[is_state] = MemoryCategory.OPTIMIZER_STATE.code
    found[phase == Phase.INPUT.code] = MemoryCategory.INPUT.code
    return found


def _next(starts: Int64, moments: Int64) -> Int64:
    """The first start at or after each moment; `NEVER` without one; shape (n,)."""
    following: Int64 = np.append(starts, NEVER)[np.searchsorted(starts, moments)]
    return following


def gradient_bytes(lives: Lives, category: Int8, optimizer: Int64) -> int:
    """Gradients alive when an optimizer step starts: the median over the recorded steps."""
    is_gradient = category == MemoryCategory.GRADIENTS.code
    if not len(optimizer) or not is_gradient.any():
        return 0
    return int(np.median(_held(lives, is_gradient, optimizer)))


def held_by_category(lives: Lives, category: Int8, moments: Int64) -> dict[MemoryCategory, Int64]:
    """Bytes of each category at some moments; shape (moments,)."""
    return {name: _held(lives, category == name.code, moments) for name in MemoryCategory}


def _held(lives: Lives, chosen: NDArray[np.bool_], moments: Int64) -> Int64:
    rows = np.flatnonzero(chosen)

    def until_then(changes: Int64) -> Int64:
        order = rows[np.argsort(changes[rows], kind="stable")]
        total = np.append(0, np.cumsum(lives.bytes[order]))
        return total[np.searchsorted(changes[order], moments, "right")]

    return until_then(lives.since) - until_then(lives.until)


def name_earlier(
    held: dict[MemoryCategory, Int64], earlier: Int64, parameters: int, state: int = 0
) -> dict[MemoryCategory, Int64]:
    """Add memory from before the recording, of which some is known to be of two categories.

    Parameters and optimizer state stay from step to step. Categories without memory are left out.
    """
    named = dict(held)
    for category, size in (
        (MemoryCategory.PARAMETERS, parameters),
        (MemoryCategory.OPTIMIZER_STATE, state),
    ):
        part = np.minimum(earlier, size)
        named[category] = named[category] + part
        earlier = earlier - part
    named[MemoryCategory.EARLIER] = earlier
    return {category: size for category, size in named.items() if size.any()}
