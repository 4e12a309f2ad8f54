"""Pipeline stages that wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import collective_totals, most_exposed
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Collectives, exposed_part
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.intervals import total_ns

_BETWEEN_STAGES = ("send", "recv")


class PipelineBubble(Rule):
    """A pipeline stage waits for the stage before or after it.

    What it finds
    -------------
    Time in which a stage only sends or receives and computes nothing.

    Why it matters
    --------------
    The stages start one after another and finish one after another. While the pipeline fills and
    drains, and behind any stage that is slower than the others, devices wait.

    How it is measured
    ------------------
    The exposed time of sends and receives between ranks, recognized by the calls that launched
    them. It contains both transfer and bubble. The fastest message of each direction and size shows
    how long a transfer takes at most; what the others take beyond that is waiting. Expected is half
    of it, since twice as many micro-batches halve a bubble. Low is 0, because a slower neighbor may
    be the reason. High is all of the exposed time. If all messages take about as long, nothing
    tells the bubble from the transfer, and no saving is given.

    When to ignore
    --------------
    When the batch cannot be split further without leaving the device underused.

    How to verify
    -------------
    The exposed time of receives falls by the factor by which the number of micro-batches grew.

    References:
    ----------
    Huang et al., "GPipe" (NeurIPS 2019), section 3.1; Narayanan et al., "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021), section 2.2.
    """

    id = "pipeline-bubble"
    title = "Shrink the pipeline bubble"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.05, "share", "Every pipeline has a bubble of a few percent.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a stage waits long for its neighbors."""
        collectives = collectives_of(signals)
        messages = collectives.of(*_BETWEEN_STAGES) & has_role(signals, Role.PIPELINE)
        communication = signals.attribution.intervals[Cause.COMMUNICATION]
        claims = exposed_part(signals.trace, collectives.row[messages], communication)
        exposed_ns = total_ns(claims)
        if self.is_minor(exposed_ns, signals):
            return
        waiting_ns = min(_waiting_ns(collectives, messages), exposed_ns)
        is_known = not self.is_minor(waiting_ns // 2, signals)
        waiting = (
            f" {per_step(waiting_ns, signals)} is more than the fastest messages need."
            if is_known
            else " All messages take about as long, so how much of that is transfer is unknown."
        )
        yield Finding(
            instance=count_per_step(int(messages.sum()), "message", signals),
            summary=(
                f"This stage spends {per_step(exposed_ns, signals)} on messages to and from its"
                f" neighbors alone ({count_per_step(int(messages.sum()), 'message', signals)})."
                f"{waiting}"
            ),
            saving=Saving(0, waiting_ns // 2, exposed_ns, claims, "heuristic")
            if is_known
            else None,
            severity=None if is_known else "low",
            evidence=(
                collective_totals(
                    "Messages between stages",
                    signals,
                    {
                        name: chosen
                        for name in _BETWEEN_STAGES
                        if (chosen := collectives.of(name)).any()
                    },
                    by=Column("operation", "Operation"),
                ),
                most_exposed("Longest waits", signals, messages),
            ),
            remedies=advise("shorter-bubble"),
        )


def _waiting_ns(collectives: Collectives, messages: NDArray[np.bool_]) -> int:
    """Exposed time of messages beyond their transfer.

    The transfer is known if all ranks were recorded. Otherwise, it takes at most as long as the
    fastest message of the same direction and size.
    """
    duration_ns, known_ns = collectives.duration_ns[messages], collectives.transfer_ns[messages]
    sizes = collectives.size_bytes[messages]
    first, group = group_rows(collectives.operation.code[messages], sizes)
    fastest_ns = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(fastest_ns, group, duration_ns)
    transfer_ns = np.where(known_ns >= 0, known_ns, fastest_ns[group])
    waiting_ns = np.minimum(duration_ns - transfer_ns, collectives.exposed_ns[messages])
    return int(waiting_ns.clip(min=0).sum())
