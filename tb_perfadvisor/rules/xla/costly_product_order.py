"""Matrix products that need fewer FLOP in another order."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.useful_work import costly_orders, in_other_order
from tb_perfadvisor.units import format_share


class CostlyProductOrder(FasterOperations):
    """The step multiplies three matrices in the costlier order.

    What it finds
    -------------
    Two products of plain matrices in a row, (AB)C, of which A(BC) takes fewer FLOP, if nothing else
    reads the first result, and nothing but a change of layout or type is between them. A batch
    multiplied by the product of two low-rank factors is an example.

    Why it matters
    --------------
    The order changes nothing but rounding. XLA keeps the order of the program.

    How it is measured
    ------------------
    High is the share of FLOP that the other order saves. Expected is the same, but no product gets
    faster than its bytes allow. Low is half of it.

    When to ignore
    --------------
    When the first product is the same in many steps: compute it once, before them.

    How to verify
    -------------
    The large intermediate result is gone.

    References:
    ----------
    Cormen et al., "Introduction to Algorithms", on matrix-chain multiplication; NumPy
    documentation, "numpy.linalg.multi_dot".
    """

    id = "costly-product-order"
    title = "Multiply the small matrices last"

    minimum_share = Limit(
        0.03, "share", "Less is within the variation of products of other shapes."
    )

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "product"
    changes = ("other-order",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products in the costlier order."""
        return in_other_order(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The pair that saves most."""
        found = costly_orders(signals)
        best = min(found, key=lambda pair: pair.share)
        program = best.running.program
        line = program.lines.get(best.first, "")
        between = program.shape_of(best.first)
        return f"{between} between two products", (
            f"{cost} goes into products of three matrices ({len(found)} times). The other order"
            f" takes {format_share(best.share)} of the FLOP, and needs no {between}"
            f"{f' ({line})' if line else ''}."
        )
