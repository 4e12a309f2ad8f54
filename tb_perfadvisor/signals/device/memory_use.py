"""Memory of the device: its course, categories, programs and the allocator.

An allocation lives until the next change at its address. Memory whose allocation was not recorded
was allocated before the recording: parameters, optimizer state and so on.

Whether PyTorch's caching allocator keeps freed memory, by what the profile proves.

PyTorch asks the driver for large pieces of memory, cuts tensors from them, and keeps the pieces
when tensors are freed. It tells the profiler of each tensor. If the cache is off
(`PYTORCH_NO_CUDA_MEMORY_CACHING`), or the program installs an allocator of its own, each tensor is
a call to the driver, and the profiler hears of none.

Source: c10/cuda/CUDACachingAllocator.cpp, `forceUncachedAllocator`, `uncached_delete` and
`reportMemoryUsageToProfiler`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import (
    NEVER,
    Lives,
    MemoryCategory,
    Phase,
    categorize,
    gradient_bytes,
    held_by_category,
    name_earlier,
    sample_maxima,
)
from tb_perfadvisor.signals.core.origins import starting
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.nesting import outermost
from tb_perfadvisor.trace.tables import Int8, Int32, Int64

_BACKWARD = "autograd::engine::evaluate_function: "
"""Prefix of the name of each node (torch/csrc/autograd/engine.cpp)."""
_GRADIENTS = "gradient_tape/"
"""The name scope of tf.GradientTape (tensorflow/python/eager/backprop.py)."""
_OPTIMIZER = "Optimizer.step#"


class Allocations(Struct, frozen=True):
    """Single allocations; columns of shape (n,)."""

    bytes: Int64
    at_ns: Int64
    freed_ns: Int64
    """When it was freed; the largest int64 if never."""
    row: Int32
    """The innermost event on its thread around the allocation; -1 for none."""

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.bytes)

    @property
    def lives(self) -> Lives:
        """When they are alive."""
        return Lives(self.bytes, self.at_ns, self.freed_ns)

    def select(self, mask: NDArray[np.bool_]) -> Allocations:
        """The allocations that a mask selects; shape of the mask: (n,)."""
        return Allocations(self.bytes[mask], self.at_ns[mask], self.freed_ns[mask], self.row[mask])


class MemoryUse(Struct, frozen=True):
    """The memory of the busiest device, or of the host if there is no device."""

    device: int | None
    """None for the host."""
    at_ns: Int64
    """Time of each change; shape (changes,)."""
    allocated_bytes: Int64
    """Total after each change; relative to the start of the recording if `has_totals` is false."""
    reserved_bytes: Int64
    """Memory that the allocator reserves after each change; -1 if unknown."""
    has_totals: bool
    """Whether the file has totals."""
    allocations: Allocations | None
    """None if the file has no addresses."""

    @property
    def peak(self) -> int:
        """Index of the change after which the most memory is allocated."""
        return int(np.argmax(self.allocated_bytes))

    def alive_at(self, at_ns: int) -> Allocations | None:
        """Allocations alive at a time; None if the file has no addresses."""
        allocations = self.allocations
        if allocations is None:
            return None
        return allocations.select((allocations.at_ns <= at_ns) & (allocations.freed_ns > at_ns))

    def preexisting_bytes(self, at_change: int) -> int | None:
        """Memory after a change that was allocated before the recording; None if unknown."""
        alive = self.alive_at(int(self.at_ns[at_change])) if self.has_totals else None
        if alive is None:
            return None
        return max(int(self.allocated_bytes[at_change]) - int(alive.bytes.sum()), 0)

    def sample(self, count: int) -> NDArray[np.int64]:
        """Indexes of at most `count` changes for a chart: the first, the last and local maxima."""
        return sample_maxima(self.allocated_bytes, count)

    def allocated_at(self, times_ns: Int64) -> Int64:
        """Allocated bytes at some times, none of them before the first change; shape (n,)."""
        slot = last_before(self.at_ns, times_ns)
        allocated: Int64 = self.allocated_bytes[np.maximum(slot, 0)]
        return allocated


@memoized
def memory_use(signals: Signals) -> MemoryUse | None:
    """Memory of the device, or of the host; None if no change was recorded."""
    trace, device = signals.trace, signals.device.index
    table = trace.memory
    if device is None and signals.device.is_missing:
        return None
    entries = np.flatnonzero(table.device == (-1 if device is None else device))
    if len(entries) == 0:
        return None
    change, totals = table.bytes[entries], table.allocated_bytes[entries]
    # On the host, PyTorch counts only what was allocated since memory was first recorded
    # (c10/core/CPUAllocator.cpp, ProfiledCPUMemoryReporter).
    counts_all = device is not None or trace.source.framework != "pytorch"
    has_totals = counts_all and bool((totals >= 0).all())
    has_addresses = bool((table.address[entries] >= 0).all() and (change != 0).any())
    return MemoryUse(
        device=device,
        at_ns=table.at_ns[entries],
        allocated_bytes=totals if has_totals else np.cumsum(change),
        reserved_bytes=table.reserved_bytes[entries],
        has_totals=has_totals,
        allocations=_allocations(trace, entries) if has_addresses else None,
    )


def _allocations(trace: Trace, entries: NDArray[np.int64]) -> Allocations:
    """The allocations among some changes, each freed at the next change of its address.

    If an address is allocated twice in a row, the free between was not recorded.
    """
    table = trace.memory
    change, at, address = table.bytes[entries], table.at_ns[entries], table.address[entries]
    order = np.argsort(address, kind="stable")
    has_next = np.flatnonzero(address[order][1:] == address[order][:-1])
    freed = np.full(len(entries), NEVER, dtype=np.int64)
    freed[order[has_next]] = at[order[has_next + 1]]
    allocated = np.flatnonzero(change > 0)
    return Allocations(
        bytes=change[allocated],
        at_ns=at[allocated],
        freed_ns=freed[allocated],
        row=_enclosing(trace, table.track[entries][allocated], at[allocated]),
    )


def _enclosing(trace: Trace, track: Int32, at_ns: Int64) -> Int32:
    """The innermost event on each track around each time; -1 for none; shape (n,)."""
    events = trace.events
    enclosing = np.full(len(at_ns), -1, dtype=np.int32)
    rows_by_track = dict(places_by_value(events.track))
    for number, on_track in places_by_value(track):
        rows = rows_by_track.get(number)
        if rows is None:
            continue
        slot = last_before(events.start_ns[rows], at_ns[on_track])
        enclosing[on_track] = np.where(slot >= 0, rows[np.maximum(slot, 0)], -1)
    end = events.end_ns
    # If the last event to begin is over, an event around it may still be open.
    climbing = np.flatnonzero((enclosing >= 0) & (end[enclosing] < at_ns))
    while climbing.size:
        enclosing[climbing] = events.parent[enclosing[climbing]]
        climbing = climbing[enclosing[climbing] >= 0]
        climbing = climbing[end[enclosing[climbing]] < at_ns[climbing]]
    return enclosing


def _outermost_operators(trace: Trace, rows: Int32) -> Int32:
    """The outermost operator at or around each event; -1 for none; shape (n,)."""
    events = trace.events
    found = outermost(events.parent, events.kind == EventKind.OPERATOR)
    return np.where(rows >= 0, found[rows], -1).astype(np.int32)


def _phases(trace: Trace, rows: Int32) -> Int8:
    """The code of the `Phase` of each event; -1 is none; shape (n,)."""
    events, operator = trace.events, _outermost_operators(trace, rows)
    marks = np.full(len(events), -1, dtype=np.int8)
    marks[events.kind == EventKind.INPUT_WAIT] = Phase.INPUT.code
    marks[is_in(events.name, starting(trace, _OPTIMIZER))] = Phase.OPTIMIZER.code
    is_backward = is_in(events.name, _in_gradient_tape(trace))
    is_backward |= is_in(events.name, starting(trace, _BACKWARD))
    marks[is_backward] = Phase.BACKWARD.code
    phases = np.where(operator >= 0, Phase.FORWARD.code, Phase.OTHER.code).astype(np.int8)
    marked = np.where(rows >= 0, outermost(events.parent, marks >= 0)[rows], -1)
    phases[marked >= 0] = marks[marked[marked >= 0]]
    return phases


def _in_gradient_tape(trace: Trace) -> list[int]:
    return [index for index, text in enumerate(trace.strings) if _GRADIENTS in text]


class Holder(Struct, frozen=True):
    """Memory that one operator allocated in one module and phase."""

    operator: str
    """Empty if unknown."""
    module: str
    """Empty if unknown."""
    phase: Phase
    count: int | None
    """Number of allocations; None for memory from before the recording."""
    bytes: int


def alive_by_operator(signals: Signals, use: MemoryUse, at_change: int) -> tuple[Holder, ...]:
    """Memory allocated after a change, by operator, largest first; empty without addresses."""
    alive = use.alive_at(int(use.at_ns[at_change]))
    if alive is None:
        return ()
    holders = list(by_operator(signals, alive))
    preexisting_bytes = use.preexisting_bytes(at_change)
    if preexisting_bytes:
        holders.append(Holder("", "", Phase.BEFORE, None, preexisting_bytes))
    return tuple(sorted(holders, key=lambda holder: -holder.bytes))


def by_operator(signals: Signals, allocations: Allocations) -> tuple[Holder, ...]:
    """Allocations summed by operator, module and phase, in no order."""
    trace, rows = signals.trace, allocations.row
    origins = signals.origins
    operator = _outermost_operators(trace, rows)
    name = np.where(operator >= 0, trace.events.name[operator], -1)
    module = np.where(rows >= 0, origins.module[rows], -1)
    keys, inverse, count = np.unique(
        np.stack((name, module, _phases(trace, rows))),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    total = np.bincount(inverse.ravel(), weights=allocations.bytes, minlength=keys.shape[1])
    phases, module_names = list(Phase), (*origins.names, "")
    return tuple(
        Holder(trace.text(text), module_names[module], phases[phase], allocations, int(size_bytes))
        for text, module, phase, allocations, size_bytes in zip(
            *keys.tolist(), count.tolist(), total.tolist(), strict=True
        )
    )


def leaked_memory(signals: Signals, use: MemoryUse) -> Allocations:
    """What steps before the last one allocated and the last one has not freed."""
    steps, allocations = signals.steps, use.allocations
    if allocations is None:
        none = np.empty(0, dtype=np.int64)
        return Allocations(none, none, none, none.astype(np.int32))
    # The first step may allocate what every program keeps, such as state and gradients.
    inside = (allocations.at_ns >= steps.host_start_ns[1]) & (
        allocations.at_ns < steps.host_start_ns[-1]
    )
    return allocations.select(inside & (allocations.freed_ns > steps.host_end_ns[-1]))


ROOM_SHARE: Final = 0.9
"""Of the capacity. Fragmentation and workspaces commonly take the last 10 %."""


class MemoryCategories(Struct, frozen=True):
    """What the memory of the peak holds, and how it grows with the batch."""

    at_peak: dict[MemoryCategory, int]
    """Bytes, without categories of 0; they add up to what is allocated at the peak, without what is
    unknown from before the recording."""
    with_batch_bytes: int
    """The part that grows with the batch: activations, input and temporary memory."""
    fixed_bytes: int | None
    """The rest; None if memory from before the recording is unknown."""
    of_each: Int8
    """The code of each of the recorded allocations."""
    trained_bytes: int
    """Of what is from before the recording, the parameters that have gradients."""


class BatchRoom(Struct, frozen=True):
    """How many times as large a batch fits into the device's memory."""

    low: float
    high: float


