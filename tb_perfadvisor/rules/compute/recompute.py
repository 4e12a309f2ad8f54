"""Activations that the backward pass recomputes."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import costly_work
from tb_perfadvisor.rules.finding import (
    Events,
    Finding,
    Saving,
    Table,
)
from tb_perfadvisor.rules.savings import at_best_also, faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import ROOM_SHARE
from tb_perfadvisor.signals.device.recomputation import (
    Recomputation,
    recomputation,
    recomputed_bytes,
)
from tb_perfadvisor.signals.program.updates import most_occupied_bytes
from tb_perfadvisor.signals.tpu.partial_recomputation import partial_recomputation
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.units import format_bytes, format_share

_ADVICE = ("less-checkpointing", "selective-checkpointing")


class Recompute(Rule):
    """The backward pass recomputes activations while device memory is free."""

    id = "recompute"
    title = "Keep activations instead of recomputing them"
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
    maximum_blocks = 4
    """If not even every fourth block fits, little is gained for a tight memory."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
