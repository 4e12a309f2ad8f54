"""Transposes and copies to another layout."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.rules.xla.costly_operations import costly_operations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_REMEDIES = (
    Remedy(
        text="Let einsum choose the order instead of transposing by hand.",
        snippet="scores = jnp.einsum('bqhd,bkhd->bhqk', q, k)  # no transpose before it",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.numpy.einsum.html",
    ),
    Remedy(
        text="Ask the product for transposed operands instead of transposing them.",
        snippet="y = tf.matmul(x, w, transpose_b=True)",
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/linalg/matmul",
    ),
    Remedy(
        text="Stack what a scan carries along its first dimension, in the layer's own layout.",
    ),
)


class TransposeOverhead(Rule):
    """The core moves arrays from one layout to another.

    What it finds
    -------------
    Transposes, and copies whose operand and result have their dimensions in another order or
    other tiles.

    Why it matters
    --------------
    A transpose is free only where XLA can give the array its new layout from the start. Between
    operations that want different ones it reads and writes the whole array.

    How it is measured
    ------------------
    All their time in which the core executes nothing else is high; expected is half of it, as some
    of them an algorithm needs; low is 0.

    When to ignore
    --------------
    When the arrays come in one layout and leave in another: one of them is needed.

    How to verify
    -------------
    The copies are gone; the arrays keep one layout through the step.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on tf.transpose; OpenXLA, "Shapes and layout".
    """

    id = "transpose-overhead"
    title = "Keep one order of dimensions through the step"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.03, "share", "Inputs and results change their layout once: a few hundredths of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when they take a good part of the step."""
        return costly_operations(
            signals,
            is_transpose,
            what="moves arrays to another layout",
            noun="relayout",
            remaining=0.5,
            minimum_share=self.minimum_share,
            remedies=_REMEDIES,
        )


def is_transpose(operation: XlaOperation) -> bool:
    """Whether an operation only changes an array's layout."""
    if operation.opcode == "transpose":
        return True
    instruction = operation.instruction
    if operation.opcode != "copy" or not (instruction.operands and instruction.results):
        return False
    before, after = instruction.operands[0], instruction.results[0]
    return (before.minor_to_major, before.tiles) != (after.minor_to_major, after.tiles)
