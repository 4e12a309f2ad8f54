"""The forward pass keeps the activations of every block for the backward pass."""

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
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.held import kept_activations
from tb_perfadvisor.units import format_bytes


class KeptActivations(Rule):
    """The activations of all blocks are alive at the peak.

    What it finds
    -------------
    A line that calls the blocks of a model, and what the forward pass keeps of each call.

    Why it matters
    --------------
    Activations grow with the batch, the sequence and the number of blocks, and usually decide which
    batch fits. With checkpointing, each block keeps only its result, and the backward pass computes
    the rest again. That costs the time of about one more forward pass.

    How it is measured
    ------------------
    Tensors that are alive at the peak are counted by call stack. Below a line that is called n
    times, each stack has n of them, or a multiple. Of all such lines, the one that frees most is
    named. The history is replayed without these tensors, except for the last one of each call, and
    for one whole call, which the backward pass is computing again. There is no saving in time.

    When to ignore
    --------------
    When the batch fits, and a larger one would not be faster per sample.

    How to verify
    -------------
    Record again: the peak is lower, and call stacks show `torch/utils/checkpoint.py`.

    References:
    ----------
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); PyTorch documentation,
    torch.utils.checkpoint.
    """

    id = "kept-activations"
    title = "Recompute the activations of blocks"
    category = "memory"
    reads_sums = True
    needs = (Need.MEMORY_SNAPSHOT,)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Recomputing takes about a third more time, which less is not worth."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if blocks keep a good part of the peak."""
        course, found = memory_course(signals), kept_activations(signals)
        if course is None or found is None:
            return
        saving = memory_saving(course, found.freed_bytes)
        if saving.share < self.minimum_share:
            return
        yield Finding(
            instance=less_at_peak(saving),
            summary=(
                f"{found.calls} calls at {found.place} keep"
                f" {part_of_peak(course, found.held_bytes)}. If each kept only its result, and the"
                f" backward pass repeated one call at a time, the peak would be"
                f" {format_bytes(saving.bytes)} lower."
            ),
            severity=severity_of_memory(signals, course, saving, has_price=True),
            memory=saving,
            evidence=(
                Table(
                    "Where to checkpoint",
                    (
                        Column("source", "Called at"),
                        Column("calls", "Calls", "count"),
                        Column("bytes", "Kept", "bytes"),
                        Column("freed", "Freed at the peak", "bytes"),
                    ),
                    ((found.place, found.calls, found.held_bytes, saving.bytes),),
                ),
                *evidence_at_peak(course, "Kept by these calls", found.at_peak),
            ),
            remedies=advise("activation-checkpointing", "no-gradients"),
        )
