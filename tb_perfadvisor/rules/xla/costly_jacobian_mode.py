"""Jacobians with a derivative for each row where one for each column is cheaper, or vice versa."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.jacobians import Jacobian, jacobians

_FORWARD = (0.6, 0.1, 1.5)
"""A pass forward, in passes backward: as expected, at best and at worst. XLA fuses a whole pass
forward, but none of the sums of a pass backward."""
_BACKWARD = (1.7, 0.7, 10.0)


class CostlyJacobianMode(FasterOperations):
    """A Jacobian is computed in the direction that takes more passes.

    What it finds
    -------------
    Jacobians of at least twice as many outputs as inputs that are computed backward, as by
    `jax.jacrev`, and those of at least four times as many inputs as outputs that are computed
    forward, as by `jax.jacfwd`. The embedded program shows the directions and the sizes.

    Why it matters
    --------------
    Backward takes one pass for each output, forward one for each input. Residuals of a fit by least
    squares are many, and its parameters are few.

    How it is measured
    ------------------
    What remains are as many passes as there are on the other side. A pass forward is expected to
    take 0.6 of one backward, which also reads what was kept; at best a tenth, at worst one and a
    half. A pass backward takes the inverse of these.

    When to ignore
    --------------
    When the function has a custom derivative for one direction alone.

    How to verify
    -------------
    The derivative is mapped over the smaller side.

    References:
    ----------
    JAX documentation, "The autodiff cookbook", on `jacfwd` and `jacrev`; Griewank and Walther,
    "Evaluating Derivatives", section 4.5, which bounds both passes.
    """

    id = "costly-jacobian-mode"
    title = "Compute the Jacobian over its smaller side"

    minimum_share = Limit(0.03, "share", "Small Jacobians take less than this.")
    least_ratio_backward = Limit(
        2.0, "ratio", "Passes forward are cheaper; closer sides depend on the function."
    )
    least_ratio_forward = Limit(
        4.0, "ratio", "By Griewank and Walther, a pass backward takes up to four evaluations."
    )

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations of such Jacobians, of which passes over the smaller side remain."""
        return [
            FasterOperation(o, *(min(factor * ratio, 1.0) * now for factor in factors))
            for found in self._costly(signals)
            for ratio, factors in (_other_direction(found),)
            for o in found.operations
            for now in (mean_ns(signals, o),)
        ]

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """The other direction than that of the costliest."""
        return ("jacobian-forward",) if self._worst(signals).is_reverse else ("jacobian-backward",)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest Jacobian."""
        worst = self._worst(signals)
        where = f" ({worst.line})" if worst.line else ""
        way = "backward, with a pass for each output" if worst.is_reverse else "forward"
        size = f"{worst.outputs:,} outputs of {worst.inputs:,} inputs"
        return (
            f"{size}{where}",
            f"{cost} goes into a Jacobian that is computed {way}: {size}{where}.",
        )

    def _costly(self, signals: Signals) -> list[Jacobian]:
        least = {True: self.least_ratio_backward, False: self.least_ratio_forward}
        return [
            found
            for found in jacobians(signals)
            if _other_direction(found)[0] * least[found.is_reverse] <= 1
        ]

    def _worst(self, signals: Signals) -> Jacobian:
        return max(self._costly(signals), key=lambda one: total_ns(signals, one.operations))


def _other_direction(found: Jacobian) -> tuple[float, tuple[float, float, float]]:
    """How many passes the other direction takes for each one now, and what one takes."""
    if found.is_reverse:
        return found.inputs / found.outputs, _FORWARD
    return found.outputs / found.inputs, _BACKWARD
