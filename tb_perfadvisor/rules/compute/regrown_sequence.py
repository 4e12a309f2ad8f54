"""Generation that computes the whole sequence again for each new element."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.signals import Signals


class RegrownSequence(ExaminedOperators):
    """Each new element of a sequence computes all elements before it again.

    What it finds
    -------------
    In a PyTorch program, layers without gradients whose input gets longer by the same
    small amount from call to call: a model that generates, and gets the whole sequence so far.

    Why it matters
    --------------
    The elements before have not changed, so layers compute for them what they did before. With
    the keys and values of attention, or the state of a recurrent layer, kept, a call computes one
    element.

    How it is measured
    ------------------
    The lengths are those in steps that `perfadvisor run` looked at. Kept, expected is three
    quarters of the time of operators on the sequence, because reading the weights and calling
    operators takes as long as before; low is a third of it, and high nearly all.

    When to ignore
    --------------
    When each element changes with those that follow it, as in models that look in both directions.

    How to verify
    -------------
    The inputs of layers have one element per sequence in each call but the first.

    References:
    ----------
    Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need", section 2.4; Hugging Face
    documentation, "Caching".
    """

    id = "regrown-sequence"
    title = "Keep what was computed of the sequence so far"
    kinds = ("growing",)
    changes = ("kept-keys-and-values",)

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """Nearly all but the last element."""
        return 0.33, 0.75, 0.97

    def describe(self, observed: Observed, cost: str) -> str:
        """Where it grows."""
        return (
            f"{cost} goes into layers whose input gets longer with each call, and begins with what"
            f" it was before: {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)}. Keep keys and values, and give the model only what is"
            " new."
        )
