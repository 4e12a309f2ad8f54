"""Gradients that the optimizer has used stay during the next forward pass."""

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
from tb_perfadvisor.signals.snapshots.held import idle_gradients
from tb_perfadvisor.units import format_bytes


class IdleGradients(Rule):
    """Gradients of the step before are alive at the peak.

    What it finds
    -------------
    Gradients from before the optimizer's latest step that are still allocated at a peak in the
    forward or the backward pass after it.

    Why it matters
    --------------
    They take as much as the parameters, and nothing needs them until the backward pass makes new
    ones. At the end of the forward pass, where memory usually peaks, there need not be any.

    How it is measured
    ------------------
    What the backward pass allocated, and what the optimizer's step did not free. The history is
    replayed as if they were freed after that step, and came back with the progress of the backward
    pass. There is no saving in time; gradients that are not filled with zeros also save kernels.

    When to ignore
    --------------
    When gradients are accumulated over several optimizer steps on purpose.

    How to verify
    -------------
    Record again: memory falls to the parameters and the optimizer's state between steps.

    References:
    ----------
    PyTorch documentation, `torch.optim.Optimizer.zero_grad`.
    """

    id = "idle-gradients"
    title = "Free gradients after each step"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_HISTORY,)

    minimum_share = Limit(0.03, "share", "Less than 3 % rarely decides whether a batch fits.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if gradients of the step before hold a part of the peak."""
        course, found = memory_course(signals), idle_gradients(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{found.count:,} gradients that the optimizer has used already hold"
                f" {part_of_peak(course, found.held_bytes)}. Freed after each step, they lower it"
                f" by {format_bytes(saving.bytes)}."
            ),
            severity=severity_of_memory(signals, course, saving),
            memory=saving,
            evidence=evidence_at_peak(course, "Gradients of the step before", found.at_peak),
            remedies=advise("freed-gradients"),
        )
