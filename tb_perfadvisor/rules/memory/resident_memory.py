"""Nearly all memory is taken all the time."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.lower_peak import (
    evidence_at_peak,
    memory_saving,
    part_of_peak,
    severity_of_memory,
)
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.held import optimizer_state, resident_memory
from tb_perfadvisor.signals.snapshots.sites import by_line
from tb_perfadvisor.signals.workload.workload import SERVERS, workload
from tb_perfadvisor.units import format_bytes


class ResidentMemory(Rule):
    """Nearly all memory at the peak is there from start to end.

    What it finds
    -------------
    A peak that consists of memory from before the history, or of weights that were loaded in it,
    and that nothing frees.

    Why it matters
    --------------
    A smaller batch, less fragmentation or fewer activations free next to nothing then. What helps
    is to keep fewer weights on the device, or to keep them in fewer bits.

    How it is measured
    ------------------
    What is allocated during the whole history, divided by the peak. The estimate is for half of it:
    weights in 8 instead of 16 bits, or split over two devices. There is no saving in time.

    When to ignore
    --------------
    When the program fits with room to spare. An inference server reserves memory for its cache on
    purpose.

    How to verify
    -------------
    Record again: the memory at the start is lower.

    References:
    ----------
    Dettmers et al., "LLM.int8()" (NeurIPS 2022); PyTorch documentation, "Understanding CUDA Memory
    Usage".
    """

    id = "resident-memory"
    title = "Keep less on the device all the time"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(
        0.8, "share", "If a fifth is used only at times, that part is easier to shrink."
    )
    minimum_bytes = Limit(
        1 << 30, "bytes", "Every device that trains or serves models has several gibibytes."
    )
    maximum_unused_share = Limit(
        0.05,
        "share",
        "A caching allocator rounds up, and keeps a few percent for the next request.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if nearly all of the peak stays."""
        course, found = memory_course(signals), resident_memory(signals)
        if course is None or found is None or optimizer_state(signals) is not None:
            return
        if any(workload(signals).has(part) for part in SERVERS):
            return
        peak = course.peak_allocated_bytes
        if found.bytes < max(self.minimum_share * peak, self.minimum_bytes):
            return
        saving = memory_saving(course, found.bytes // 2)
        holders = by_line(course.allocations.select(found.at_peak), course.snapshot.stacks)
        line = next((holder.line for holder in holders if holder.line is not None), None)
        unused = course.peak_reserved_bytes - peak
        yield Finding(
            instance=f"{format_bytes(found.bytes)}{' of weights' if found.are_weights else ''}",
            summary=(
                f"{part_of_peak(course, found.bytes)} stays allocated from start to end"
                f"{f', from {line}' if line else ''}.{self._unused(unused, peak)} In half the bits,"
                f" or split over two devices, it takes {format_bytes(saving.bytes)} less."
            ),
            severity=severity_of_memory(signals, course, saving, has_price=True),
            memory=saving,
            evidence=evidence_at_peak(course, "Allocated all the time", found.at_peak),
            remedies=advise("offloaded-weights", "fewer-bits-for-weights"),
        )

    def _unused(self, unused_bytes: int, peak_bytes: int) -> str:
        """Whether the allocator holds much more than is used; empty if it does."""
        if unused_bytes > self.maximum_unused_share * peak_bytes:
            return ""
        return (
            f" The allocator holds {format_bytes(max(unused_bytes, 0))} more than that peak, so"
            " fragmentation is not the cause if memory runs out."
        )
