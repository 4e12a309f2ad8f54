"""Whether PyTorch's caching allocator keeps freed memory, by what the profile proves.

PyTorch asks the driver for large pieces of memory, cuts tensors from them, and keeps the pieces
when tensors are freed. It tells the profiler of each tensor. If the cache is off
(`PYTORCH_NO_CUDA_MEMORY_CACHING`), or the program installs an allocator of its own, each tensor is
a call to the driver, and the profiler hears of none.

Source: c10/cuda/CUDACachingAllocator.cpp, `forceUncachedAllocator`, `uncached_delete` and
`reportMemoryUsageToProfiler`.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_DRIVER_CALL = re.compile(r"(?:cuda|hip)Malloc$|cuMemAlloc(?:_v2)?$")
_EMPTIES = re.compile(r"empty_cache|emptyCache")
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
    names = trace.events.name[rows]
    wanted = [name for name in distinct(names).tolist() if _DRIVER_CALL.match(trace.strings[name])]
    return rows[is_in(names, wanted)]


def _allocating_operators(signals: Signals) -> Int32:
    trace = signals.trace
    rows = _in_window(signals, trace.rows(EventKind.OPERATOR))
    names = [trace.strings.index(name) for name in _ALLOCATING if name in trace.strings]
    return rows[is_in(trace.events.name[rows], names)]


def _in_window(signals: Signals, rows: Int32) -> Int32:
    start_ns, window = signals.trace.events.start_ns[rows], signals.attribution
    inside: Int32 = rows[(start_ns >= window.window_start_ns) & (start_ns < window.window_end_ns)]
    return inside
