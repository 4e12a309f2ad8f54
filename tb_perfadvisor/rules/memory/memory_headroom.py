"""A larger batch would fit and would speed up training."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series, memory_by_operator
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.device.memory_categories import batch_room
from tb_perfadvisor.signals.device.memory_use import alive_by_operator, memory_use
from tb_perfadvisor.signals.host.idle_owners import OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.launch.queue import launch_queue
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, total_ns, union
from tb_perfadvisor.units import format_bytes

_MOST_DOUBLINGS = 6


class MemoryHeadroom(Rule):
    """The device waits for launches while most of its memory is free.

    What it finds
    -------------
    A device that idles because the host launches work too slowly, with enough memory for a batch
    of at least twice the size.

    Why it matters
    --------------
    Launching costs the same for large and small batches. If it limits the step, a step with twice
    the batch does the work of two steps for the launches of one. Free memory alone is no reason
    for a larger batch.

    How it is measured
    ------------------
    Memory that was allocated during the profile grows with the batch; memory from before
    (parameters, optimizer state) does not. The saving is the part of the idle time during
    launches, framework and Python that a step no longer pays: half of it with twice the batch,
    which is expected. As in launch-bound, gaps of more than two milliseconds and what other rules
    report are left out, and so are operators that compute on the host, because a larger batch takes
    them longer. High uses the largest power of two that fits; low is 0. The device time per
    sample is assumed to stay the same.

    When to ignore
    --------------
    When the batch is what users ask for (serving one request at a time), or when a larger batch is
    known to hurt the model. CUDA graphs and compilation reduce the launches then.

    How to verify
    -------------
    Record with twice the batch: the step takes less than twice as long.

    References:
    ----------
    McCandlish et al., "An Empirical Model of Large-Batch Training"; NVIDIA, "Deep Learning
    Performance Guide: Choosing batch sizes".
    """

    id = "memory-headroom"
    title = "Use the free memory for a larger batch"
    category = "memory"
    needs = (
        Need.DEVICE_EVENTS,
        Need.LAUNCH_LINKS,
        Need.EVERY_LAUNCH,
        Need.STEPS,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
    )
    is_preview = False

    minimum_idle_share = Limit(
        0.2,
        "share",
        "A larger batch changes training, which is not worth it for less than 10 % of the step, "
        "half of the idle time.",
    )
    maximum_use_share = Limit(
        0.8, "share", "The remaining 20 % is for workspaces, fragmentation and longer inputs."
    )
    minimum_empty_share = Limit(
        0.5, "share", "If most launches find work queued, the host does not limit the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a larger batch would fit and pay."""
        memory, use = signals.memory, memory_use(signals)
        if memory is None or use is None or memory.capacity_bytes is None:
            return
        peak, before = memory.peak_allocated_bytes, use.preexisting_bytes(use.peak)
        if peak is None or before is None or peak <= before:
            return
        if (launch_queue(signals).empty_share or 0.0) < self.minimum_empty_share:
            return
        idle = _idle_of_launching(signals)
        idle_ns = total_ns(idle)
        if share_of_window(idle_ns, signals) < self.minimum_idle_share:
            return
        room = self.maximum_use_share * memory.capacity_bytes - before
        # Reserved but unallocated memory may be fragments that grow with the batch.
        held = max(peak, memory.peak_reserved_bytes or 0) - before
        factor = 1
        while factor < 2**_MOST_DOUBLINGS and 2 * factor * held <= room:
            factor *= 2
        if factor == 1:
            return
        grown = before + 2 * held
        activations = batch_room(signals)
        most = factor if activations is None else max(factor, activations.high)
        holders = alive_by_operator(signals, use, use.peak)
        yield Finding(
            instance=f"{format_bytes(memory.capacity_bytes - before - held)} is free",
            summary=(
                f"The device idles {per_step(idle_ns, signals)} because the host launches work too"
                f" slowly, and at most {format_bytes(before + held)} of"
                f" {format_bytes(memory.capacity_bytes)} of device memory is in use: a batch of"
                f" twice the size fits and halves the launches per sample.{_range(signals)}"
            ),
            saving=Saving(0, idle_ns // 2, round(idle_ns * (1 - 1 / most)), idle, "modeled"),
            evidence=(
                Table(
                    "Device memory",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("before the recording", before),
                        ("allocated or reserved since, at the peak", held),
                        ("with twice the batch", grown),
                        ("device memory", memory.capacity_bytes),
                    ),
                ),
                memory_by_operator("Alive at the peak", holders),
                allocated_memory_series(use),
            ),
            remedies=advise("larger-batch", "double-batch"),
        )


def _idle_of_launching(signals: Signals) -> Intervals:
    """Idle time that a larger batch does not lengthen: the host launches, and computes nothing."""
    short_gaps, _ = short_and_long_gaps(signals.attribution.idle, LONGEST_LAUNCH_GAP_NS)
    idle = intersect(
        signals.attribution.of(Cause.LAUNCHING, Cause.FRAMEWORK, Cause.PYTHON),
        intersect(short_gaps, idle_without(signals, *OVERRIDING, IdleOwner.SLOW_LAUNCH)),
    )
    events, rows = signals.trace.events, signals.placement.host_rows
    return minus(idle, union(events.start_ns[rows], events.end_ns[rows]))


def _range(signals: Signals) -> str:
    """How much larger a batch fits by what grows with it; empty if that is unknown."""
    room = batch_room(signals)
    if room is None or room.low < 1:
        return ""
    return (
        " Activations and temporary memory alone grow with it, so"
        f" {room.low:.1f} to {room.high:.1f} times the batch would fit."
    )
