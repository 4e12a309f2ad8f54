"""Gradients that are reduced in every micro-batch of an accumulated batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.signals.steps.step_variation import micro_batches
from tb_perfadvisor.trace.integer_groups import places_by_value


class RedundantAllReduce(Rule):
    """Gradients are reduced once per micro-batch instead of once per optimizer step.

    What it finds
    -------------
    Steps in which DistributedDataParallel runs forward several times per optimizer step and reduces
    the gradients each time.

    Why it matters
    --------------
    Accumulated gradients are needed only when the optimizer uses them. Every reduction before the
    last one sends data that the next sum overwrites.

    How it is measured
    ------------------
    The number of forward passes per optimizer step comes from the profiler's own annotations; the
    all-reduces must come in as many equal rounds. All rounds but the last are redundant: high is
    their exposed time without waiting. Where ranks are missing, the time may include waiting, and
    nothing is estimated.

    When to ignore
    --------------
    When a step runs several models, or deliberately runs one model several times.

    How to verify
    -------------
    All-reduces per step fall to one round, and the step becomes shorter by the exposed time of the
    other rounds.

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

    minimum_share = Limit(0.01, "share", "A smaller gain does not justify a second code path.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when every micro-batch reduces gradients."""
        rounds = micro_batches(signals)
        collectives, steps = collectives_of(signals), signals.steps
        all_reduces = collectives.of("all-reduce")
        all_reduces &= has_role(signals, Role.GRADIENTS, Role.UNKNOWN)
        if rounds < 2 or not all_reduces.any():
            return
        step = steps.owner[collectives.row]
        is_redundant = np.zeros(len(collectives), dtype=bool)
        candidates = np.flatnonzero(all_reduces)
        for _, places in places_by_value(step[candidates]):
            in_step = candidates[places]
            if len(in_step) % rounds:
                return  # rounds differ, so something besides gradients is reduced
            is_redundant[in_step[: len(in_step) - len(in_step) // rounds]] = True
        saving = faster_collectives(signals, is_redundant, np.zeros(len(collectives)))
        if self.is_minor(saving.high_ns, signals):
            return
        count = int(all_reduces.sum()) // steps.count
        redundant = int(is_redundant.sum()) // steps.count
        redundant_ns = int(time_without_waiting(signals)[is_redundant].sum())
        yield Finding(
            instance=f"{rounds} times now",
            summary=(
                f"Gradients are reduced {rounds} times per optimizer step:"
                f" {redundant:,} of {count:,} all-reduces per step are redundant, because the next"
                " one overwrites their result. They cost up to"
                f" {per_step(saving.high_ns, signals)}."
            ),
            saving=saving,
            evidence=(
                Table(
                    "All-reduces per optimizer step",
                    (
                        Column("rounds", "Forward passes", "count"),
                        Column("count", "All-reduces", "count"),
                        Column("needed", "Needed", "count"),
                        Column("taken_ns", "Redundant time per step", "ns"),
                    ),
                    ((rounds, count, count // rounds, redundant_ns // steps.count),),
                ),
                costliest(
                    "Longest redundant all-reduces",
                    signals.worker,
                    collectives.row[is_redundant],
                    collectives.duration_ns[is_redundant],
                ),
            ),
            remedies=advise("fewer-reductions"),
        )
