"""Ranks that arrive late in collectives and hold up the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import share_of_each, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.lateness_causes import (
    calls_without_core,
    changes_for,
    ranks_named,
    reason_of,
)
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Evidence,
    Finding,
    Saving,
    Table,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.stragglers import (
    Excess,
    Lateness,
    excess_by_cause,
    lateness,
    preempted_more_ns,
    saved_by_equal_loads_ns,
)
from tb_perfadvisor.trace.intervals import EMPTY, total_ns


class Straggler(Rule):
    """Some ranks arrive late in collectives, and all others wait for them.

    What it finds
    -------------
    Ranks that arrive late in collectives step after step, how long the others wait for them, and
    where the late ranks spend more time than the others.

    Why it matters
    --------------
    A collective ends only after its last rank has arrived. One slow rank makes every rank as slow,
    and in the profiles of the others it looks like slow communication, which no faster network
    fixes.

    How it is measured
    ------------------
    Collectives are matched across the recorded ranks of their group: by sequence number, else by
    the times between their ends, which are the same on all ranks. A rank's wait in a collective is
    its duration there minus the shortest one. The rank whose collective is shortest arrives last.
    Ranks that wait less than a quarter of what the median rank waits are late, too. A rank is
    reported if it is late in half of the steps, causes at least twice its equal share of all
    waiting, and if that is no chance: it stands out from its variation over the steps, minus the
    rank's own waits (one-sided Student's t-test), or from what dealing the waits of each step out
    at random would give (permutation test), both at 5 %. Ranks that take turns being late are not
    stragglers. Where ranks are missing, only collectives count in which no missing rank can have
    been later: those in which the last recorded one does not wait itself.

    There are two measures of the saving: the exposed wait of the median rank, and the time that the
    late rank spends beyond the median of the other ranks. Expected is the smaller, high the larger.
    Ranks that share the cores of one host take turns computing, so longer compute does not count
    there; instead, a rank is also reported if it consistently spends that much more on anything
    else. Where shapes were recorded, the matrix products show whether a rank computes longer
    because it has more work. That counts on any host, and expected is what an equal share of all
    ranks' work would save. The same holds for a rank that is late because its experts have the most
    tokens.

    The reason is what the late rank spends most extra time on. If half of it passes while host
    calls had lost their core (see `host-preempted`), that is the reason.

    When to ignore
    --------------
    When the profiled steps contain something rare on one rank, such as a checkpoint.

    How to verify
    -------------
    The other ranks' collectives become as short as those of the late rank, and the steps shorter by
    as much.

    References:
    ----------
    Holistic Trace Analysis, "Straggler analysis"; Lin et al., "Understanding Stragglers in
    Large Model Training Using What-if Analysis" (OSDI 2025).
    """

    id = "straggler"
    title = "Speed up the ranks that hold up the others"
    category = "communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.SEVERAL_RANKS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Ranks never arrive at exactly the same time; this much is not jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when late ranks cost a good part of the step."""
        delays = lateness(signals)
        if delays is None or not delays.late:
            return
        latest = signals.worker if signals.worker in delays.late else delays.late[0]
        excess = excess_by_cause(ranks_of(signals), latest, delays.late)
        preempted_ns = preempted_more_ns(ranks_of(signals), latest, delays.late)
        waited_ns, saving = _saving(signals, delays, excess)
        if self.is_minor(saving.expected_ns, signals):
            return
        names = ranks_named(signals, delays.late)
        reason = reason_of(signals, latest, excess, preempted_ns) if excess else ""
        why = f", mostly {reason}" if reason else ""
        times = f"{int(delays.times_late[list(delays.late)].sum()):,} of {delays.collectives:,}"
        yield Finding(
            summary=(
                f"{names[0].upper()}{names[1:]} {'is' if len(delays.late) == 1 else 'are'} late in"
                f" {times} collectives, which costs {time_of_each(waited_ns, signals)}{why}."
            ),
            title=(
                f"Speed up {names}: the others wait {share_of_each(waited_ns, signals)} for"
                f" {'it' if len(delays.late) == 1 else 'them'}"
            ),
            saving=saving,
            evidence=(
                *_evidence(signals, delays, excess, latest),
                *calls_without_core(signals, excess, preempted_ns),
            ),
            remedies=advise(*changes_for(excess, preempted_ns)),
            ranks=tuple(
                rank
                for rank in (ranks_of(signals).sources[index].rank for index in delays.late)
                if rank is not None
            ),
        )


