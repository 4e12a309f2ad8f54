"""Every rank holds all parameters and optimizer state although memory is short."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.units import format_bytes, format_share


class ReplicatedState(Rule):
    """Every rank holds all parameters and optimizer state although memory is short.

    What it finds
    -------------
    Data-parallel training whose device memory is nearly full, mostly of memory allocated before
    the recorded steps: parameters and optimizer state, complete on every rank.

    Why it matters
    --------------
    Replicas take their memory on each rank. Sharded across the ranks, the same state leaves room
    for a larger batch or model, at the cost of some more communication.

    How it is measured
    ------------------
    Memory that is in use at the peak and was allocated before the recording, compared with the
    peak and with the device's memory, in a program that all-reduces and never reduce-scatters.
    There is no saving in time: its value depends on how you use the memory.

    When to ignore
    --------------
    When the memory holds a cache of data on the device instead of the model.

    How to verify
    -------------
    With n ranks, peak memory falls by the replicated part except for one n-th of it.

    References:
    ----------
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC
    2020); Zhao et al., "PyTorch FSDP" (VLDB 2023).
    """

    id = "replicated-state"
    title = "Shard parameters and optimizer state across the ranks"
    category = "memory"
    needs = (
        Need.DEVICE_EVENTS,
        Need.COLLECTIVES,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
        Need.MEMORY_CHANGES,
    )

    minimum_of_capacity = Limit(
        0.8, "share", "With more than 20 % of the memory free, there is no need to shard."
    )
    minimum_of_peak = Limit(
        0.4, "share", "If activations fill the memory, checkpointing them helps more."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when replicated state fills the memory."""
        memory, use = signals.memory, memory_use(signals)
        ranks = signals.trace.source.world_size or len(signals.run.traces)
        operations = set(collectives_of(signals).operation.texts)
        if memory is None or use is None or memory.capacity_bytes is None or ranks < 2:
            return
        if "all-reduce" not in operations or "reduce-scatter" in operations:
            return
        peak = int(use.allocated_bytes[use.peak])
        state = use.preexisting_bytes(use.peak)
        if state is None or peak < self.minimum_of_capacity * memory.capacity_bytes:
            return
        if state < self.minimum_of_peak * peak:
            return
        yield Finding(
            instance=f"{format_bytes(state)} on each of {ranks} ranks",
            summary=(
                f"{format_bytes(state)} of the {format_bytes(peak)} in use at the peak"
                f" ({format_share(state / peak)}) was allocated before the steps, in full on each"
                f" of {ranks} ranks; sharded, it would be {format_bytes(state / ranks)}."
            ),
            severity="medium",
            evidence=(
                Table(
                    "Memory at the peak",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("allocated before the steps", state),
                        ("allocated in the steps", peak - state),
                        ("device memory", memory.capacity_bytes),
                        (f"before the steps, sharded across {ranks} ranks", state // ranks),
                    ),
                ),
            ),
            remedies=advise("sharded-state", "sharded-optimizer"),
        )
