"""Experts that get unlike numbers of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import COMPUTE
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.expert_load import ExpertLoad, expert_load
from tb_perfadvisor.trace.intervals import intersect, join, total_ns

_REMEDIES = (
    Remedy(
        text="Let the router's loss keep the experts even, or give each expert a bias that falls "
        "while it has too many tokens.",
        snippet=(
            "share = torch.zeros(experts).index_add_(0, chosen.flatten(), ones) / chosen.numel()\n"
            "loss = loss + 0.01 * experts * (share * router_probabilities.mean(0)).sum()\n"
            "# or, without a loss: router_bias += 0.001 * torch.sign(share.mean() - share)"
        ),
        framework="pytorch",
        reference="https://arxiv.org/abs/2101.03961",
    ),
    Remedy(
        text="Cap what one expert takes of a batch, and put experts that are busy together on "
        "different ranks, the busiest of them on several.",
        snippet="capacity = int(1.25 * tokens * top_k / experts)  # what is beyond goes around it",
        framework="pytorch",
        reference="https://arxiv.org/abs/2006.16668",
    ),
)


class ExpertImbalance(Rule):
    """Ranks whose experts get more tokens than the others' hold up every all-to-all.

    What it finds
    -------------
    All-to-alls into which some ranks put far more than the mean, and to which one of those comes
    last, so that the others wait.

    Why it matters
    --------------
    Tokens go to the rank of their expert and come back when all are computed. Every rank waits
    for the one with the most tokens, in each layer of experts, forward and backward.

    How it is measured
    ------------------
    What a rank puts into an all-to-all is what it computed before. Where that is 1.25 times the
    mean or more for the rank that comes last, the waiting there counts. With equal loads all
    would come when a rank with the mean load does: expected is the mean of the ranks' waiting
    that nothing covers, high that of all but the last. Low is half of expected: no router is
    quite even.

    When to ignore
    --------------
    When the steps are of an inference server with few tokens at a time, which no routing evens
    out, or the uneven sizes are wanted: sequences or tables of unlike lengths.

    How to verify
    -------------
    The ranks put about as many bytes into each all-to-all, and wait less in it.

    References:
    ----------
    Fedus et al., "Switch Transformers" (JMLR 2022), section 2.2; Lepikhin et al., "GShard"
    (ICLR 2021); Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
    Mixture-of-Experts" (2024).
    """

    id = "expert-imbalance"
    title = "Give each rank's experts as many tokens as the others'"
    category = "communication"
    refines = "straggler"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS, Need.SENT_SIZES)
    is_preview = False

    minimum_count = Limit(
        2, "count", "A layer of experts exchanges tokens twice; one all-to-all may be anything."
    )
    minimum_share = Limit(
        0.03, "share", "Routers never are quite even; less of the step is not worth another loss."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when ranks with more tokens hold up the others."""
        found = expert_load(signals)
        if found is None or found.collectives < self.limit("minimum_count"):
            return
        saving = _saving(signals, found)
        if share_of_window(saving.expected_ns, signals) < self.limit("minimum_share"):
            return
        sources, steps = signals.ranks.sources, signals.steps.count
        names = [str(one.host if one.rank is None else one.rank) for one in sources]
        last = [one for one in (-found.times_last).argsort(kind="stable") if found.times_last[one]]
        yield Finding(
            summary=(
                f"{per_step(saving.expected_ns, signals)} is waiting for the rank with the most"
                f" tokens, which has {found.imbalance:.1f} times the mean in"
                f" {found.collectives:,} of {found.all_to_alls:,} all-to-alls."
            ),
            saving=saving,
            evidence=(
                Table(
                    "What the ranks put into uneven all-to-alls",
                    (
                        Column("rank", "Rank"),
                        Column("sent_bytes", "Bytes, per step", "bytes"),
                        Column("times_last", "Times last", "count"),
                        Column("waiting_ns", "It waits, per step", "ns"),
                    ),
                    tuple(
                        (
                            name,
                            int(found.sent_bytes[one]) // steps,
                            int(found.times_last[one]),
                            int(found.waiting_ns[one]) // steps,
                        )
                        for one, name in enumerate(names)
                    ),
                ),
                costliest(
                    "The all-to-alls with the longest waiting",
                    signals.worker,
                    found.own_row,
                    found.own_wait_ns,
                ),
            ),
            remedies=_REMEDIES,
            ranks=tuple(rank for one in last if (rank := sources[one].rank) is not None),
        )


def _saving(signals: Signals, found: ExpertLoad) -> Saving:
    """Of this worker: its waiting where others had more, its computing where it had."""
    attribution = signals.attribution
    waited = found.own_row[found.own_wait_ns > 0]
    compute = attribution.of(*COMPUTE, Cause.HOST_COMPUTE)
    claims = join(
        exposed_part(signals.trace, waited, attribution.intervals[Cause.COMMUNICATION]),
        intersect(compute, found.own_compute),
    )
    claimed_ns = total_ns(claims)
    expected = min(found.mean_wait_ns, claimed_ns)
    others = max(len(signals.ranks) - 1, 1)
    high = min(round(found.mean_wait_ns * (others + 1) / others), claimed_ns)
    return Saving(expected // 2, expected, max(high, expected), claims, "measured")
