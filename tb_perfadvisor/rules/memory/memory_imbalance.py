"""One device holds much more than the others."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.ranks.rank_summary import DevicePeak, snapshot_peaks
from tb_perfadvisor.units import format_bytes, format_share


class MemoryImbalance(Rule):
    """One device's peak of memory is far above that of the others.

    What it finds
    -------------
    Devices of one process, or of several ranks with a snapshot each, whose peaks of allocated
    memory differ much.

    Why it matters
    --------------
    The fullest device limits the batch, while memory of the others stays empty.

    How it is measured
    ------------------
    The highest peak of allocated memory against the median of all devices on which anything
    substantial is allocated. There is no saving in time: it is memory that could be used.

    When to ignore
    --------------
    When one device does other work by design, such as generating samples, or when the batch is not
    limited by memory.

    How to verify
    -------------
    The next snapshots have similar peaks.

    References:
    ----------
    PyTorch documentation, "Understanding CUDA Memory Usage".
    """

    id = "memory-imbalance"
    title = "Spread memory over the devices"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)

    minimum_share = Limit(
        0.2, "share", "Ranks of one program commonly differ by a tenth: sequences differ in length."
    )
    minimum_bytes = Limit(
        1 << 30, "bytes", "A gibibyte more would seldom change what fits on the other devices."
    )
    used_share = Limit(
        0.05, "share", "A device with a twentieth of the highest peak only has a context on it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when one device is much fuller than most."""
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
