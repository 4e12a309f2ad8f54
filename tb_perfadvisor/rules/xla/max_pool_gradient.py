"""Gradients of max pooling."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.rules.xla.costly_operations import costly_operations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_REMEDIES = (
    Remedy(
        text="Pool by the average.",
        snippet='x = tf.nn.avg_pool2d(x, ksize=2, strides=2, padding="SAME")',
        framework="tensorflow",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Pool by the average, or stride the convolution before it instead.",
        snippet="x = flax.linen.avg_pool(x, window_shape=(2, 2), strides=(2, 2))",
        framework="jax",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
)


class MaxPoolGradient(Rule):
    """The gradient of a max pooling searches each window again.

    What it finds
    -------------
    Operations `select-and-scatter`: the backward pass of max pooling.

    Why it matters
    --------------
    It looks for the largest element of each window once more and writes into overlapping windows.
    The gradient of an average is a multiplication.

    How it is measured
    ------------------
    All their time in which the core executes nothing else is high; expected is half of it, for
    an average has to be taken back as well; low is 0.

    When to ignore
    --------------
    When the model needs the largest: a pretrained one, or one whose accuracy falls.

    How to verify
    -------------
    No `select-and-scatter` is left among the operations.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on max_pool and avg_pool; OpenXLA, "Operation
    semantics", on SelectAndScatter.
    """

    id = "max-pool-gradient"
    title = "Pool by the average where it serves"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.02, "share", "A single pooling behind the first layer takes about a fiftieth of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when they take a good part of the step."""
        return costly_operations(
            signals,
            is_max_pool_gradient,
            what="goes into gradients of max pooling",
            noun="gradient",
            remaining=0.5,
            minimum_share=self.minimum_share,
            remedies=_REMEDIES,
        )


def is_max_pool_gradient(operation: XlaOperation) -> bool:
    """Whether an operation is the backward pass of a max pooling."""
    return operation.opcode == "select-and-scatter" or operation.name.startswith(
        ("select-and-scatter", "select_and_scatter")
    )
