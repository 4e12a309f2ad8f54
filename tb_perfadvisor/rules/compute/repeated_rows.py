"""Products of rows that are copies of fewer rows, on the CPU."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class RepeatedRows(ExaminedOperators):
    """A layer multiplies copies of the same rows again and again.

    What it finds
    -------------
    In a PyTorch program, products and convolutions of single pixels whose rows are put
    together from fewer different ones, by `expand`, `repeat` or indexing: all pairs of elements in
    one tensor, a vector for the whole beside each of its points, the ends of each edge of a graph.
    Also products, convolutions and layers that get the same batch several times in each call, such
    as the history of a user beside each candidate.

    Why it matters
    --------------
    The product of two vectors side by side is the sum of two products, one with each half of the
    weights. Each half needs one product for each different vector, not for each pair. And what gets
    the same rows computes the same results.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each product's rows are followed to where they were
    copied, and its content is compared. Expected is 90 % of the time of the products beyond those
    of different rows, forward and backward, and of putting them together, without what adding the
    parts takes; low is 60 % of it, or half of that on a device. High is 130 %: the gradients of the
    copies need not be added up.

    When to ignore
    --------------
    When the layer is narrow: adding the parts then takes as long as the product.

    How to verify
    -------------
    The product has as many rows as there are different ones, and the results are the same up to
    rounding.

    References:
    ----------
    PyTorch documentation, "Broadcasting semantics".
    """

    id = "repeated-rows"
    title = "Multiply rows before copying them"
    kinds = ("repeated rows", "copied items")
    changes = ("split-weights", "expand-results")
    amount = Column("needed", "Needed", "share")
    spares = (0.6, 0.9, 1.3)

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """What is copied whole can be copied later."""
        return self.changes[1:] if costliest.kind == "copied items" else self.changes[:1]

    def describe(self, observed: Observed, cost: str) -> str:
        """How much is needed."""
        return (
            f"{cost} goes into {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)} and what belongs to it, whose rows are copies: the"
            f" different ones need {format_share(observed.amount)} of that."
        )