@memoized
def memory_categories(signals: Signals) -> MemoryCategories | None:
    """Categories at the peak; None unless PyTorch's training steps and addresses were recorded.

    Gradients that are kept from step to step are from before the recording, and nothing tells them
    from parameters and optimizer state.
    """
    use = memory_use(signals)
    if use is None or use.allocations is None or signals.trace.source.framework != "pytorch":
        return None
    starts = _starts(signals)
    if starts is None:
        return None
    lives = use.allocations.lives
    of_each = categorize(lives, _phases(signals.trace, use.allocations.row), *starts)
    trained = gradient_bytes(lives, of_each, starts[1])
    peak = use.at_ns[[use.peak]]
    earlier = use.preexisting_bytes(use.peak)
    held = held_by_category(lives, of_each, peak)
    growing = (MemoryCategory.ACTIVATIONS, MemoryCategory.INPUT, MemoryCategory.TEMPORARY)
    with_batch = sum(int(held[name][0]) for name in growing)
    if earlier is not None and trained > earlier:
        trained = 0
    held = name_earlier(held, np.array([earlier or 0]), trained)
    fixed = None if earlier is None else int(use.allocated_bytes[use.peak]) - with_batch
    at_peak = {name: int(size[0]) for name, size in held.items()}
    return MemoryCategories(at_peak, with_batch, fixed, of_each, trained)


