"""Distances of all pairs computed from differences, in eager programs."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class DifferencesOfPairs(ExaminedOperators):
    """The program subtracts each row from each other row to get their distances.

    What it finds
    -------------
    In a PyTorch program, differences of two tensors that are both repeated along an axis of the
    other, of which only the squares are added up: clusters, nearest neighbors, kernels.

    Why it matters
    --------------
    Subtracting, squaring and adding up writes and reads each coordinate of each pair several times.
    The squared distance of x and c is x² + c² - 2xc, and xc for all pairs is one matrix product.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, the results of these operators are followed. Expected
    is 85 % of their time, forward and backward, beyond what a product takes by a model of 3 ns for
    each pair and 0.1 ns for each coordinate of one. Low is half of their time beyond that, or a
    quarter on a device.

    When to ignore
    --------------
    When small distances of long vectors matter: the difference of large numbers loses digits.

    How to verify
    -------------
    The profile shows `aten::_euclidean_dist` or a product in place of the differences, and nearest
    neighbors are the same.

    References:
    ----------
    PyTorch documentation, `torch.cdist`; scikit-learn documentation,
    "sklearn.metrics.pairwise.euclidean_distances".
    """

    id = "differences-of-pairs"
    title = "Compute distances of all pairs by a matrix product"
    kinds = ("pairwise differences",)
    changes = ("distances-by-cdist",)
    amount = Column("kept", "A product takes", "share")
    spares = (0.5, 0.85, 1.0)

    def describe(self, observed: Observed, cost: str) -> str:
        """What is subtracted."""
        return (
            f"{cost} goes into distances of all pairs: {observed.operator} of {observed.shapes} in"
            f" {place_of_observed(observed)}, and the squares and sums of it. A product takes an"
            f" estimated {format_share(observed.amount)} of that."
        )
