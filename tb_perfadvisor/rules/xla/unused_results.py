"""Products whose results are partly thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.useful_work import (
    partly_used_products,
    without_unused_parts,
)
from tb_perfadvisor.units import format_share


class UnusedResults(FasterOperations):
    """The step multiplies matrices and then uses a part of the result.

    What it finds
    -------------
    Matrix products and convolutions whose result is only moved and mapped element by element, until
    a slice or a gather takes some elements: logits of all positions where few count, or every other
    result of a convolution. The operations before such a product count as well, if a position's row
    needs no other row: all layers after the last attention. Scores that a mask hides which depends
    on positions alone: a window of attention, or a causal mask of 2,048 positions or more. What is
    multiplied by gates that are zero for most experts. In the backward pass, products with an array
    of zeros into which a part was filled, a quarter at most if it may be anywhere. Pairs of rows
    and columns that a gather takes do not count: no product computes them alone. The embedded
    program shows what becomes of each result.

    Why it matters
    --------------
    XLA does not move a gather before a product. The work on the other elements is for nothing.

    How it is measured
    ------------------
    Operations on the result take the share of their time that the elements which are used have in
    all. Expected is that half as much again remains, because smaller operations are less efficient.
    Behind a mask, it is twice as much or an eighth of all more, because blocks along it contain
    some of the rest. High assumes that half of the share remains, because smaller arrays may stay
    on the chip; low that half of what nobody uses goes. Scores of 64 MiB or more that a mask hides
    do not fit there, but those of a block do: then high is all but the FLOP of the share, and
    expected halfway to that.

    When to ignore
    --------------
    When other programs need the other elements.

    How to verify
    -------------
    The product's result has the size of what is used.

    References:
    ----------
    OpenXLA, "Operation semantics", on Gather and Slice.
    """

    id = "unused-results"
    title = "Compute only what is used"

    minimum_share = Limit(0.03, "share", "Less is within the variation of smaller operations.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("select-first", "stride-of-convolution", "blocks-of-window")

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
