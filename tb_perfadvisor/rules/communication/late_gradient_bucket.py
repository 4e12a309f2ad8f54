"""The last bucket of gradients, which nothing is left to cover."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.rules.base import Finding, Limit, Remedy, Rule, per_step, share_of_window
from tb_perfadvisor.rules.communication.shortened import shortened, taken_ns
from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64

_REMEDIES = (
    Remedy(
        text="Make buckets smaller, so that less is left when the backward pass ends; the bucket "
        "that holds the first layers goes last.",
        snippet=(
            "model = DistributedDataParallel(\n"
            "    model,\n"
            "    bucket_cap_mb=10,\n"
            "    gradient_as_bucket_view=True,\n"
            "    static_graph=True,\n"
            ")"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/ddp.html",
    ),
)


class LateGradientBucket(Rule):
    """The last all-reduce of each step runs after the backward pass, with nothing to cover it.

    What it finds
    -------------
    Steps whose all-reduces overlap the backward pass except for the last one, which takes a
    good part of the step alone.

    Why it matters
    --------------
    A bucket can only go out when its last gradient is there. The larger the last bucket, the
    longer the optimizer waits for it.

    How it is measured
    ------------------
    The exposed time of each step's last all-reduce, where there are several and the others are
    mostly covered. High is that time but for what a bucket of a tenth would take: a bucket
    cannot vanish. Low is 0 and expected half, since smaller buckets cost latency each.

    When to ignore
    --------------
    When the model is one large layer: its gradient is one message whatever the bucket's size.

    How to verify
    -------------
    The gap between the end of the backward pass and the optimizer's first kernel shrinks.

    References:
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
    (VLDB 2020), sections 3.2.2 and 3.2.3.
    """

    id = "late-gradient-bucket"
    title = "Shrink the last bucket of gradients"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.02, "share", "Some tail there must be: the last layer's gradient.")
    minimum_of_exposed = Limit(
        0.5, "share", "Where the others are exposed as well, the last one is not the trouble."
    )
    remaining_share = Limit(0.1, "share", "A bucket of 2.5 MB in place of 25 MB still goes last.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the last all-reduce of the steps stands alone."""
        collectives = signals.collectives
        own = collectives.of("all-reduce")
        last = _last_of_steps(signals, np.flatnonzero(own))
        if len(last) == 0 or int(own.sum()) < 2 * len(last):
            return
        chosen = np.zeros(len(collectives), dtype=bool)
        chosen[last] = True
        tail_ns = int(collectives.exposed_ns[chosen].sum())
        all_ns = int(collectives.exposed_ns[own].sum())
        if tail_ns < self.limit("minimum_of_exposed") * all_ns:
            return
        taken = taken_ns(signals)
        covered = np.maximum(taken - collectives.exposed_ns, 0)
        target = np.maximum(covered, taken * self.limit("remaining_share"))
        most = shortened(signals, chosen, target, "heuristic")
        # Smaller buckets cost latency each, and the order of layers decides: half of it.
        half = shortened(signals, chosen, (taken + target) / 2, "heuristic")
        if most is None or half is None:
            return
        if share_of_window(most.high_ns, signals) < self.limit("minimum_share"):
            return
        rows: list[tuple[Cell, ...]] = [
            (
                name,
                int(some.sum()),
                int(collectives.duration_ns[some].sum()),
                int(collectives.exposed_ns[some].sum()),
            )
            for name, some in (("last of each step", chosen), ("all others", own & ~chosen))
        ]
        yield Finding(
            summary=(
                f"The last all-reduce takes {per_step(tail_ns, signals)} with nothing to cover it;"
                f" the others are exposed for {per_step(all_ns - tail_ns, signals)}."
            ),
            saving=replace(half, low_ns=0, high_ns=most.high_ns),
            evidence=(
                Table(
                    "All-reduces in the used steps",
                    (
                        Column("which", "Which"),
                        Column("count", "Times", "count"),
                        Column("duration_ns", "Duration", "ns"),
                        Column("exposed_ns", "Exposed", "ns"),
                    ),
                    tuple(rows),
                ),
                costliest(
                    "The longest tails",
                    signals.worker,
                    collectives.row[last],
                    collectives.exposed_ns[last],
                ),
            ),
            remedies=_REMEDIES,
        )


def _last_of_steps(signals: Signals, all_reduces: Int64) -> Int64:
    """Of each used step, the all-reduce that ends last; indices of its collectives."""
    events, steps = signals.trace.events, signals.steps
    row = signals.collectives.row[all_reduces]
    step = last_before(steps.start_ns, events.start_ns[row])
    order = np.lexsort((events.end_ns[row], step))
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = step[order][1:] != step[order][:-1]
    return all_reduces[order[is_last]]
