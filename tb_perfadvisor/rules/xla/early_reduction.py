"""Partial results that are summed up over devices where another split needs less."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.devices import early_reductions, with_later_reductions
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.units import format_share


class EarlyReduction(FasterOperations):
    """Devices sum up a larger array than they need to.

    What it finds
    -------------
    All-reduces of the partial results of a matrix product whose contracted dimension is split over
    the devices, if only element-wise operations and one further product follow, and the result of
    that one is smaller.

    Why it matters
    --------------
    If the first weights are split by their columns, each device computes its columns without an
    exchange. The second product contracts them, and its smaller result is summed up (Megatron-LM's
    order).

    How it is measured
    ------------------
    The all-reduce takes the share of its time that the smaller array has in the bytes. High assumes
    that half of the rest overlaps with work, low is half of what is expected.

    When to ignore
    --------------
    When something else needs the whole array between the two products.

    How to verify
    -------------
    The all-reduce between the two products is gone.

    References:
    ----------
    Shoeybi et al., "Megatron-LM" (2019), section 3.
    """

    id = "early-reduction"
    title = "Split the weights by their columns first"

    refines = "exposed-communication"

    minimum_share = Limit(0.03, "share", "Less is within the variation of collectives.")

    noun = "collective"
    changes = ("columns-first",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The all-reduces of the larger arrays."""
        return with_later_reductions(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest array that is summed up."""
        found = early_reductions(signals)
        largest = max(found, key=lambda r: r.running.program.shape_of(r.reduced).padded_bytes)
        program = largest.running.program
        shape, then = program.shape_of(largest.reduced), program.shape_of(largest.next_product)
        return f"{shape} is summed up", (
            f"{cost} goes into summing {shape} up over {program.devices} devices between two"
            f" products ({len(found)} times). The result of the second, {then}, is smaller: summed"
            f" up instead, it takes {format_share(largest.share)} of the bytes."
        )
