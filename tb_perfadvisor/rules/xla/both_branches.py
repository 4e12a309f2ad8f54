"""Conditions after whose both sides have been computed."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.both_branches import Choice, both_branches
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns

_COUNTED = (0.15, 0.02, 0.5)
"""What remains of a branch that a counter asks for: every seventh step as expected, every second at
worst."""
_AT_BEST = 0.05


class BothBranches(FasterOperations):
    """All branches are computed, and one result is taken.

    What it finds
    -------------
    Results that are computed for a select alone. JAX makes selects of `lax.cond` and `lax.switch`
    whose condition differs between the elements of a `vmap`, and of `jnp.where`. The latter is
    reported if a counter decides for all elements at once.

    Why it matters
    --------------
    A select computes everything it chooses from. A branch that is meant for every tenth step runs
    in each.

    How it is measured
    ------------------
    If a counter decides, expected leaves 15 % of the branch, low a half, and high 2 %. Else
    expected leaves an equal part for each branch, low everything, and high 5 %: how often each is
    taken is unknown.

    When to ignore
    --------------
    When the elements of the batch really differ, and no branch is rare.

    How to verify
    -------------
    The program has a conditional, and the branch's operations run less often.

    References:
    ----------
    JAX documentation, `jax.lax.cond`, on `vmap`.
    """

    id = "both-branches"
    title = "Compute only the branch that is taken"

    minimum_share = Limit(0.05, "share", "A conditional costs something, too.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("one-branch",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations of branches, of which those that are taken remain."""
        return [
            FasterOperation(o, expected * now, best * now, worst * now)
            for found in both_branches(signals)
            for expected, best, worst in (_remains(found),)
            for o in found.operations
            for now in (mean_ns(signals, o),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest choice."""
        worst = max(both_branches(signals), key=lambda one: total_ns(signals, one.operations))
        where = f" ({worst.line})" if worst.line else ""
        return f"a select of {worst.branches} results{where}", (
            f"{cost} goes into branches that are computed whether they are taken or not{where}."
        )


def _remains(found: Choice) -> tuple[float, float, float]:
    if found.is_counted:
        return _COUNTED
    return 1 / found.branches, _AT_BEST, 1.0
