"""Attention writes the matrix of its scores to memory."""

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
from tb_perfadvisor.signals.snapshots.scores import stored_attention
from tb_perfadvisor.units import format_bytes


class StoredAttentionScores(Rule):
    """Attention matrices fill the memory at the peak.

    What it finds
    -------------
    A softmax between two batched products, and the tensors of the size of its scores: scaled and
    masked scores, exponentials, probabilities, and copies of them in other precisions.

    Why it matters
    --------------
    They grow with the square of the sequence's length, and training keeps some of each layer for
    the backward pass. Fused attention computes them in tiles that never reach the device's memory.

    How it is measured
    ------------------
    Call stacks tell which function calls softmax and the products, and sizes tell which of its
    tensors are as large as the scores. The history is replayed without them: the peak falls by what
    they hold there, or to the next highest moment. The backward pass frees more, which is not
    counted. There is no saving in time; fused attention is also faster.

    When to ignore
    --------------
    When the scores themselves are needed, for a figure or a loss.

    How to verify
    -------------
    Record again: the function that called softmax calls `scaled_dot_product_attention`.

    References:
    ----------
    Dao et al., "FlashAttention" (2022); PyTorch documentation,
    `torch.nn.functional.scaled_dot_product_attention`.
    """

    id = "stored-attention-scores"
    title = "Use fused attention"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(0.02, "share", "Data of another length changes the peak by as much.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if attention matrices hold a part of the peak."""
        course, found = memory_course(signals), stored_attention(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        count = int(found.at_peak.sum())
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{count:,} tensor{'s' if count > 1 else ''} of the size of attention scores, from"
                f" {found.places[0]}, hold {part_of_peak(course, found.held_bytes)}. Fused"
                f" attention makes none of them: the peak is {format_bytes(saving.bytes)} lower."
            ),
            severity=severity_of_memory(signals, course, saving),
            memory=saving,
            evidence=evidence_at_peak(course, "Attention scores at the peak", found.at_peak),
            remedies=advise("fused-attention"),
        )
