"""Hessians that are computed to be multiplied by a few vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.whole_hessians import whole_hessians

_WORST = 3.0


class WholeHessian(FasterOperations):
    """The step computes a Hessian to multiply it by a few vectors.

    What it finds
    -------------
    A Hessian that is multiplied by vectors and read by nothing else, as in conjugate gradients. The
    embedded program names what computes it, and the recording shows how many products follow.

    Why it matters
    --------------
    A Hessian has as many columns as there are parameters, and each takes about as long as a
    gradient. The derivative of the gradient in the direction of a vector is the product, without
    the matrix.

    How it is measured
    ------------------
    A product is expected to take as long as three columns: the gradient is computed again, and
    small products are slower than large ones. At best it takes as long as one, at worst as nine.

    When to ignore
    --------------
    When there are about as many products as parameters.

    How to verify
    -------------
    No array of parameters by parameters is left.

    References:
    ----------
    Pearlmutter, "Fast exact multiplication by the Hessian" (1994); JAX documentation, "The autodiff
    cookbook", on Hessian-vector products.
    """

    id = "whole-hessian"
    title = "Multiply by the Hessian without computing it"

    minimum_share = Limit(0.03, "share", "A Hessian of few parameters takes less than this.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("hessian-vector-products",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations of Hessians, of which their products with vectors remain."""
        return [
            FasterOperation(o, share * now, share / _WORST * now, min(_WORST * share, 1.0) * now)
            for found in whole_hessians(signals)
            for share in (found.remains,)
            for o in found.operations
            for now in (mean_ns(signals, o),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest Hessian."""
        worst = max(whole_hessians(signals), key=lambda one: total_ns(signals, one.operations))
        where = f" ({worst.line})" if worst.line else ""
        return f"{worst.columns:,} columns for {worst.products:.0f} products{where}", (
            f"{cost} goes into a Hessian of {worst.columns:,} columns that is multiplied by"
            f" {worst.products:.0f} vectors{where}."
        )
