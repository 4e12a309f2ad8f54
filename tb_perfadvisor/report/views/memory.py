"""Memory over time, and what was alive at the peak."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.memory_use import alive_by_operator, memory_use

MAX_POINTS = 1_000
MAX_HOLDERS = 50


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True):
    """What is alive at the peak and was asked for by one operator of one module and phase."""

    operator: str | None
    """The outermost operator around the allocation; None where none is known."""
    module: str | None
    phase: str
    """before-recording, input, forward, backward, optimizer or other."""
    count: int | None
    """None of what was there before the recording."""
    bytes: int


class MemoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the reference worker's busiest device, or of its host without a device."""

    device: int | None
    """None is the host's memory."""
    is_relative: bool
    """Counted from the recording's start, before which more may have been allocated."""
    changes: int
    """In the profile; of each stretch between two points the highest is among the points."""
    at_ns: list[int]
    allocated_bytes: list[int]
    reserved_bytes: list[int] | None
    """What the allocator holds, of which it gives out the allocated."""
    capacity_bytes: int | None
    peak_at_ns: int
    step: list[int]
    """The used steps' numbers."""
    step_end_ns: list[int]
    step_end_bytes: list[int]
    """What is allocated when each ends."""
    alive: list[MemoryHolder]
    """At the peak, the largest first; empty where the profile does not tell."""
    alive_truncated: int
    """How many are not listed."""


def make_memory_view(signals: Signals) -> MemoryView | None:
    """The course of memory; None where no change of it was recorded."""
    use = memory_use(signals)
    if use is None:
        return None
    picks, steps, facts = use.sample(MAX_POINTS), signals.steps, signals.device_facts
    reserved = use.reserved_bytes[picks]
    holders = alive_by_operator(signals, use, use.peak)
    return MemoryView(
        device=use.device,
        is_relative=not use.has_totals,
        changes=len(use.at_ns),
        at_ns=use.at_ns[picks].tolist(),
        allocated_bytes=use.allocated_bytes[picks].tolist(),
        # An allocator without a pool of its own writes 0.
        reserved_bytes=reserved.tolist() if (reserved > 0).all() else None,
        capacity_bytes=facts.memory_bytes if facts is not None else None,
        peak_at_ns=int(use.at_ns[use.peak]),
        step=steps.number.tolist(),
        step_end_ns=steps.end_ns.tolist(),
        step_end_bytes=use.at_times(steps.end_ns).tolist(),
        alive=[
            MemoryHolder(
                operator=one.operator or None,
                module=one.module or None,
                phase=one.phase.value,
                count=one.count,
                bytes=one.bytes,
            )
            for one in holders[:MAX_HOLDERS]
        ],
        alive_truncated=max(len(holders) - MAX_HOLDERS, 0),
    )
