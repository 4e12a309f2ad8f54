"""Gradients of max pooling."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation


class MaxPoolGradient(CostlyOperations):
    """The gradient of max pooling searches each window again.

    What it finds
    -------------
    `select-and-scatter` operations: the backward pass of max pooling.

    Why it matters
    --------------
    It searches each window for the largest element once more and writes into overlapping windows.
    The gradient of an average is a multiplication.

    How it is measured
    ------------------
    High is all the time in which the core executes only these operations. XLA fuses nothing with
    them, so it also includes the time that those before and after them spend on the arrays that
    they exchange, by the share of bytes. Expected is half of the time of these operations, because
    average pooling needs a gradient, too; low is 0.

    When to ignore
    --------------
    When the model needs the maximum: a pretrained model, or one whose accuracy falls without it.

    How to verify
    -------------
    No `select-and-scatter` is left among the operations.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on max_pool and avg_pool; OpenXLA, "Operation
    semantics", on SelectAndScatter.
    """

    id = "max-pool-gradient"
    title = "Use average pooling where accuracy allows"

    minimum_share = Limit(
        0.02, "share", "A single pooling layer after the first layer takes about this much."
    )

    activity = "goes into gradients of max pooling"
    noun = "gradient"
    remaining_share = 0.5
    breaks_fusion = True
    changes = ("average-pooling",)

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is the backward pass of max pooling."""
        return operation.opcode == "select-and-scatter" or operation.name.startswith(
            ("select-and-scatter", "select_and_scatter")
        )
