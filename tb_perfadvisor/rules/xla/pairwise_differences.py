"""Distances of all pairs that are computed from differences."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.pairwise import pairwise_distances

_EXPECTED, _BEST, _WORST = 0.2, 0.05, 0.6


class PairwiseDifferences(FasterOperations):
    """The step subtracts each row from each other row to get their distances.

    What it finds
    -------------
    Sums of squared differences of two arrays that are both repeated along a dimension of the other,
    so that each row of one meets each row of the other: nearest neighbors, clusters, kernels. The
    embedded program shows it.

    Why it matters
    --------------
    Subtracting, squaring and adding up takes three operations for each coordinate of each pair,
    outside of the units that multiply matrices. The distance of x and c is x² + c² - 2xc, and xc
    for all pairs is one matrix product.

    How it is measured
    ------------------
    Libraries' products compute about five times as many coordinates per second as fused loops over
    differences do: a fifth of the time of these operations is expected to remain, at best a
    twentieth, at worst 60 %.

    When to ignore
    --------------
    When small distances of long vectors matter: the difference of large numbers loses digits.

    How to verify
    -------------
    A product takes the place of the differences, and nearest neighbors are the same.

    References:
    ----------
    scikit-learn documentation, "sklearn.metrics.pairwise.euclidean_distances".
    """

    id = "pairwise-differences"
    title = "Compute distances of all pairs by a matrix product"

    minimum_share = Limit(0.05, "share", "A heuristic has to concern a good part of the step.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("distances-by-product",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations, of which a product remains."""
        return [
            FasterOperation(found.operation, _EXPECTED * now, _BEST * now, _WORST * now)
            for found in pairwise_distances(signals)
            for now in (mean_ns(signals, found.operation),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest set of pairs, and where it is computed."""
        worst = max(pairwise_distances(signals), key=lambda o: total_ns(signals, [o.operation]))
        line = worst.running.program.lines.get(worst.row, "")
        where = f" ({line})" if line else ""
        return f"{worst.pairs:,} pairs{where}", (
            f"{cost} goes into differences of {worst.summed:,} coordinates of {worst.pairs:,}"
            f" pairs of rows{where}."
        )
