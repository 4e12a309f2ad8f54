"""Parameters and optimizer state that every rank holds in full, where memory is short."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Table
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.units import format_bytes, format_share

_REMEDIES = (
    Remedy(
        text="Shard parameters, gradients and optimizer state over the ranks.",
        snippet=(
            "from torch.distributed.fsdp import fully_shard\n"
            "for layer in model.layers:\n"
            "    fully_shard(layer)\n"
            "fully_shard(model)\n"
            "optimizer = torch.optim.AdamW(model.parameters())  # after sharding"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/intermediate/FSDP_tutorial.html",
    ),
    Remedy(
        text="Or shard the optimizer's state alone: a one-line change, for two thirds of Adam's "
        "share.",
        snippet=(
            "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
            "optimizer = ZeroRedundancyOptimizer(\n"
            "    model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4\n"
            ")"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/distributed.optim.html",
    ),
)


class ReplicatedState(Rule):
    """Every rank holds all parameters and optimizer state while memory is short.

    What it finds
    -------------
    Data parallel training whose device memory is nearly full, mostly of what was there before
    the recorded steps: parameters and optimizer state, in full on every rank.

    Why it matters
    --------------
    Replicas cost their memory once per rank. Sharded over the ranks, the same state leaves room
    for a larger batch or model, for some more communication.

    How it is measured
    ------------------
    What is allocated at the peak and was before the recording, against the peak and the
    device's memory, in a program that all-reduces and never reduce-scatters. It carries no
    saving: the room is worth what is made of it.

    When to ignore
    --------------
    When what stays is a cache of data on the device rather than the model.

    How to verify
    -------------
    Peak memory falls by the replicated part, less an n-th of it.

    References:
    ----------
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
    (SC 2020); Zhao et al., "PyTorch FSDP" (VLDB 2023).
    """

    id = "replicated-state"
    title = "Shard parameters and optimizer state over the ranks"
    category = "memory"
    needs = (
        Need.DEVICE_EVENTS,
        Need.COLLECTIVES,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
        Need.MEMORY_CHANGES,
    )

    minimum_of_capacity = Limit(0.8, "share", "With a fifth of the memory free, room is no need.")
    minimum_of_peak = Limit(
        0.4, "share", "Where activations fill the memory, checkpointing them helps more."
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
        state = use.before_bytes(use.peak)
        if state is None or peak < self.minimum_of_capacity * memory.capacity_bytes:
            return
        if state < self.minimum_of_peak * peak:
            return
        yield Finding(
            summary=(
                f"{format_bytes(state)} of the {format_bytes(peak)} at the peak"
                f" ({format_share(state / peak)}) was there before the steps, in full on each of"
                f" {ranks} ranks; sharded it would be {format_bytes(state / ranks)}."
            ),
            severity="medium",
            evidence=(
                Table(
                    "Memory at the peak",
                    (Column("what", "What"), Column("bytes", "Bytes", "bytes")),
                    (
                        ("there before the steps", state),
                        ("allocated in the steps", peak - state),
                        ("on the device", memory.capacity_bytes),
                        (f"before the steps, over {ranks} ranks", state // ranks),
                    ),
                ),
            ),
            remedies=_REMEDIES,
        )
