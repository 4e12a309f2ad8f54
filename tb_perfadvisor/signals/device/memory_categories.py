"""What memory holds in training: gradients, activations, optimizer state and so on.

PyTorch's allocator records who allocates and when, not what for. The life of an allocation tells:
gradients are allocated in the backward pass and alive when the optimizer starts, activations are
allocated in the forward pass and alive when the backward pass starts.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.device.memory_use import Allocations, memory_use, phases_of
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.tables import Int64

ROOM_SHARE: Final = 0.9
"""Of the capacity. Fragmentation and workspaces commonly take the last 10 %."""


class MemoryCategory(Enum):
    """What memory is for."""

    PARAMETERS = "parameters"
    """Those that are trained: as large as their gradients, which have the same shapes and types."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer-state"
    """Allocated by the optimizer while it was recorded. Earlier state is `EARLIER`."""
    ACTIVATIONS = "activations"
    INPUT = "input"
    TEMPORARY = "temporary"
    """Freed in the part of the step that allocated it."""
    EARLIER = "earlier"
    """Other memory from before the recording: optimizer state, frozen parameters, buffers, and
    parameters and gradients where gradients are kept from step to step."""
    UNKNOWN = "unknown"


_CATEGORIES: Final = tuple(MemoryCategory)


class MemoryCategories(Struct, frozen=True):
    """What the memory of the peak holds, and how it grows with the batch."""

    at_peak: dict[MemoryCategory, int]
    """Bytes, without categories of 0; they add up to what is allocated at the peak, without what is
    unknown from before the recording."""
    with_batch_bytes: int
    """The part that grows with the batch: activations, input and temporary memory."""
    fixed_bytes: int | None
    """The rest; None if memory from before the recording is unknown."""


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
    category = _category_of_each(signals, use.allocations, *starts)
    gradients = _gradient_bytes(use.allocations, category, starts[1])
    peak_ns = int(use.at_ns[use.peak])
    alive = (use.allocations.at_ns <= peak_ns) & (use.allocations.freed_ns > peak_ns)
    total = np.bincount(
        category[alive], weights=use.allocations.bytes[alive], minlength=len(_CATEGORIES)
    ).astype(np.int64)
    held = dict(zip(_CATEGORIES, total.tolist(), strict=True))
    growing = (MemoryCategory.ACTIVATIONS, MemoryCategory.INPUT, MemoryCategory.TEMPORARY)
    with_batch = sum(held[name] for name in growing)
    earlier = use.preexisting_bytes(use.peak)
    if earlier is not None:
        parameters = gradients if gradients <= earlier else 0
        held[MemoryCategory.PARAMETERS] = parameters
        held[MemoryCategory.EARLIER] = earlier - parameters
    fixed = None if earlier is None else int(use.allocated_bytes[use.peak]) - with_batch
    return MemoryCategories({name: size for name, size in held.items() if size}, with_batch, fixed)


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
def forward_device_ns(signals: Signals) -> int:
    """Device work that the forward passes of the used window launch, without copies."""
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.KERNEL]
    phase = phases_of(trace, operators_of(signals, rows))
    return int(trace.events.duration_ns[rows[phase == "forward"]].sum())


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
    names = [index for index, text in enumerate(trace.strings) if text.startswith(prefixes)]
    is_host = trace.events.kind != EventKind.DEVICE_ANNOTATION
    return np.flatnonzero(np.isin(trace.events.name, names) & is_host)


def _category_of_each(
    signals: Signals, allocations: Allocations, backward_ns: Int64, optimizer_ns: Int64
) -> NDArray[np.int64]:
    """Index into `MemoryCategory` of each allocation; shape (n,)."""
    phase = phases_of(signals.trace, allocations.row)

    def is_alive_at_next(starts_ns: Int64) -> NDArray[np.bool_]:
        following = np.searchsorted(starts_ns, allocations.at_ns, "right")
        begins = np.append(starts_ns, np.iinfo(np.int64).max)[following]
        return allocations.freed_ns > begins

    def is_freed(before_ns: Int64) -> NDArray[np.bool_]:
        """Freed before the next of some moments, or at all."""
        return ~is_alive_at_next(before_ns) & (allocations.freed_ns < np.iinfo(np.int64).max)

    code = {name: index for index, name in enumerate(_CATEGORIES)}
    found = np.full(len(allocations), code[MemoryCategory.UNKNOWN], dtype=np.int64)
    for name, later, starts_ns in (
        ("forward", MemoryCategory.ACTIVATIONS, backward_ns),
        ("backward", MemoryCategory.GRADIENTS, optimizer_ns),
        ("optimizer", MemoryCategory.OPTIMIZER_STATE, backward_ns),
    ):
        is_in = phase == name
        found[is_in & is_freed(starts_ns)] = code[MemoryCategory.TEMPORARY]
        found[is_in & is_alive_at_next(starts_ns)] = code[later]
    # State that the last recorded optimizer step allocates outlives the recording.
    is_kept = (phase == "optimizer") & (allocations.freed_ns == np.iinfo(np.int64).max)
    found[is_kept] = code[MemoryCategory.OPTIMIZER_STATE]
    found[phase == "input"] = code[MemoryCategory.INPUT]
    return found


def _gradient_bytes(
    allocations: Allocations, category: NDArray[np.int64], optimizer_ns: Int64
) -> int:
    """Gradients alive when an optimizer step starts: the median over the recorded steps."""
    is_gradient = category == _CATEGORIES.index(MemoryCategory.GRADIENTS)
    at, freed = allocations.at_ns[is_gradient], allocations.freed_ns[is_gradient]
    size = allocations.bytes[is_gradient]
    alive = [int(size[(at <= start) & (freed > start)].sum()) for start in optimizer_ns.tolist()]
    return int(np.median(alive))