def categories_at(signals: Signals, times_ns: Int64) -> dict[MemoryCategory, Int64]:
    """Bytes of each category at some times, none of them before the first change; shape (n,).

    They add up to what is allocated, without what is unknown from before the recording. Categories
    without memory are left out; empty if categories are unknown.
    """
    use, categories = memory_use(signals), memory_categories(signals)
    if use is None or use.allocations is None or categories is None:
        return {}
    held = held_by_category(use.allocations.lives, categories.of_each, times_ns)
    earlier = np.zeros(len(times_ns), dtype=np.int64)
    if use.has_totals:
        earlier = np.maximum(use.allocated_at(times_ns) - np.sum(list(held.values()), axis=0), 0)
    return name_earlier(held, earlier, categories.trained_bytes)


def phase_starts(signals: Signals) -> list[tuple[int, Phase]]:
    """When the passes of each step begin, in order of time; empty unless all are recorded."""
    starts = _starts(signals)
    if starts is None:
        return []
    begins = (signals.steps.host_start_ns, *starts)
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    return sorted(
        ((ns, phase) for times, phase in zip(begins, phases, strict=True) for ns in times.tolist()),
        key=lambda start: start[0],
    )


@memoized
def batch_room(signals: Signals) -> BatchRoom | None:
    """How much larger a batch may be; None if activations, the rest or the capacity are unknown.

    High is what fits if only activations, input and temporary memory grow. Low also lets grow what
    the allocator has reserved beyond the peak: fragments, and workspaces that it keeps.
    """
    categories, memory = memory_categories(signals), signals.memory
    if categories is None or categories.fixed_bytes is None or memory is None:
        return None
    if not memory.capacity_bytes or not memory.peak_allocated_bytes:
        return None
    room = ROOM_SHARE * memory.capacity_bytes - categories.fixed_bytes
    growing = categories.with_batch_bytes
    if MemoryCategory.ACTIVATIONS not in categories.at_peak or growing <= 0:
        return None
    kept = max((memory.peak_reserved_bytes or 0) - memory.peak_allocated_bytes, 0)
    return BatchRoom(room / (growing + kept), room / growing)


