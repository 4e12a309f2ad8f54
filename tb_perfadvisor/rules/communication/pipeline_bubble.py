"""Pipeline stages that wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import collective_totals, most_exposed
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.rules.remedies.communication.model_parallel import SHORTER_BUBBLE
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.collective_roles import Role, has_role
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
    them. It contains both transfer and bubble: high is all of it, low is 0, and expected is half,
    since twice as many micro-batches halve a bubble.

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
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)

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
        yield Finding(
            summary=(
                f"This stage waits {per_step(exposed_ns, signals)} for its neighbors"
                f" ({count_per_step(int(messages.sum()), 'message', signals)})."
            ),
            saving=Saving(0, exposed_ns // 2, exposed_ns, claims, "heuristic"),
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
            remedies=SHORTER_BUBBLE,
        )
