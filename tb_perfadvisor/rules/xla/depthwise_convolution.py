"""Convolutions that process each channel separately."""

from __future__ import annotations

import re

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.xla.costly_operations import CostlyOperations
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_REMEDIES = (
    Remedy(
        text="In the early layers, merge expansion and depthwise convolution into a regular one.",
        snippet='x = tf.keras.layers.Conv2D(4 * channels, kernel_size=3, padding="same")(x)',
        framework="tensorflow",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Use groups of at least 128 channels.",
        snippet="groups = max(channels // 128, 1)\n"
        "conv = flax.linen.Conv(channels, (3, 3), feature_group_count=groups)",
        framework="jax",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
)


class DepthwiseConvolution(CostlyOperations):
    """Depthwise convolutions leave most of the matrix unit idle.

    What it finds
    -------------
    Convolutions with as many groups as input channels, and those that the framework names
    depthwise.

    Why it matters
    --------------
    The matrix unit multiplies 128 channels by 128. A depthwise convolution sums over a single
    channel at a time, so it uses about 1 % of the unit but occupies all of it.

    How it is measured
    ------------------
    High is all the time in which the core executes only these operations. Expected is half of it,
    because the replacement takes time, too; low is 0.

    When to ignore
    --------------
    When the weights cannot change, as in a pretrained model.

    How to verify
    -------------
    The convolutions have few groups, and the matrix unit is used more.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on depthwise_conv2d; Gupta and Akin,
    "Accelerator-aware neural network design using AutoML" (2020).
    """

    id = "depthwise-convolution"
    title = "Replace depthwise convolutions with regular ones"

    minimum_share = Limit(
        0.03,
        "share",
        "A single depthwise convolution after the input takes a few percent of a step.",
    )

    activity = "goes into depthwise convolutions"
    noun = "convolution"
    remaining_share = 0.5
    remedies = _REMEDIES

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is a depthwise convolution."""
        instruction = operation.instruction
        if operation.opcode == "convolution" and instruction.labels is not None:
            place, left = instruction.labels[0].find("f"), instruction.operands[:1]
            channels = left[0].dims[place] if left and 0 <= place < len(left[0].dims) else 0
            return 1 < channels == instruction.feature_groups
        is_product = "convolution" in operation.category
        return is_product and re.search(r"(?i)depthwise", operation.path) is not None
