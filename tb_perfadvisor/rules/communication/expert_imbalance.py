"""Experts that receive uneven numbers of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.stragglers import ExpertLoad, expert_load
from tb_perfadvisor.trace.intervals import intersect, join, total_ns


class ExpertImbalance(Rule):
    """Ranks whose experts receive more tokens than others hold up every all-to-all.

    What it finds
    -------------
    All-to-alls into which some ranks put far more data than the mean, and in which one of these
    ranks arrives last, so that all others wait.

    Why it matters
    --------------
    Tokens travel to the rank that holds their expert and return when all of them are processed.
    Every rank waits for the one with the most tokens, in each expert layer, forward and backward.

    How it is measured
    ------------------
    What a rank puts into an all-to-all is what it has just computed. The waiting counts where the
    last rank to arrive put in at least 1.25 times the mean. With equal loads, all ranks would
    arrive when one with the mean load does: expected is the mean exposed waiting over all ranks,
    high is the mean over all ranks but the last. Low is half of expected, because no router is
    perfectly even.

    When to ignore
    --------------
    When an inference server processes few tokens at a time, which no routing can even out, or when
    the uneven sizes are intended: sequences or tables of different lengths.

    How to verify
    -------------
    The ranks put about the same number of bytes into each all-to-all, and wait less in it.

    References:
    ----------
    Fedus et al., "Switch Transformers" (JMLR 2022), section 2.2; Lepikhin et al., "GShard"
    (ICLR 2021); Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
    Mixture-of-Experts" (2024).
    """

    id = "expert-imbalance"
    title = "Balance the tokens across experts"
    category = "communication"
    refines = "straggler"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS, Need.SENT_SIZES)
    is_preview = False

    minimum_count = Limit(
        2, "count", "An expert layer exchanges tokens twice; a single all-to-all may be anything."
    )
    minimum_share = Limit(
        0.03,
        "share",
        "No router is perfectly even; a smaller gain does not justify a new loss term.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when ranks with more tokens hold up the others."""
        load = expert_load(signals)
        if load is None or load.collectives < self.minimum_count:
            return
        saving = _saving(signals, load)
        if self.is_minor(saving.expected_ns, signals):
            return
        sources, steps = ranks_of(signals).sources, signals.steps.count
        names = [str(s.host if s.rank is None else s.rank) for s in sources]
        last = [i for i in (-load.times_last).argsort(kind="stable") if load.times_last[i]]
        yield Finding(
            instance=f"one rank gets {load.imbalance:.1f} times the mean",
            summary=(
                f"{per_step(saving.expected_ns, signals)} is spent waiting for the rank with the"
                f" most tokens, which has {load.imbalance:.1f} times the mean in"
                f" {load.collectives:,} of {load.all_to_alls:,} all-to-alls."
            ),
            saving=saving,
            evidence=(
                Table(
                    "Data that each rank puts into uneven all-to-alls",
                    (
                        Column("rank", "Rank"),
                        Column("sent_bytes", "Bytes per step", "bytes"),
                        Column("times_last", "Times last", "count"),
                        Column("waiting_ns", "Waits per step", "ns"),
                    ),
                    tuple(
                        (
                            name,
                            int(load.sent_bytes[index]) // steps,
                            int(load.times_last[index]),
                            int(load.waiting_ns[index]) // steps,
                        )
                        for index, name in enumerate(names)
                    ),
                ),
                costliest(
                    "All-to-alls with the longest waits",
                    signals.worker,
                    load.own_row,
                    load.own_wait_ns,
                ),
            ),
            remedies=advise("expert-replicas", "router-balance", "expert-capacity"),
            ranks=tuple(rank for i in last if (rank := sources[i].rank) is not None),
        )


def _saving(signals: Signals, load: ExpertLoad) -> Saving:
    """Claim this rank's waiting where others had more tokens, its compute where it had more."""
    attribution = signals.attribution
    awaited = load.own_row[load.own_wait_ns > 0]
    compute = attribution.of(*COMPUTE, Cause.HOST_COMPUTE)
    claims = join(
        exposed_part(signals.trace, awaited, attribution.intervals[Cause.COMMUNICATION]),
        intersect(compute, load.own_compute),
    )
    claimed_ns = total_ns(claims)
    expected_ns = min(load.mean_wait_ns, claimed_ns)
    other_ranks = max(len(ranks_of(signals)) - 1, 1)
    high_ns = min(round(load.mean_wait_ns * (other_ranks + 1) / other_ranks), claimed_ns)
    return Saving(expected_ns // 2, expected_ns, max(high_ns, expected_ns), claims, "measured")
