"""Activations that are recomputed although there is memory to keep them."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Events, Finding, Saving, Table
from tb_perfadvisor.rules.savings.at_best import at_best_also
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_categories import ROOM_SHARE
from tb_perfadvisor.signals.device.recomputation import (
    Recomputation,
    recomputation,
    recomputed_bytes,
)
from tb_perfadvisor.signals.program.written_bytes import most_occupied_bytes
from tb_perfadvisor.signals.tpu.partial_recomputation import partial_recomputation
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("less-checkpointing", "selective-checkpointing")


class Recompute(Rule):
    """The backward pass recomputes activations while device memory is free.

    What it finds
    -------------
    Forward operators that run inside autograd nodes, as activation checkpointing does, and XLA
    operations that `jax.checkpoint` or XLA itself repeats, on a device with plenty of unused memory
    at the peak, or unknown memory, or on the CPU.

    Why it matters
    --------------
    Checkpointing trades compute, up to a third of a step, for memory. If memory is left over, the
    compute buys nothing. The memory of a host holds many times what that of a device does, and its
    arithmetic is slower.

    How it is measured
    ------------------
    The time in which the device only recomputes; where the profile allows it, the steps are
    replayed without it.

    If single allocations were recorded, the memory that recomputed operators allocate and leave to
    the gradients is what it takes to keep all activations. As much of it is kept as fits into 90 %
    of the device's memory: all of it, or that of every second, third or fourth block. Expected is
    the time that these blocks take, low is half of that, high is what fits to the byte.

    If only totals were recorded, and at most 60 % of the memory is used, high is all of the time,
    expected is half, and low is 0.

    On a TPU, fusions of the backward pass also recompute. High includes their time beyond that of
    their matrix product, by the share of what is inside that is recomputed.

    If memory was not recorded, but XLA's program and a short step show that all arguments and all
    that a step writes fit into 90 % of the device's memory, so does every activation: expected and
    high are all of the time, and low is half.

    Otherwise, the finding states the duration of the recomputed work that the
    used steps launched. Expected is a quarter of it: half of what is expected if memory is free,
    since memory may be full. Even then, part of it can go, because the results of cheap
    operators take most of the memory that recomputing saves, and costly ones most of the time.

    On the CPU, expected leaves 10 % of the time of the repeated operations, low a half, and high
    nothing: activations are written and read instead.

    When to ignore
    --------------
    When memory is free only in the profiled steps and other batches are longer, or when the free
    memory is reserved for a larger batch.

    How to verify
    -------------
    The step gets shorter, and peak memory stays below 90 % of the device's memory.

    References:
    ----------
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); Korthikanti et al.,
    "Reducing Activation Recomputation in Large Transformer Models" (2022); PyTorch documentation,
    `torch.utils.checkpoint`; JAX documentation, "Gradient checkpointing".
    """

    id = "recompute"
    title = "Keep activations instead of recomputing them"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.ORIGINS)
    needs_on_cpu = (Need.WORK, Need.XLA_OPERATIONS)
    is_preview = False

    minimum_share = Limit(
        0.04, "share", "Half of a smaller share is no more than the variation between steps."
    )
    maximum_memory = Limit(
        0.6,
        "share",
        "If it is unknown what the activations need: with less than 40 percent of the memory "
        "free, few of them would fit.",
    )
    maximum_blocks = Limit(
        4, "count", "If not even every fourth block fits, little is gained for a tight memory."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when much is recomputed and much memory is or may be free."""
        recomputed, memory = recomputation(signals), signals.memory
        if signals.device.is_host_only:
            yield from self._on_the_cpu(signals, recomputed)
            return
        peak = None if memory is None else memory.peak_allocated_bytes or memory.peak_reserved_bytes
        if memory is None or peak is None or not memory.capacity_bytes:
            yield from self._without_memory(signals, recomputed)
            return
        if not len(recomputed.rows):
            return
        # Memory that is reserved but not allocated is available for activations.
        room = ROOM_SHARE * memory.capacity_bytes - peak
        needed = recomputed_bytes(signals)
        if needed:
            blocks = max(ceil(needed / room), 1) if room > 0 else self.maximum_blocks + 1
            if blocks > self.maximum_blocks:
                return
            saving = _saving_of_blocks(signals, recomputed, int(blocks), min(room / needed, 1.0))
            advice = f" Keeping all of them takes {format_bytes(needed)}{_HOW_MANY[int(blocks)]}."
        else:
            if peak > self.maximum_memory * memory.capacity_bytes:
                return
            half_ns = signals.trace.events.duration_ns[recomputed.rows] // 2
            saving = faster_device_work(signals, recomputed.rows, half_ns, basis="heuristic")
            advice = ""
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        evidence = _evidence(signals, recomputed, saving.claims)
        saving = at_best_also(signals, saving, *partial_recomputation(signals))
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into recomputing activations, although"
                f" {format_bytes(memory.capacity_bytes - peak)} of device memory"
                f" ({format_share(1 - peak / memory.capacity_bytes)}) is never used.{advice}"
            ),
            saving=saving,
            evidence=evidence,
            remedies=advise(*_ADVICE),
        )

    def _on_the_cpu(self, signals: Signals, recomputed: Recomputation) -> Iterable[Finding]:
        """Keep everything: a host has room for it."""
        now_ns = signals.trace.events.duration_ns[recomputed.rows]
        saving = faster_device_work(
            signals,
            recomputed.rows,
            now_ns // 10,
            basis="modeled",
            least_then_ns=np.zeros_like(now_ns),
            most_then_ns=now_ns // 2,
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into recomputing activations, which"
                " the host's memory could hold."
            ),
            saving=saving,
            evidence=_evidence(signals, recomputed, saving.claims),
            remedies=advise("less-checkpointing"),
        )

    def _without_memory(self, signals: Signals, recomputed: Recomputation) -> Iterable[Finding]:
        """Say what recomputation costs if the profile does not show how full the memory is."""
        if self.is_minor(recomputed.launched_ns, signals):
            return
        occupied, capacity = most_occupied_bytes(signals), signals.device_facts
        room = ROOM_SHARE * ((capacity and capacity.memory_bytes) or 0)
        if occupied is not None and occupied <= room:
            saving = _saving_of_blocks(signals, recomputed, 1, 1.0)
            memory = (
                f"Memory for {format_bytes(round(room))} is enough to keep them: all that a step"
            )
            memory += f" reads and writes is {format_bytes(occupied)}."
        else:
            # Half of what is expected where memory is free: that is as likely as not.
            then_ns = signals.trace.events.duration_ns[recomputed.rows] * 3 // 4
            saving = faster_device_work(signals, recomputed.rows, then_ns, basis="heuristic")
            memory = "Whether there is memory to keep them was not recorded, so a quarter of it is"
            memory += " expected to go."
        evidence = _evidence(signals, recomputed, saving.claims)
        saving = at_best_also(signals, saving, *partial_recomputation(signals))
        yield Finding(
            summary=(
                f"Device work of {per_step(recomputed.launched_ns, signals)} recomputes activations"
                f" in the backward pass. {memory}"
            ),
            saving=saving if saving.expected_ns else None,
            severity=None if saving.expected_ns else "low",
            evidence=evidence,
            remedies=advise("measure-peak-memory", *_ADVICE),
        )


_HOW_MANY: Final = {
    1: ", which fits: checkpoint none",
    2: ". About half of that fits: checkpoint only every second block",
    3: ". A third of that fits: keep the activations of every third block",
    4: ". A quarter of that fits: keep the activations of every fourth block",
}
"""What fits, by the number of blocks of which one need not be checkpointed."""


def _saving_of_blocks(
    signals: Signals, recomputed: Recomputation, blocks: int, fitting: float
) -> Saving:
    """The saving if one in several blocks keeps its activations."""
    now_ns = signals.trace.events.duration_ns[recomputed.rows]
    return faster_device_work(
        signals,
        recomputed.rows,
        now_ns - now_ns // blocks,
        basis="modeled",
        least_then_ns=(now_ns * (1 - fitting)).astype(np.int64),
        most_then_ns=now_ns - now_ns // (2 * blocks),
    )


def _evidence(signals: Signals, recomputed: Recomputation, time: Intervals) -> tuple[Table, Events]:
    return costly_work("recomputed kernels", signals, recomputed.rows, time, recomputed.operators)
