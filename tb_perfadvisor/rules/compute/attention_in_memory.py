"""Attention on the CPU whose scores do not fit in the cache."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.signals import Signals

_SAVED = (0.25, 0.48, 0.65)
"""The part of the time of attention that one operator saves: low, expected, high. With PyTorch 2.13
on one core, training with 8 to 32 MB of scores took 50 to 54 % less, and inference 61 to 79 %; with
4 MB, 18 and 16 %."""


class AttentionInMemory(ExaminedOperators):
    """Attention on the CPU writes all its scores to memory.

    What it finds
    -------------
    In a PyTorch program on the CPU, a product, a softmax of its result, and a product that uses it,
    with scaling, masks and dropout in between, if the scores are 1.5 million numbers or more, and
    nothing else reads them. `torch.nn.MultiheadAttention` computes so if it also returns the
    weights, even where nobody reads them.

    Why it matters
    --------------
    The scores are a matrix of queries times keys for each head. Each operator writes and reads all
    of them, through memory if they do not fit in the cache. One operator for all works on tiles.

    How it is measured
    ------------------
    `perfadvisor run` follows the results of products through a few steps. Expected is 48 % of the
    time of these operators and of their gradients, as measured on one core; low is a quarter, and
    high 65 %.

    When to ignore
    --------------
    When the weights themselves are needed, for a figure or a loss.

    How to verify
    -------------
    The profile shows `aten::_scaled_dot_product_flash_attention_for_cpu`.

    References:
    ----------
    Dao et al., "FlashAttention" (2022); PyTorch documentation,
    `torch.nn.functional.scaled_dot_product_attention` and `torch.nn.MultiheadAttention`.
    """

    id = "attention-in-memory"
    title = "Compute attention in one operator"
    kinds = ("unfused attention",)
    changes = ("weights-not-returned", "fused-attention")

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """What one operator saves on the CPU; on devices, their kernels tell more."""
        return _SAVED if signals.device.is_host_only else (0.0, 0.0, 0.0)

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """Where the weights are averaged, a layer of PyTorch returns them."""
        return self.changes if costliest.amount else self.changes[1:]

    def describe(self, observed: Observed, cost: str) -> str:
        """Where the scores are made."""
        return (
            f"{cost} goes into attention that writes all its scores to memory, in"
            f" {place_of_observed(observed)}: products, a softmax, and what is between them."
        )
