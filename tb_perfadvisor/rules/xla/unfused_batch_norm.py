"""Batch normalization that is computed in separate operations."""

from __future__ import annotations

import re

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_PIECE = (
    r"(?:^|/)(?:batchnorm(?:_\d+)?/(?:add|mul|sub|Rsqrt)(?:_\d+)?"
    r"|moments(?:_\d+)?/(?:mean|variance|SquaredDifference|StopGradient))"
)
_OTHER_NORMALIZATION = r"(?i)layer_?norm|group_?norm|instance_?norm|rms_?norm"


class UnfusedBatchNorm(CostlyOperations):
    """Batch normalization is computed in separate operations.

    What it finds
    -------------
    Operations of `tf.nn.moments` and `tf.nn.batch_normalization`, recognized by the names that
    TensorFlow gives them. Layer, group and instance normalization do not count.

    Why it matters
    --------------
    Mean, variance, scale and shift each read the activations again. The fused operation reads them
    twice and writes them once.

    How it is measured
    ------------------
    High is all the time in which the core executes only these operations. Expected is half of it,
    because the fused operation moves about half the bytes; low is 0.

    When to ignore
    --------------
    When the normalization differs from the fused one: over other dimensions, or with other moments.

    How to verify
    -------------
    The names contain `FusedBatchNorm`, and there are fewer such operations.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on fused_batch_norm; Ioffe and Szegedy, "Batch
    normalization" (ICML 2015).
    """

    id = "unfused-batch-norm"
    title = "Use fused batch normalization"

    minimum_share = Limit(
        0.03, "share", "The fused operation takes a few percent of the step as well."
    )

    activity = "goes into unfused batch normalization"
    noun = "operation"
    remaining_share = 0.5
    changes = ("fused-batch-norm", "keras-batch-norm", "library-batch-norm")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is a part of an unfused batch normalization."""
        path = operation.path
        return re.search(_PIECE, path) is not None and re.search(_OTHER_NORMALIZATION, path) is None
