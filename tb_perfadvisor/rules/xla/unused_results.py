"""Products whose results are partly thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.useful_work import partly_used_products, without_unused_parts
from tb_perfadvisor.units import format_share


class UnusedResults(FasterOperations):
    """The step multiplies matrices and then uses a part of the result.

    What it finds
    -------------
    Matrix products and convolutions whose result is only moved and mapped element by element, until
    slices take some elements: logits of all positions where the last counts, or every other result
    of a convolution. The operations before such a product count as well, if a position's row needs
    no other row: all layers after the last attention. In the backward pass, products with an array
    that is padded with zeros. The embedded program shows what becomes of each result.

    Why it matters
    --------------
    XLA does not move a slice before a product. The work on the other elements is for nothing.

    How it is measured
    ------------------
    Operations on the result take the share of their time that the elements which are used have in
    all. Expected is that half as much again remains, because smaller operations are less efficient.
    High assumes that half of the share remains, because smaller arrays may stay on the chip; low
    that half of what nobody uses goes. What a gather takes does not count: to gather before the
    product can take longer than the product.

    When to ignore
    --------------
    When other programs need the other elements.

    How to verify
    -------------
    The product's result has the size of what is used.

    References:
    ----------
    OpenXLA, "Operation semantics", on Slice and Pad.
    """

    id = "unused-results"
    title = "Compute only what is used"

    minimum_share = Limit(0.03, "share", "Less is within the variation of smaller operations.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("select-first", "stride-of-convolution")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products, and what works on their results."""
        return without_unused_parts(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest product of which a part is used."""
        found = partly_used_products(signals)
        worst = max(found, key=lambda part: part.running.program.shape_of(part.product).elements)
        program = worst.running.program
        shape, line = program.shape_of(worst.product), program.lines.get(worst.by, "")
        used = format_share(worst.used)
        return f"{used} of {shape}", (
            f"{cost} goes into products of which a part is for nothing. Of {shape}, {used} is"
            f" used: a {program.name_of(worst.by)}{f' in {line}' if line else ''} takes or fills"
            " that part."
        )
