"""The loss keeps several tensors of the size of the logits."""

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
from tb_perfadvisor.signals.snapshots.scores import stored_logits
from tb_perfadvisor.units import format_bytes


class StoredLogits(Rule):
    """Logits over a vocabulary are alive several times at the peak.

    What it finds
    -------------
    A cross-entropy whose logits, logarithmic softmax and gradients exist at once.

    Why it matters
    --------------
    They have a value for each token and each word. With 100,000 words, one of them in 32 bits takes
    400 kB for each token of the batch, often more than all layers keep.

    How it is measured
    ------------------
    Call stacks tell which tensors the loss makes. The product before it, and gradients of the same
    size, belong to them. The history is replayed as if only an eighth of them existed: a loss that
    is computed in parts needs one part at a time. There is no saving in time.

    When to ignore
    --------------
    When something else uses the logits, such as a distillation loss.

    How to verify
    -------------
    Record again: no tensor of this size is left.

    References:
    ----------
    Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training" (2024); Wijmans et al.,
    "Cut Your Losses in Large-Vocabulary Language Models" (2024).
    """

    id = "stored-logits"
    title = "Compute the loss in parts"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "A change of the loss for less is not worth checking its gradients."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if logits hold a part of the peak."""
        course, found = memory_course(signals), stored_logits(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        where = f" at {found.place}" if found.place else ""
        count = f"{found.copies} tensors" if found.copies > 1 else "A tensor"
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{count} of the size of the logits{where}"
                f" hold{'s' if found.copies == 1 else ''} {part_of_peak(course, found.held_bytes)}."
                f" Computed in parts, the loss needs an eighth of that, and the peak is"
                f" {format_bytes(saving.bytes)} lower."
            ),
            severity=severity_of_memory(signals, course, saving),
            memory=saving,
            evidence=evidence_at_peak(course, "Logits at the peak", found.at_peak),
            remedies=advise("fused-loss", "loss-in-parts"),
        )
