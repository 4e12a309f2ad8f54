"""A line of the program keeps all that it allocates."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.snapshots import memory_by_line, memory_over_time
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.sites import by_line, growing_lines, growth
from tb_perfadvisor.units import format_bytes


class UnlimitedCache(Rule):
    """A line of the program allocates again and again, and nothing of it is freed.

    What it finds
    -------------
    A line that allocates in both halves of a memory snapshot's history, and of whose tensors none
    is freed, although the program frees and allocates whole steps meanwhile.

    Why it matters
    --------------
    A cache without a limit grows with each new key until memory runs out. Where steps differ in
    size, memory as a whole does not show it.

    How it is measured
    ------------------
    From what is allocated after the second step and before the last one. The history has steps if
    annotations were recorded; else it is cut into equal slices, if each of them frees and allocates
    the memory of whole steps. There is no saving in time: it is a risk.

    When to ignore
    --------------
    When there are only a few keys, and the cache is soon full.

    How to verify
    -------------
    In a longer history, the line frees as much as it allocates.

    References:
    ----------
    PyTorch documentation, "Understanding CUDA Memory Usage".
    """

    id = "unlimited-cache"
    title = "Limit what the program keeps from step to step"
    category = "memory"
    needs = (Need.MEMORY_HISTORY,)
    reads_sums = True
    refines = "memory-growth"

    minimum_share = Limit(
        0.05, "share", "What stays below a twentieth of the peak does not decide what fits."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if a line of the program keeps all that it allocates."""
        course = memory_course(signals)
        found = growth(course) if course is not None else None
        lines = growing_lines(course, found) if course is not None and found is not None else ()
        if course is None or found is None or not lines:
            return
        cache, peak = lines[0], course.peak_allocated_bytes
        kept_bytes = int(cache.kept.bytes.sum())
        if kept_bytes < self.minimum_share * peak:
            return
        yield Finding(
            instance=cache.line,
            summary=(
                f"{cache.line} allocates {len(cache.kept):,} tensors in {cache.steps} of"
                f" {len(found.state)} parts of the history, and none of them is freed:"
                f" {format_bytes(kept_bytes)} so far, of {format_bytes(peak)} at the peak. It looks"
                " like a cache without a limit."
            ),
            severity="medium",
            evidence=(
                memory_by_line(
                    "Allocated in several parts of the history and not freed",
                    by_line(cache.kept, course.snapshot.stacks),
                ),
                *memory_over_time(course),
            ),
            remedies=advise("limited-cache", "keep-numbers"),
        )
