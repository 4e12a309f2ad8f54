"""Probabilities that are computed to be ranked, where what they come from has the same order."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.only_ranked import only_ranked, ranking_the_source


class NeedlessProbabilities(FasterOperations):
    """The step computes probabilities, and then only ranks them.

    What it finds
    -------------
    An argmax, or a sort of which only the places are read, whose values come from a softmax, a
    sigmoid, a logarithm or another function that grows with its argument, or from a shift or a
    positive scale that all values of a row share. Nothing else reads these values. The embedded
    program shows it.

    Why it matters
    --------------
    Such a function keeps the order, so the place of the largest logit is that of the largest
    probability. Exponentials and sums over each row are for nothing, and they keep XLA from ranking
    the logits in the same operation that computes them: they are written to memory and read again.

    How it is measured
    ------------------
    Operations that compute such values take what the rest of them needs at usual rates: its bytes,
    its products and its other arithmetic. If an operation computes the logits as well, it also
    ranks them then, and the one that ranked is gone. High is the same at the peaks of the data
    sheet; low is half of what is expected.

    When to ignore
    --------------
    When rounding to fewer bits in between is meant to make values equal.

    How to verify
    -------------
    No exponentials are left in the operations before the argmax.

    References:
    ----------
    JAX documentation, "jax.numpy.argmax".
    """

    id = "needless-probabilities"
    title = "Rank what the probabilities are computed from"

    minimum_share = Limit(0.03, "share", "Less is within the variation of other fusions.")

    noun = "operation"
    changes = ("rank-logits",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """What computes such values, and ranks them."""
        return ranking_the_source(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest array that is ranked."""
        worst = max(
            only_ranked(signals),
            key=lambda found: found.running.program.shape_of(found.source).elements,
        )
        program = worst.running.program
        shape, line = program.shape_of(worst.source), program.lines.get(worst.ranking, "")
        where = f" in {line}" if line else ""
        return f"{shape}{where}", (
            f"{cost} goes into values of {shape} of which only the order counts{where}. What they"
            " are computed from has the same order."
        )