def _saving(signals: Signals, delays: Lateness, excess: Sequence[Excess]) -> tuple[int, Saving]:
    """How long the others wait for the extra time of the late rank, and what that would save.

    Spreading work evenly delays the others by as much as it speeds up the late rank. Samples and
    sequences cannot be split, so the low end is half of that.
    """
    attribution, count = signals.attribution, signals.steps.count
    explained_ns = round(count * sum(item.own_ns - item.others_ns for item in excess))
    evened_ns = round(count * sum(item.own_ns - item.even_ns for item in excess))
    evened_ns = min(evened_ns, saved_by_equal_loads_ns(signals, delays) or evened_ns)
    if signals.worker in delays.late:
        claims = attribution.of(*(item.cause for item in excess)) if excess else EMPTY
        waited = [int(waits.sum()) for waits in (delays.own_low_ns, delays.own_middle_ns)]
        # The steps at the edges, which not all ranks recorded, are taken to be like the others.
        waited = [round(wait_ns / delays.steps_share) for wait_ns in waited]
    else:
        claims = exposed_part(
            signals.trace, delays.own_row, attribution.intervals[Cause.COMMUNICATION]
        )
        waited = [int(delays.own_waiting_ns.sum())] * 2
    claimed_ns = total_ns(claims)
    low, middle = (min(wait_ns, explained_ns, claimed_ns) for wait_ns in waited)
    high = max(min(max(waited[1], explained_ns), claimed_ns), middle)
    if evened_ns == explained_ns:
        return middle, Saving(min(low, middle), middle, high, claims, "measured")
    expected = min(middle, evened_ns)
    return middle, Saving(expected // 2, expected, high, claims, "measured")


def _evidence(
    signals: Signals, delays: Lateness, excess: Sequence[Excess], latest: int
) -> tuple[Evidence, ...]:
    steps = signals.steps.count
    order = sorted(range(len(ranks_of(signals))), key=lambda i: (-int(delays.late_ns[i]), i))
    rows: list[tuple[Cell, ...]] = [
        (
            ranks_named(signals, (index,)),
            int(delays.times_late[index]),
            int(delays.late_ns[index]) // steps,
            int(delays.waiting_ns[index]) // steps,
        )
        for index in order
    ]
    tables: list[Evidence] = [
        Table(
            "Late and waiting ranks",
            (
                Column("worker", "Rank"),
                Column("times_late", "Times last", "count"),
                Column("late_ns", "Delays others, per step", "ns"),
                Column("waiting_ns", "Waits, per step", "ns"),
            ),
            tuple(rows),
        )
    ]
    if excess:
        tables.append(
            Table(
                f"Where {ranks_named(signals, (latest,))} spends more time, per step",
                (
                    Column("cause", "Activity"),
                    Column("own_ns", "Late rank", "ns"),
                    Column("others_ns", "Median of other ranks", "ns"),
                    Column("more_ns", "Difference", "ns"),
                ),
                tuple(
                    (
                        item.cause.label,
                        round(item.own_ns),
                        round(item.others_ns),
                        round(item.own_ns - item.others_ns),
                    )
                    for item in excess
                ),
            )
        )
    if delays.own_row.size:
        waited = delays.own_middle_ns if signals.worker in delays.late else delays.own_waiting_ns
        tables.append(
            costliest("Collectives with the longest waits", signals.worker, delays.own_row, waited)
        )
    return tuple(tables)
