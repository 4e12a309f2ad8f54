"""Products that are computed twice, once as the transpose."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.twin_products import twin_products, without_twins


class TwinProducts(FasterOperations):
    """The step multiplies the same two arrays twice, once in each order.

    What it finds
    -------------
    Pairs of matrix products of the same factors in swapped order, of a million results or more.
    One is the transpose of the other. The embedded program shows what the factors come from.

    Why it matters
    --------------
    XLA removes equal products, but does not see that two are each other's transpose. Contrastive
    losses compare images with texts and texts with images: these are the rows and the columns of
    one matrix.

    How it is measured
    ------------------
    The second product goes. What else its operation does with the result remains, and no less than
    its bytes need. So do functions of its elements, and products with the same factor as for the
    first: gradients of both can be added before they are multiplied. Then the second product need
    not be stored, either. High is all beyond these; low is half of what is expected.

    When to ignore
    --------------
    When the two differ in precision on purpose.

    How to verify
    -------------
    The step has one product less.

    References:
    ----------
    Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (2021).
    """

    id = "twin-products"
    title = "Transpose a product instead of computing it again"

    minimum_share = Limit(0.03, "share", "Less is within the variation of smaller operations.")

    noun = "product"
    changes = ("transpose-result",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The second product of each pair."""
        return without_twins(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest pair."""
        worst = max(
            twin_products(signals),
            key=lambda twins: twins.running.program.shape_of(twins.second).elements,
        )
        program = worst.running.program
        shape, line = program.shape_of(worst.second), program.lines.get(worst.second, "")
        where = f" in {line}" if line else ""
        follows = ", and into what is computed from it" if worst.joined else ""
        return f"{shape}{where}", (
            f"{cost} goes into {shape}{where}, the transpose of another product of the same"
            f" arrays{follows}."
        )
