"""Gradients that are reduced in every micro-batch of an accumulated one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Finding, Limit, Remedy, Rule, share_of_window
from tb_perfadvisor.rules.communication.shortened import shortened, taken_ns
from tb_perfadvisor.rules.evidence.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.gradient_accumulation import micro_batches
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import last_before

_REMEDIES = (
    Remedy(
        text="Reduce once per accumulated batch: leave the reduction out of all micro-batches but "
        "the last.",
        snippet=(
            "with model.no_sync():\n"
            "    for micro_batch in micro_batches[:-1]:\n"
            "        loss_fn(model(micro_batch)).backward()\n"
            "loss_fn(model(micro_batches[-1])).backward()\n"
            "optimizer.step()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/"
        "torch.nn.parallel.DistributedDataParallel.html",
    ),
)


class RedundantAllReduce(Rule):
    """Gradients are reduced once per micro-batch, not once per optimizer step.

    What it finds
    -------------
    Steps in which DistributedDataParallel runs forward several times for one optimizer step,
    and reduces gradients each time.

    Why it matters
    --------------
    Accumulated gradients are only needed when the optimizer uses them. All reductions before
    the last send what will be overwritten by the next sum.

    How it is measured
    ------------------
    Forward passes per optimizer step, by the recorder's own annotations; all-reduces come in as
    many equal rounds. All rounds but the last would go: high is their exposed time without
    waiting. With ranks missing it may be waiting, so low is 0 and expected half.

    When to ignore
    --------------
    When several models, or one model several times by intention, run in a step.

    How to verify
    -------------
    All-reduces per step fall to one round; the step falls by the exposed part of the others.

    References:
    ----------
    PyTorch documentation, `DistributedDataParallel.no_sync`.
    """

    id = "redundant-all-reduce"
    title = "Reduce gradients once per optimizer step"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "Less of the step is not worth another code path.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when every micro-batch reduces."""
        rounds = micro_batches(signals)
        collectives, steps = signals.collectives, signals.steps
        own = collectives.of("all-reduce")
        if rounds < 2 or not own.any():
            return
        at = signals.trace.events.start_ns[collectives.row]
        step = last_before(steps.start_ns, at)
        chosen = np.zeros(len(collectives), dtype=bool)
        for index in distinct(step[own]).tolist():
            mine = np.flatnonzero(own & (step == index))
            if len(mine) % rounds:
                return  # not the same in every micro-batch: something else is reduced, too
            chosen[mine[: len(mine) - len(mine) // rounds]] = True
        saving = shortened(signals, chosen, np.zeros(len(collectives)))
        if saving is None or share_of_window(saving.high_ns, signals) < self.limit("minimum_share"):
            return
        extra = int(chosen.sum())
        yield Finding(
            summary=(
                f"Gradients are reduced {rounds} times per optimizer step:"
                f" {extra // steps.count:,} of {int(own.sum()) // steps.count:,} all-reduces per"
                " step are overwritten by the next."
            ),
            saving=saving,
            evidence=(
                Table(
                    "All-reduces per optimizer step",
                    (
                        Column("rounds", "Forward passes", "count"),
                        Column("count", "All-reduces", "count"),
                        Column("needed", "Needed", "count"),
                        Column("taken_ns", "Time of the others, per step", "ns"),
                    ),
                    (
                        (
                            rounds,
                            int(own.sum()) // steps.count,
                            int(own.sum()) // steps.count // rounds,
                            int(taken_ns(signals)[chosen].sum()) // steps.count,
                        ),
                    ),
                ),
                costliest(
                    "The longest that could go",
                    signals.worker,
                    collectives.row[chosen],
                    collectives.duration_ns[chosen],
                ),
            ),
            remedies=_REMEDIES,
        )
