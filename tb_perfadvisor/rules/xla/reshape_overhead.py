"""Reshapes that move data."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation


class ReshapeOverhead(CostlyOperations):
    """Reshapes move whole arrays because their elements land in other tiles.

    What it finds
    -------------
    Reshapes that XLA executes as separate operations. Reshapes that cost nothing are bitcasts and
    do not count.

    Why it matters
    --------------
    If the two minor-most dimensions change, every element lands in another tile: the whole array is
    read and written.

    How it is measured
    ------------------
    High is all the time in which the core executes only these operations. Expected is half of it,
    because the algorithm needs some of them; low is 0.

    When to ignore
    --------------
    When the array has to be flattened once, before the last layer.

    How to verify
    -------------
    The reshapes are gone from the list of operations.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on tf.reshape; OpenXLA, "Tiled layout".
    """

    id = "reshape-overhead"
    title = "Keep the last two dimensions when reshaping"

    minimum_share = Limit(
        0.02, "share", "Flattening the input of the last layer takes about this much."
    )

    activity = "goes into reshaping arrays in memory"
    noun = "reshape"
    remaining_share = 0.5
    changes = ("contracted-dimensions", "leading-dimensions")
    moves_data = True

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is a reshape that moves data."""
        return operation.opcode == "reshape" or operation.name.startswith("reshape")
