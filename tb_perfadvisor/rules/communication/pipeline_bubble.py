"""Pipeline stages that wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    count_per_step,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.trace.intervals import total_ns

_BETWEEN_STAGES = ("send", "recv")

_REMEDIES = (
    Remedy(
        text="Cut the batch into more micro-batches, or interleave the stages: of p stages and m "
        "micro-batches (p - 1) / (m + p - 1) of the time is bubble.",
        snippet=(
            "from torch.distributed.pipelining import ScheduleInterleaved1F1B\n"
            "schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * len(stages))"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/distributed.pipelining.html",
    ),
)


class PipelineBubble(Rule):
    """A pipeline stage waits for the stage before or after it.

    What it finds
    -------------
    Time in which a stage only sends or receives, with no compute beside it.

    Why it matters
    --------------
    Stages start one after the other and end one after the other; while the pipeline fills and
    drains, and behind a stage that is slower than the rest, devices wait.

    How it is measured
    ------------------
    Exposed time of sends and receives between ranks, recognized by the calls that launched
    them. It is transfer and bubble together: high is all of it, low 0, and expected half, which
    is what twice as many micro-batches leave of a bubble.

    When to ignore
    --------------
    When the batch cannot be cut finer without starving the device.

    How to verify
    -------------
    The exposed time of receives falls by the factor by which micro-batches grew.

    References:
    ----------
    Huang et al., "GPipe" (NeurIPS 2019), section 3.1; Narayanan et al., "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021), section 2.2.
    """

    id = "pipeline-bubble"
    title = "Shrink the pipeline's bubble"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.05, "share", "Every pipeline has a bubble of some percent.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a stage mostly waits for its neighbors."""
        collectives = signals.collectives
        own = collectives.of(*_BETWEEN_STAGES)
        if not own.any():
            return
        rows, exposed = collectives.row[own], collectives.exposed_ns[own]
        claims = exposed_part(
            signals.trace, rows, signals.attribution.intervals[Cause.COMMUNICATION]
        )
        exposed_ns = total_ns(claims)
        if share_of_window(exposed_ns, signals) < self.limit("minimum_share"):
            return
        yield Finding(
            summary=(
                f"This stage waits {per_step(exposed_ns, signals)} for its neighbors"
                f" ({count_per_step(int(own.sum()), 'message', signals)})."
            ),
            saving=Saving(0, exposed_ns // 2, exposed_ns, claims, "heuristic"),
            evidence=(
                Table(
                    "Messages between stages",
                    (
                        Column("operation", "Operation"),
                        Column("count", "Times", "count"),
                        Column("duration_ns", "Duration", "ns"),
                        Column("exposed_ns", "Exposed", "ns"),
                    ),
                    tuple(
                        (
                            name,
                            int(some.sum()),
                            int(collectives.duration_ns[some].sum()),
                            int(collectives.exposed_ns[some].sum()),
                        )
                        for name in _BETWEEN_STAGES
                        if (some := collectives.of(name)).any()
                    ),
                ),
                costliest("The longest waits", signals.worker, rows, exposed),
            ),
            remedies=_REMEDIES,
        )
