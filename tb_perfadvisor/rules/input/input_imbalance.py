"""A rank is late because it waits for input."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import excess_by_cause, lateness
from tb_perfadvisor.units import format_duration


class InputImbalance(Rule):
    """The input of one rank is slower than that of the others, and all ranks wait for it.

    What it finds
    -------------
    A straggler whose steps are longer than those of other ranks mostly because it waits for input.

    Why it matters
    --------------
    The slowest rank's loader determines the step time of all ranks. The loader may not be at
    fault: an uneven shard, longer samples, or more distant storage have the same effect.

    How it is measured
    ------------------
    The late rank's wait for input beyond the median of the ranks that are on time, as far as the
    other ranks wait for it in collectives.

    When to ignore
    --------------
    When one rank refilled a cache, which it rarely does, during the profiled steps.

    How to verify
    -------------
    All ranks wait equally long for input.

    References:
    ----------
    TensorFlow guide, "Distributed input"; PyTorch documentation, `DistributedSampler`.
    """

    id = "input-imbalance"
    title = "Feed all ranks equally fast"
    category = "input"
    refines = "straggler"
    needs = (Need.WORK, Need.COLLECTIVES, Need.SEVERAL_RANKS, Need.INPUT)

    minimum_share = Limit(
        0.05, "share", "Ranks never fetch equally fast; 5 % of the step is more than jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a rank is late because of its input."""
        stragglers = lateness(signals)
        if stragglers is None or signals.worker not in stragglers.late:
            return
        excess = excess_by_cause(ranks_of(signals), signals.worker, stragglers.late)
        if not excess or excess[0].cause is not Cause.INPUT:
            return
        first = excess[0]
        claims = signals.attribution.intervals[Cause.INPUT]
        more_ns = round((first.own_ns - first.others_ns) * signals.steps.count)
        saved_ns = min(more_ns, int(stragglers.own_middle_ns.sum()))
        if self.is_minor(saved_ns, signals):
            return
        rank = signals.trace.source.rank
        waiting = format_duration(first.own_ns)
        yield Finding(
            summary=(
                f"Rank {rank if rank is not None else signals.worker} waits {waiting} of each step"
                " for input, and the other ranks wait for it; the median of the ranks that are on"
                f" time is {format_duration(first.others_ns)}."
            ),
            saving=Saving(saved_ns, saved_ns, more_ns, claims, "measured"),
            evidence=(
                Table(
                    "Wait for input per step",
                    (Column("rank", "Rank"), Column("input_ns", "Wait for input", "ns")),
                    tuple(
                        (
                            str(source.rank if source.rank is not None else source.host),
                            int(summary.cause_total_ns[list(Cause).index(Cause.INPUT)])
                            // summary.step_count,
                        )
                        for source, summary in zip(
                            ranks_of(signals).sources, ranks_of(signals).summaries, strict=True
                        )
                    ),
                ),
            ),
            remedies=advise("even-input"),
            ranks=() if rank is None else (rank,),
        )