@memoized
def peak_by_step(signals: Signals) -> Int64 | None:
    """The most memory that is allocated in each used step; None if no change was recorded."""
    use, steps = memory_use(signals), signals.steps
    if use is None or not len(steps):
        return None
    first = np.searchsorted(use.at_ns, steps.host_start_ns)
    last = np.searchsorted(use.at_ns, steps.host_end_ns)
    return np.array(
        [
            # A step without a change keeps what was allocated before it.
            int(use.allocated_bytes[max(begin - 1, 0) : max(end, begin, 1)].max())
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def _starts(signals: Signals) -> tuple[Int64, Int64] | None:
    """When backward passes and optimizer steps begin; None if either is missing."""
    events = signals.trace.events
    optimizer = _named(signals, ("Optimizer.step#",))
    backward = _named(signals, ("autograd::engine::evaluate_function: ",))
    if not len(optimizer) or not len(backward):
        return None
    optimizer_ns, node_ns = events.start_ns[optimizer], events.start_ns[backward]
    # The first node after each optimizer step begins a backward pass.
    passes = np.searchsorted(optimizer_ns, node_ns)
    _, first = np.unique(passes, return_index=True)
    return node_ns[first], optimizer_ns


def _named(signals: Signals, prefixes: tuple[str, ...]) -> NDArray[np.int64]:
    trace = signals.trace
    is_host = trace.events.kind != EventKind.DEVICE_ANNOTATION
    return np.flatnonzero(is_in(trace.events.name, starting(trace, *prefixes)) & is_host)


_OPTIMIZER_STATE = regex(
    r"(?:^|\W)(?:opt_state|opt_states|optimizer_state|optimizer|mu|nu|momentum|velocity)(?:\W|$)"
)
"""Names in Flax's TrainState, T5X, MaxText and the states of optax."""
_PARAMETERS = regex(r"(?:^|\W)(?:params?|parameters)(?:\W|$)")
_OTHER = "other arguments"


class MemoryPart(Struct, frozen=True):
    """Memory of one kind."""

    label: str
    bytes: int


class ProgramMemoryUse(Struct, frozen=True):
    """The memory of a program."""

    module: str
    parts: tuple[MemoryPart, ...]
    """They add up to all of it. None is empty."""
    total_bytes: int


@memoized
def program_memory(signals: Signals) -> ProgramMemoryUse | None:
    """The memory of the program that takes most; None if the profile shows none."""
    largest = max(signals.trace.program_memory, key=lambda memory: memory.total_bytes, default=None)
    if largest is None:
        return None
    parts: dict[str, int] = {}
    for name, size in largest.arguments:
        label = _label(name)
        parts[label] = parts.get(label, 0) + size
    if parts.keys() == {_OTHER}:
        parts = {"arguments": parts[_OTHER]}
    parts |= {
        "results": largest.result_bytes,
        "temporaries": largest.temporary_bytes,
        "constants": largest.constant_bytes,
    }
    found = tuple(MemoryPart(label, size) for label, size in parts.items() if size)
    return ProgramMemoryUse(largest.module, found, largest.total_bytes)


def _label(argument: str) -> str:
    """What an argument is, by its name. States of optimizers have the names of parameters, too."""
    if _OPTIMIZER_STATE.search(argument):
        return "optimizer state"
    return "parameters" if _PARAMETERS.search(argument) else _OTHER


_DRIVER_CALL = regex(r"^(?:(?:cuda|hip)Malloc|cuMemAlloc(?:_v2)?)$")
_EMPTIES = regex(r"empty_cache|emptyCache")
_ALLOCATING = ("aten::empty", "aten::empty_strided")
"""They allocate one tensor each, on the device or on the host."""
_NEARLY_ALL = 0.9
"""Some of the operators may allocate on the host."""
_FEWEST_OPERATORS = 20


class Caching(Enum):
    """What becomes of freed device memory."""

    OFF = "off"
    """It goes back to the driver, tensor by tensor."""
    EMPTIED = "emptied"
    """It is kept, and then given back all at once."""
    UNKNOWN = "unknown"


class AllocatorUse(Struct, frozen=True):
    """How the program allocates device memory."""

    caching: Caching
    evidence: str = ""
    """Proof that caching is off, as the end of a sentence."""


@memoized
def allocator_use(signals: Signals) -> AllocatorUse:
    """What the profile proves about PyTorch's caching allocator."""
    if signals.trace.source.framework != "pytorch":
        return AllocatorUse(Caching.UNKNOWN)
    if _is_emptied(signals):
        return AllocatorUse(Caching.EMPTIED)
    calls = _driver_calls(signals)
    if not len(calls):
        return AllocatorUse(Caching.UNKNOWN)
    memory = signals.trace.memory
    if len(memory.at_ns) and not (memory.device >= 0).any():
        changes = f"{len(memory.at_ns):,} changes of memory on the host and none on the device"
        return AllocatorUse(Caching.OFF, f"it reported {changes}")
    operators = _allocating_operators(signals)
    direct = int(is_in(operators, signals.trace.events.parent[calls]).sum())
    if len(operators) >= _FEWEST_OPERATORS and direct >= _NEARLY_ALL * len(operators):
        share = "all" if direct == len(operators) else f"{direct:,} of"
        return AllocatorUse(
            Caching.OFF, f"{share} {len(operators):,} calls of aten::empty ask the driver"
        )
    return AllocatorUse(Caching.UNKNOWN)


def _is_emptied(signals: Signals) -> bool:
    """Whether the steps empty the cache: by name, or because less memory is reserved after it."""
    trace, window = signals.trace, signals.attribution
    named = [index for index, text in enumerate(trace.strings) if _EMPTIES.search(text)]
    calls = trace.rows(EventKind.PYTHON, EventKind.OPERATOR, EventKind.ANNOTATION)
    if is_in(trace.events.name[_in_window(signals, calls)], named).any():
        return True
    memory = trace.memory
    inside = (memory.at_ns >= window.window_start_ns) & (memory.at_ns < window.window_end_ns)
    inside &= (memory.device == signals.device.index) & (memory.reserved_bytes >= 0)
    return bool((np.diff(memory.reserved_bytes[inside]) < 0).any())


def _driver_calls(signals: Signals) -> Int32:
    """The calls in the steps that get device memory from the driver."""
    trace = signals.trace
    rows = _in_window(signals, trace.rows(EventKind.ALLOCATE))
    return rows[named(trace, rows, _DRIVER_CALL)]


def _allocating_operators(signals: Signals) -> Int32:
    trace = signals.trace
    rows = _in_window(signals, trace.rows(EventKind.OPERATOR))
    names = [trace.strings.index(name) for name in _ALLOCATING if name in trace.strings]
    return rows[is_in(trace.events.name[rows], names)]


def _in_window(signals: Signals, rows: Int32) -> Int32:
    start_ns, window = signals.trace.events.start_ns[rows], signals.attribution
    inside: Int32 = rows[(start_ns >= window.window_start_ns) & (start_ns < window.window_end_ns)]
    return inside
