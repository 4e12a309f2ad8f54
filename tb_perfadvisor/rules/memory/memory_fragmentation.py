"""The allocator holds much more memory than is ever in use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Series, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import MemoryUse, memory_use
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.units import format_bytes, format_share

_REMEDIES = (
    Remedy(
        text="Let the allocator grow its segments in place, so that free pieces join.",
        snippet="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        language="bash",
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-"
        "pytorch-cuda-alloc-conf",
    ),
    Remedy(
        text="Make sizes repeat: pad batches to a few lengths and drop the last, smaller batch, so "
        "that a block which one step frees fits what the next step asks for.",
        snippet=(
            "length = 64 * math.ceil(max(map(len, batch)) / 64)\n"
            "loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, drop_last=True)"
        ),
        framework="pytorch",
    ),
)


class MemoryFragmentation(Rule):
    """Much of the device's memory is held by the allocator and never used at one time.

    What it finds
    -------------
    Reserved memory far above the most that is allocated at any time, on a device that is getting
    full; and reservations that were made while more than they asked for lay free in pieces.

    Why it matters
    --------------
    Memory in pieces serves no large request: the program runs out of memory while gigabytes are
    free, and before that the allocator frees and asks the driver anew, which waits for the
    device.

    How it is measured
    ------------------
    The largest reserved total of PyTorch's caching allocator less the largest allocated total.
    Where the reserved total rose although more lay free than it rose by, pieces are proven to be
    the cause; otherwise it may be an earlier, higher peak, of an evaluation for instance, whose
    memory the allocator keeps. It carries no saving: it is a risk.

    When to ignore
    --------------
    When an evaluation or another model of the same process uses that memory in turn.

    How to verify
    -------------
    Record again with memory profiling: reserved memory is close to the allocated peak.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    id = "memory-fragmentation"
    title = "Keep free memory in one piece"
    category = "memory"
    needs = (Need.DEVICE_EVENTS, Need.MEMORY, Need.MEMORY_CAPACITY)
    is_preview = True

    minimum_unused_share = Limit(
        0.2, "share", "A caching allocator needs some slack: up to a fifth of what the device has."
    )
    minimum_reserved_share = Limit(
        0.7, "share", "While a third of the device is free nobody misses what the allocator holds."
    )
    critical_share = Limit(
        0.9, "share", "With nine tenths reserved the next large request has to be freed for."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when much is held in vain."""
        memory, use = signals.memory, memory_use(signals)
        if memory is None or use is None or memory.capacity_bytes is None or not use.has_totals:
            return
        reserved, capacity = int(use.reserved_bytes.max()), memory.capacity_bytes
        allocated = int(use.allocated_bytes[use.peak])
        unused = reserved - allocated
        if unused < self.minimum_unused_share * capacity:
            return
        if reserved < self.minimum_reserved_share * capacity:
            return
        in_pieces = _reserved_in_vain(use)
        why = (
            f"{format_bytes(in_pieces)} of it was reserved while more than that lay free in pieces"
            if in_pieces
            else "in pieces, or kept from an earlier peak"
        )
        yield Finding(
            summary=(
                f"{format_bytes(unused)} of {format_bytes(capacity)}"
                f" ({format_share(unused / capacity)}) is reserved and never used at the same time"
                f" as the rest: {why}."
            ),
            severity="high" if reserved >= self.critical_share * capacity else "medium",
            evidence=(
                Table(
                    "Device memory",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("largest reserved", reserved),
                        ("largest allocated", allocated),
                        ("reserved while as much lay free", in_pieces),
                        ("on the device", capacity),
                    ),
                ),
                allocated_memory_series(use),
                _reserved(use),
            ),
            remedies=_REMEDIES,
        )


def _reserved_in_vain(use: MemoryUse) -> int:
    """How much was reserved anew while more than that was reserved and free."""
    rise = np.diff(use.reserved_bytes)
    free = use.reserved_bytes[:-1] - use.allocated_bytes[:-1]
    return int(rise[(rise > 0) & (free > rise)].sum())


def _reserved(use: MemoryUse) -> Series:
    places = np.flatnonzero(np.diff(use.reserved_bytes, prepend=-1))
    places = distinct(np.append(places, len(use.at_ns) - 1))[-400:]
    points = zip(use.at_ns[places].tolist(), use.reserved_bytes[places].tolist(), strict=True)
    return Series("Reserved memory", "ns", "bytes", tuple((float(x), float(y)) for x, y in points))
