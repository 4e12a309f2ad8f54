"""Products in loops that do not depend on what the loop computes."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.loop_products import before_loops, loop_products


class ProductsInLoop(FasterOperations):
    """A loop multiplies the input of each trip by the same weights.

    What it finds
    -------------
    Matrix products in a loop whose factors are slices of arrays that are known before the loop,
    and weights: the inputs of a recurrence, for example. The embedded program shows that nothing
    which the loop computes is part of them.

    Why it matters
    --------------
    Each trip reads the weights again for a few rows. One product of all inputs before the loop
    reads them once, and uses the matrix unit well.

    How it is measured
    ------------------
    A product before the loop takes what its FLOP or its bytes need: the inputs, the weights once,
    and the results, which are written and read again. Expected is that it reaches the usual rates,
    low half of that gain; high assumes that half of the bytes stay on the chip, and so do the
    weights of the loop's other products, which then has less to read.

    When to ignore
    --------------
    When there is no memory for the results of all trips: then multiply for some trips at a time.

    How to verify
    -------------
    The product is outside of the loop.

    References:
    ----------
    Appleyard, Kocisky, Blunsom, "Optimizing performance of recurrent neural networks on GPUs"
    (2016).
    """

    id = "products-in-loop"
    title = "Multiply the inputs of all trips before the loop"

    minimum_share = Limit(0.03, "share", "Less is within the variation of smaller operations.")

    noun = "product"
    changes = ("product-before-loop",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products in loops, with their part of one before."""
        return before_loops(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest product."""
        found = loop_products(signals)
        largest = max(
            found, key=lambda one: one.trips * one.running.program.shape_of(one.product).elements
        )
        program = largest.running.program
        shape, line = program.shape_of(largest.product), program.lines.get(largest.product, "")
        where = f" in {line}" if line else ""
        return f"{largest.trips:,.0f} times {shape}", (
            f"{cost} goes into products in loops that depend on no trip before: {shape}"
            f"{where}, {largest.trips:,.0f} times."
        )
