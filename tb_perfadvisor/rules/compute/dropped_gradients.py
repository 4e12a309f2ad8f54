"""Gradients that are computed, and that no update uses."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, Parts, place_of_observed
from tb_perfadvisor.signals import Signals


class DroppedGradients(ExaminedOperators):
    """The backward pass computes gradients that are cleared, or kept, without an update.

    What it finds
    -------------
    In a PyTorch program, operators of the backward pass that lead only to gradients of
    parameters which are not updated before the gradient begins anew: of a generator while its
    discriminator learns, of a part that is meant to be frozen, of a teacher.

    Why it matters
    --------------
    The backward pass takes about twice the forward pass. Where nothing uses its results, a
    `detach()`, `no_grad()` or `requires_grad_(False)` saves it, and the memory of activations.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each gradient is followed from its accumulation to
    the next update, and each node of the backward pass to the gradients that it leads to. Expected
    is the time of the nodes that lead to none that is used, and half of those that make a gradient
    of a weight besides one of their input. Low is 70 % of it.

    When to ignore
    --------------
    When the gradients are read by something else than an optimizer.

    How to verify
    -------------
    The backward pass has fewer nodes, and losses are the same.

    References:
    ----------
    PyTorch documentation, "Autograd mechanics", on disabling gradient computation.
    """

    id = "dropped-gradients"
    title = "Stop computing gradients that nothing uses"
    kinds = ("dropped gradients",)
    look = "dropped gradients"
    changes = ("no-unused-gradients",)
    basis = "measured"

    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """All of it."""
        return 0.7, 1.0, 1.25

    def describe(self, observed: Observed, cost: str) -> str:
        return (
            f"{cost} goes into gradients that no update uses, mostly of what"
            f" {place_of_observed(observed)} computes. Detach that result where it is only an"
            " input, or freeze the parameters."
        )
