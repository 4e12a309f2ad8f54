"""Every data-parallel rank updates all parameters."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.ranks.exposed_communication import ReplicatedUpdates, replicated_updates
from tb_perfadvisor.trace.intervals import total_ns


class ReplicatedOptimizer(Rule):
    """Every data-parallel rank updates all parameters.

    What it finds
    -------------
    Compute inside `Optimizer.step` in a program whose ranks all-reduce their gradients and then
    all compute the same update.

    Why it matters
    --------------
    The update depends only on the summed gradients. Each of n ranks can compute one n-th of it, if
    they then gather the updated parameters. That also divides the memory of the optimizer's state.

    How it is measured
    ------------------
    The time in which the optimizer computes, minus one n-th. Gathering the parameters sends half of
    what the all-reduce of the gradients sends, and if gradients are reduced and scattered, nothing
    is added in all; but no backward pass hides the gathering. Expected is the gain minus half of
    the time of these all-reduces, low is the gain minus all of it, and high is the gain. Loops over
    parameters don't count: their fused form is the cheaper change.

    When to ignore
    --------------
    When the update needs whole parameters, as Muon and Shampoo do, and is not written for shards.

    How to verify
    -------------
    The compute in `Optimizer.step` falls to about one n-th, and the step by nearly as much.

    References:
    ----------
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC
    2020), sections 5 and 7.
    """

    id = "replicated-optimizer"
    title = "Let each rank update only a share of the parameters"
    category = "communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS, Need.PYTORCH)

    minimum_share = Limit(0.03, "share", "Sharding is a larger change than an argument.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when sharding the updates would gain more than gathering costs."""
        updates = replicated_updates(signals)
        if updates is None:
            return
        saving = _saving(updates)
        if self.is_minor(saving.expected_ns, signals):
            return
        compute_ns = total_ns(updates.compute)
        yield Finding(
            instance=f"{per_step(compute_ns, signals)} on each of {updates.ranks} ranks",
            summary=(
                f"{per_step(compute_ns, signals)} is the optimizer's compute, the same on each of"
                f" {updates.ranks} ranks. Sharded, it would be"
                f" {per_step(compute_ns // updates.ranks, signals)}, plus the gathering of updated"
                " parameters."
            ),
            saving=saving,
            evidence=(_parts(signals, updates),),
            remedies=advise("sharded-updates"),
        )


def _saving(updates: ReplicatedUpdates) -> Saving:
    compute_ns = total_ns(updates.compute)
    gain_ns = compute_ns - compute_ns // updates.ranks
    return Saving(
        max(gain_ns - updates.all_reduce_ns, 0),
        max(gain_ns - updates.all_reduce_ns // 2, 0),
        gain_ns,
        updates.compute,
        "modeled",
    )


def _parts(signals: Signals, updates: ReplicatedUpdates) -> Table:
    steps, compute_ns = signals.steps.count, total_ns(updates.compute)
    return Table(
        "The optimizer, per step",
        (Column("what", "What"), Column("time_ns", "Time", "ns")),
        (
            ("compute, on every rank", compute_ns // steps),
            (
                f"compute, sharded across {updates.ranks} ranks",
                compute_ns // updates.ranks // steps,
            ),
            ("gathering what was updated, about", updates.all_reduce_ns // 2 // steps),
        ),
    )
