"""Attention whose scores are written to memory and read again."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.stored_scores import in_one_kernel, stored_scores
from tb_perfadvisor.units import format_bytes


class ScoresInMemory(FasterOperations):
    """Attention writes its scores to the device's memory, where a fused kernel keeps them on chip.

    What it finds
    -------------
    Products of each head's queries and keys, of 512 positions or more each, whose results go
    through exponentials and sums into another product, in operations that read or write them in the
    device's memory, and for which that takes most of the time. The embedded program shows it. What
    XLA keeps on the chip does not count.

    Why it matters
    --------------
    Scores have many times the elements of queries, keys and results. Every operation on them waits
    for the memory, while the matrix unit idles. A fused kernel computes them block by block.

    How it is measured
    ------------------
    A fused kernel computes the same products, in training those of the scores twice, and moves
    queries, keys, values and results. At the peak of the data sheet, that bounds what can be saved.
    How fast a kernel is for these sizes is unknown, so nothing is expected. The finding appears if
    a kernel that reaches half of the rate of large products would save a twentieth of the step.

    When to ignore
    --------------
    When the scores themselves are needed.

    How to verify
    -------------
    A custom call takes the place of these operations, and the step needs less memory.

    References:
    ----------
    Dao et al., "FlashAttention" (2022); JAX source, jax/experimental/pallas/ops/tpu.
    """

    id = "scores-in-memory"
    title = "Use a fused attention kernel on the TPU"

    minimum_share = Limit(0.05, "share", "Another kernel has to bring something.")

    noun = "operation"
    is_priced = False
    changes = ("splash-attention",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations on scores."""
        return in_one_kernel(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest scores."""
        worst = max(stored_scores(signals), key=lambda one: one.scores.elements)
        line = worst.running.program.lines.get(worst.row, "")
        where = f" in {line}" if line else ""
        return f"{worst.scores}{where}", (
            f"{cost} goes into operations that write or read attention scores, {worst.scores},"
            f" {format_bytes(worst.scores.padded_bytes)} each time{where}."
        )
