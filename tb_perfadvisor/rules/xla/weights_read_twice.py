"""Weights that several independent products read."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.loop_products import reading_once, shared_weights
from tb_perfadvisor.units import format_bytes


class WeightsReadTwice(FasterOperations):
    """A program applies the same layers to several small inputs, one after the other.

    What it finds
    -------------
    Weights among the program's arguments that several products read, at least one of them for a few
    rows, where no product needs the result of another: the guided and the free prediction of a
    diffusion model, two views of a sample, or the prompts of new requests beside the next words of
    others.

    Why it matters
    --------------
    For a few rows, reading the weights is what takes the time. As one batch, they are read once.
    Where another product multiplies them by many rows, a few more rows cost next to nothing.

    How it is measured
    ------------------
    High is the bytes of the weights, for each time but one that the program reads them from the
    memory, at its bandwidth; what stays on the chip is read once. Expected is half of that, because
    some of the reading runs beside other work, and low a quarter.

    When to ignore
    --------------
    When the inputs have different shapes that cannot be padded.

    How to verify
    -------------
    Each product with these weights runs once, on a larger batch.

    References:
    ----------
    Ho, Salimans, "Classifier-free diffusion guidance" (2022).
    """

    id = "weights-read-twice"
    title = "Run independent inputs as one batch"

    minimum_share = Limit(0.03, "share", "Less is within the variation of smaller operations.")
    most_rows = Limit(
        240, "count", "TPUs multiply this many rows or more while they read a weight."
    )

    noun = "product"
    reads_less = True

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products by shared weights."""
        return reading_once(signals, int(self.most_rows))

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """Prompts and words share a batch; inputs of one kind are joined."""
        found = shared_weights(signals, int(self.most_rows))
        is_beside = any(one.is_beside_many for one in found)
        return ("words-beside-prompts", "joined-batch") if is_beside else ("joined-batch",)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """How many weights are read how often."""
        found = shared_weights(signals, int(self.most_rows))
        size = sum(one.running.program.shape_of(one.weights).padded_bytes for one in found)
        times = max(len(one.products) + one.is_beside_many for one in found)
        return f"{format_bytes(size)} read {times} times", (
            f"{cost} goes into products that read {format_bytes(size)} of weights {times} times,"
            " for inputs that do not depend on each other."
        )
