"""Autocast keeps a copy of every weight during a forward pass."""

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
from tb_perfadvisor.signals.snapshots.held import autocast_copies
from tb_perfadvisor.units import format_bytes


class AutocastWeightCopies(Rule):
    """Autocast's copies of the weights raise the peak of a forward pass.

    What it finds
    -------------
    A forward pass without a backward pass whose peak consists of weights, and of copies of them in
    16 bits that autocast keeps until it ends.

    Why it matters
    --------------
    The copies come on top of the weights: half of their size. Activations in 16 bits save less than
    that if the batch is small, so autocast raises the peak instead of lowering it.

    How it is measured
    ------------------
    Call stacks show which tensors autocast has cast and kept. The history is replayed without them,
    except for the largest one, since one copy at a time is in use. There is no saving in time.

    When to ignore
    --------------
    When each weight is used several times in one autocast region: then the copies save casts.

    How to verify
    -------------
    Record again: no copies stay, and the peak is lower.

    References:
    ----------
    PyTorch documentation, torch.autocast, `cache_enabled`.
    """

    id = "autocast-weight-copies"
    title = "Let autocast keep no copies of weights"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Less than 5 % rarely decides whether a model fits.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the copies hold a part of the peak."""
        course, found = memory_course(signals), autocast_copies(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{found.count:,} copies that autocast keeps of weights hold"
                f" {part_of_peak(course, found.held_bytes)}. Without them, the peak is"
                f" {format_bytes(saving.bytes)} lower. Autocast saves no memory here."
            ),
            severity=severity_of_memory(signals, course, saving),
            memory=saving,
            evidence=evidence_at_peak(course, "Copies at the peak", found.at_peak),
            remedies=advise("autocast-without-cache", "weights-in-16-bits"),
        )
