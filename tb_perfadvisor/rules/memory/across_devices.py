"""Memory that devices hold alike, or use unevenly."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.signals.ranks.rank_summary import DevicePeak, snapshot_peaks
from tb_perfadvisor.units import format_bytes, format_share


class MemoryImbalance(Rule):
    """One device's peak of memory is far above that of the others."""

    id = "memory-imbalance"
    title = "Spread memory over the devices"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)

    minimum_share = Limit(
        0.2, "share", "Ranks of one program commonly differ by a tenth: sequences differ in length."
    )
    minimum_bytes = Limit(
        1 << 30, "bytes", "A gibibyte more would seldom change what fits on the other devices."
    )
    used_share = 0.05
    """A device with a twentieth of the highest peak only has a context on it."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        peaks = snapshot_peaks(signals)
        most = max((peak.allocated_bytes for peak in peaks), default=0)
        used = [peak for peak in peaks if peak.allocated_bytes >= self.used_share * most]
        if len(used) < 2:
            return
        usual = int(median(peak.allocated_bytes for peak in used))
        if len(used) == 2:
            usual = min(peak.allocated_bytes for peak in used)
        fullest = max(used, key=lambda peak: peak.allocated_bytes)
        excess = most - usual
        if excess < self.minimum_bytes or excess < self.minimum_share * most:
            return
        yield Finding(
            instance=f"{_name(fullest)} holds {format_bytes(excess)} more",
            summary=(
                f"At its peak, {_name(fullest)} has {format_bytes(most)} allocated, "
                f"{format_bytes(excess)} ({format_share(excess / most)}) more than the others' "
                f"usual {format_bytes(usual)}: it limits the batch of all {len(used)}."
            ),
            severity="medium",
            evidence=(
                Table(
                    "Peak by device",
                    (
                        Column("device", "Device"),
                        Column("allocated", "Allocated", "bytes"),
                        Column("reserved", "Reserved", "bytes"),
                    ),
                    tuple(
                        (_name(peak), peak.allocated_bytes, peak.reserved_bytes) for peak in used
                    ),
                ),
            ),
            remedies=advise(
                "process-per-device", "even-stages", "own-device-checkpoint", "even-tokens"
            ),
        )


def _name(peak: DevicePeak) -> str:
    device = f"device {peak.device}"
    return device if peak.rank is None else f"rank {peak.rank}'s {device}"


class ReplicatedState(Rule):
    """Every rank holds all parameters and optimizer state although memory is short."""

    id = "replicated-state"
    title = "Shard parameters and optimizer state across the ranks"
    needs = (
        Need.DEVICE_EVENTS,
        Need.COLLECTIVES,
        Need.MEMORY,
        Need.MEMORY_CAPACITY,
        Need.MEMORY_CHANGES,
    )

    minimum_of_capacity = 0.8
    """With more than 20 % of the memory free, there is no need to shard."""
    minimum_of_peak = 0.4
    """If activations fill the memory, checkpointing them helps more."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
