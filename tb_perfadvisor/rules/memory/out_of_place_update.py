"""A function makes several intermediate results of the same size where one would do."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.lower_peak import (
    evidence_at_peak,
    less_at_peak,
    memory_saving,
    part_of_peak,
    severity_of_memory,
)
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.held import intermediate_results
from tb_perfadvisor.units import format_bytes


class OutOfPlaceUpdate(Rule):
    """Intermediate results of an update make the peak.

    What it finds
    -------------
    A function outside of the model, such as an optimizer's update, that makes three or more tensors
    of the same size and drops them again.

    Why it matters
    --------------
    An expression such as `p - lr * m / (v.sqrt() + eps)` makes a new tensor for each operator. For
    an embedding, each of them takes as much as the embedding itself.

    How it is measured
    ------------------
    Tensors of one size that one function makes, and that are freed within a hundred events of the
    allocator. The history is replayed with one of them at a time. There is no saving in time;
    fewer passes over memory are also faster.

    When to ignore
    --------------
    When gradients flow through the update: then its operands must stay.

    How to verify
    -------------
    Record again: the function makes one tensor of that size, or none.

    References:
    ----------
    PyTorch documentation, `Tensor.addcmul_`, `Tensor.addcdiv_` and `Tensor.lerp_`.
    """

    id = "out-of-place-update"
    title = "Update tensors in place"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Less than 5 % rarely decides whether a batch fits.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if intermediate results hold a part of the peak."""
        course, found = memory_course(signals), intermediate_results(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{found.count} tensors of one size that {found.place} makes and drops again hold"
                f" {part_of_peak(course, found.held_bytes)}. With one at a time, the peak is"
                f" {format_bytes(saving.bytes)} lower."
            ),
            severity=severity_of_memory(signals, course, saving),
            memory=saving,
            evidence=evidence_at_peak(course, "Intermediate results at the peak", found.at_peak),
            remedies=advise("in-place-update"),
        )
