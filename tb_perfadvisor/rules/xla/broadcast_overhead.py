"""Broadcasts that repeat an array in memory to match another operand."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.xla.costly_operations import CostlyOperations
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_REMEDIES = (
    Remedy(
        text="Combine the small operands first and the large one last.",
        snippet="y = x * (scale * gain) + (bias + shift)",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Use einsum instead of expanding an operand and summing.",
        snippet="y = jnp.einsum('bi,io->bo', x, w)  # not (x[:, :, None] * w[None]).sum(1)",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.numpy.einsum.html",
    ),
)


class BroadcastOverhead(CostlyOperations):
    """Arrays are repeated in memory to match the shape of another operand.

    What it finds
    -------------
    Broadcasts of whole arrays that XLA executes as separate operations, not inside the operation
    that uses them. Constants that fill an array do not count.

    Why it matters
    --------------
    A vector that is added to a matrix is first expanded to a matrix, which is written and read at
    full size. In another order of computation, the vector stays a vector.

    How it is measured
    ------------------
    High and expected are all the time in which the core executes only these operations; low is 0.

    When to ignore
    --------------
    When several operations use the expanded array and each would expand it again.

    How to verify
    -------------
    The broadcasts are gone from the list of operations, or are inside fusions.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on broadcasting.
    """

    id = "broadcast-overhead"
    title = "Reorder the computation to avoid large broadcasts"

    minimum_share = Limit(0.02, "share", "One broadcast per layer takes about this much.")

    activity = "goes into repeating arrays in memory"
    noun = "broadcast"
    remaining_share = 0.0
    remedies = _REMEDIES

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation repeats a whole array."""
        operands = operation.instruction.operands
        return operation.opcode == "broadcast" and any(shape.dims for shape in operands)
