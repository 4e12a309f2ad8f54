"""Activations that `jax.checkpoint` computes again on a machine with room for them."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations

_REMATTED = "rematted_computation"
_REMAINS = (0.1, 0.0, 0.5)
"""What remains, as expected, at best and at worst: activations are written and read instead."""


class CheckpointOnCpu(FasterOperations):
    """A program on the CPU computes activations again that would fit in memory.

    What it finds
    -------------
    Operations that `jax.checkpoint` repeats in the backward pass. JAX's names tell.

    Why it matters
    --------------
    Checkpointing trades arithmetic for memory. The memory of a host holds many times what that of
    a device does, and its arithmetic is slower.

    How it is measured
    ------------------
    Expected leaves 10 % of the time of these operations, low a half, and high nothing: activations
    are written and read instead.

    When to ignore
    --------------
    When the activations do not fit in the host's memory.

    How to verify
    -------------
    No operation is repeated, and the step gets shorter.

    References:
    ----------
    JAX documentation, "Gradient checkpointing".
    """

    id = "checkpoint-on-cpu"
    title = "Keep activations instead of computing them again"

    minimum_share = Limit(0.05, "share", "Half of a smaller share is within the noise of a CPU.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.CPU_PROGRAM)

    noun = "operation"
    changes = ("less-checkpointing",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """What is computed again."""
        return [
            FasterOperation(operation, *(share * now for share in _REMAINS))
            for operation in _repeated(signals)
            for now in (mean_ns(signals, operation),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest operation's line."""
        count = len(_repeated(signals))
        return f"{count} operations", (
            f"{cost} goes into {count} operations that jax.checkpoint computes again."
        )


def _repeated(signals: Signals) -> list[XlaOperation]:
    return [operation for operation in xla_operations(signals) if _REMATTED in operation.path]
