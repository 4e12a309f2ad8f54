"""Arguments that an XLA program copies because it may not overwrite them."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.updates import copied_updates, updates
from tb_perfadvisor.units import format_bytes


class UndonatedArguments(FasterOperations):
    """The step copies whole arrays to change a few of their elements.

    What it finds
    -------------
    Arguments that the program updates in place (`dynamic_update_slice`, `scatter`) and returns, if
    the result does not take the memory of the argument. The embedded program shows both.

    Why it matters
    --------------
    The caller may still use an argument that it has not donated. So XLA copies it first. In
    decoding, that is the whole cache for each token.

    How it is measured
    ------------------
    A copy reads and writes the array once. Low assumes that the writing alone goes, and high that
    both go. Expected is halfway, because whatever else reads the array can share the reading. The
    time is that of the operations on the array: copies, updates, and those that read it.

    When to ignore
    --------------
    When the old array is still needed after the step.

    How to verify
    -------------
    The copies are gone, and the program's results take no memory of their own.

    References:
    ----------
    JAX documentation, "Buffer donation".
    """

    id = "undonated-arguments"
    title = "Donate the arguments that the step returns updated"

    minimum_share = Limit(0.03, "share", "Copies of small arrays take less than this.")

    noun = "operation on the array"
    changes = ("donated-arguments",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The copies, and what else works on the arrays."""
        return copied_updates(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """Which arrays are copied."""
        found = [u for u in updates(signals) if u.how == "in-place" and not u.is_aliased]
        size = format_bytes(sum(update.shape.padded_bytes for update in found))
        return f"{len(found)} arrays of {size}", (
            f"{cost} goes into {len(found)} arrays of {size} in all, which the program copies to"
            " change a part of each, because its caller has not donated them."
        )
