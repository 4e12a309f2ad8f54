"""Weights of few bits that are widened before each product."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.widened_arguments import without_widening


class WidenedWeights(FasterOperations):
    """The step widens whole matrices of 8-bit weights before it multiplies them.

    What it finds
    -------------
    Operations that convert large arguments of 8 bits or less to a wider type, perhaps scale them,
    and multiply nothing themselves, if a matrix product reads what they compute.

    Why it matters
    --------------
    8-bit weights are meant to save bandwidth. Converting each of them in an operation of its own
    takes longer than reading them. A product converts its factor while it reads it, and its result,
    which is scaled by the same numbers, has far fewer elements.

    How it is measured
    ------------------
    High is the time of these operations. Expected is what they take beyond reading the narrow
    numbers; low is half of it.

    When to ignore
    --------------
    When the scales differ along the dimension that is contracted: then scale by blocks.

    How to verify
    -------------
    The operations are gone, and the products read the narrow type.

    References:
    ----------
    Dettmers et al., "LLM.int8()" (2022); AQT and Qwix, JAX libraries for quantized products.
    """

    id = "widened-weights"
    title = "Scale the result instead of the weights"

    minimum_share = Limit(0.03, "share", "Small matrices are widened in less than this.")

    noun = "operation"
    changes = ("scale-the-result",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations that widen weights."""
        return without_widening(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """How many matrices are widened."""
        found = without_widening(signals)
        shape = found[0].operation.instruction.results[0]
        return f"{len(found)} operations", (
            f"{cost} goes into widening 8-bit weights before they are multiplied, in {len(found)}"
            f" operations; most in {found[0].operation.name}, to {shape}."
        )
