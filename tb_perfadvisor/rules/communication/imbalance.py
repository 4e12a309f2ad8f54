"""Ranks that others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.advice import advise
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import per_step, share_of_each, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import run_finding, run_series, steps_of, with_run
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Evidence,
    Finding,
    Saving,
    Series,
    Table,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.host.idle import annotated_idle
from tb_perfadvisor.signals.host.preempted_calls import preempted_calls
from tb_perfadvisor.signals.ranks.stragglers import (
    Excess,
    ExpertLoad,
    Lateness,
    excess_by_cause,
    expert_load,
    lateness,
    preempted_more_ns,
    saved_by_equal_loads_ns,
)
from tb_perfadvisor.signals.steps.timed_run import LateRank, late_rank
from tb_perfadvisor.trace.intervals import EMPTY, intersect, join, total_ns
from tb_perfadvisor.units import format_duration, format_share

OWN_CORES = ("rank-cores", "fewer-threads", "pinned-process", "container-cpu-limit")
"""Changes that leave the launching threads a core of their own."""
_REASONS = {
    Cause.INPUT: "waiting for input",
    Cause.BETWEEN_STEPS: "code that runs between steps",
    Cause.UNEXPLAINED: "host code that was not recorded",
    Cause.PYTHON: "Python code",
    Cause.FRAMEWORK: "the framework's host code",
    Cause.SYNCHRONIZATION: "waiting for the device",
}

_HOST_LAUNCHES_LATE = (Cause.LAUNCHING, Cause.FRAMEWORK, Cause.PYTHON)
_MOSTLY = 0.4
"""An annotation with less of the idle time is not where the rank loses it."""


def _idle_annotation(signals: Signals, excess: Sequence[Excess]) -> str:
    """The annotation in which most of a late rank's extra idle time passes; empty if none does.

    `excess` is where the rank spends more time than the others.
    """
    idle = signals.attribution.of(*(e.cause for e in excess if e.cause in _HOST_LAUNCHES_LATE))
    named = [(name, ns) for name, ns in annotated_idle(signals).by_name(idle) if name >= 0]
    if not named or named[0][1] < _MOSTLY * total_ns(idle):
        return ""
    return _OPTIMIZER.sub("", signals.trace.text(named[0][0]))


_OPTIMIZER = regex(r"^Optimizer\.step#")
"""How PyTorch's profiler marks `NorMuon.step`."""


def _is_preempted(excess: Sequence[Excess], preempted_ns: float) -> bool:
    """Whether most of the extra time passes while host calls have lost their core.

    `excess` is where the late rank spends more time than the others, the longest first. Of it,
    `preempted_ns` per step passes while its host calls have lost their core.
    """
    return 2 * preempted_ns >= sum(item.own_ns - item.others_ns for item in excess) > 0


def reason_of(signals: Signals, late: int, excess: Sequence[Excess], preempted_ns: float) -> str:
    """Why a rank is late, in words: "because of …" what takes most of the extra time.

    If the late rank is the reference rank, the part of the program is named. Other arguments are
    those of `_is_preempted`.
    """
    if _is_preempted(excess, preempted_ns):
        return (
            "because the operating system took the core from the launching thread"
            f" ({format_duration(preempted_ns)} more idle time per step)"
        )
    first = excess[0]
    if first.cause in _HOST_LAUNCHES_LATE and not signals.device.is_host_only:
        where = _idle_annotation(signals, excess) if late == signals.worker else ""
        late_ns = sum(e.own_ns - e.others_ns for e in excess if e.cause in _HOST_LAUNCHES_LATE)
        more = format_duration(late_ns)
        place = f" in {where}" if where else ""
        same = ", although it runs as many operators as the others" if first.same_operators else ""
        return f"because its host launches work late{place} ({more} more idle per step){same}"
    more = format_duration(first.own_ns - first.others_ns)
    name = _REASONS.get(first.cause) or first.cause.label.lower()
    reason = f"because of {name} ({more} more per step)"
    if first.same_operators:
        return f"{reason}, although it runs as many operators as the others"
    if first.work is None:
        return reason
    return f"{reason}: it has {first.work:.1f} times the work of the others"


def changes_for(excess: Sequence[Excess], preempted_ns: float) -> tuple[str, ...]:
    """Changes against what makes the rank late, the most specific first.

    Arguments are those of `_is_preempted`.
    """
    if _is_preempted(excess, preempted_ns):
        return OWN_CORES
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return ("even-input", "same-work")
    if excess and excess[0].work is not None:
        return ("even-work", "same-work")
    if excess and excess[0].same_operators:
        return OWN_CORES
    if first in COMPUTE:
        return ("device-clocks", "even-work", "same-work")
    return ("same-work",)


def ranks_named(signals: Signals, late: Sequence[int], most: int = 4) -> str:
    """Some ranks in words: `ranks 1, 3 and 2 more`.

    `late` are their workers, the worst first.
    """
    sources = ranks_of(signals).sources
    has_ranks = all(sources[index].rank is not None for index in late)
    shown = sorted(late[:most])
    texts = [str(sources[i].rank) if has_ranks else sources[i].host for i in shown]
    noun = ("rank" if has_ranks else "host") + ("s" if len(late) > 1 else "")
    last = f"{len(late) - most} more" if len(late) > most else texts.pop()
    return f"{noun} {', '.join(texts)} and {last}" if texts else f"{noun} {last}"


def calls_without_core(
    signals: Signals, excess: Sequence[Excess], preempted_ns: float
) -> tuple[Evidence, ...]:
    """For each rank, how long its device idles while its calls have lost their core."""
    if not _is_preempted(excess, preempted_ns):
        return ()
    summaries, calls = ranks_of(signals).summaries, preempted_calls(signals)
    per_step = [summary.preempted_ns // summary.step_count for summary in summaries]
    order = sorted(range(len(summaries)), key=lambda index: (-per_step[index], index))
    table = Table(
        "Idle while the launching thread had no core",
        (Column("worker", "Rank"), Column("idle_ns", "Per step", "ns")),
        tuple((ranks_named(signals, (index,)), per_step[index]) for index in order),
    )
    if not len(calls):
        return (table,)
    name = ranks_named(signals, (signals.worker,))
    longest = costliest(f"Calls of {name} without a core", signals.worker, calls.row, calls.idle_ns)
    return table, longest


class Straggler(Rule):
    """Some ranks arrive late in collectives, and all others wait for them."""

    id = "straggler"
    title = "Speed up the ranks that hold up the others"
    needs = (Need.WORK, Need.COLLECTIVES, Need.SEVERAL_RANKS)
    suffices = Need.RUN_RANKS
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Ranks never arrive at exactly the same time; this much is not jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = [*self._in_steps(signals)] if self.meets_needs(signals) else []
        late = late_rank(signals)
        if late is None or late.cost.run_share < self.minimum_share:
            yield from found
            return
        rank, evidence = late.cost.parts.rank, (_over_run(late), _ranks_over_run(late))
        yield from (
            with_run(each, late.cost, evidence) if rank in each.ranks else each for each in found
        )
        if not any(rank in each.ranks for each in found):
            share = format_share(late.cost.run_share)
            waits_for_input = 2 * late.more_input_ns >= late.cost.mean_ns
            why = (
                f" It waits {format_duration(late.more_input_ns)} longer for its input."
                if waits_for_input
                else ""
            )
            yield run_finding(
                late.cost,
                f"Speed up rank {rank}: waiting for it takes {share} of the run",
                f"Rank {rank} begins its gradients {format_duration(late.cost.mean_ns)} later than"
                f" the others {steps_of(late.cost)}, which costs all ranks {share} of the"
                f" run.{why}",
                evidence,
                advise(
                    *(("even-input",) if waits_for_input else ()),
                    *(() if signals.device.is_host_only else ("device-clocks",)),
                    "same-work",
                ),
                (rank,),
            )

    def _in_steps(self, signals: Signals) -> Iterable[Finding]:
        delays = lateness(signals)
        if delays is None or not delays.late:
            return
        latest = signals.worker if signals.worker in delays.late else delays.late[0]
        excess = excess_by_cause(ranks_of(signals), latest, delays.late)
        preempted_ns = preempted_more_ns(ranks_of(signals), latest, delays.late)
        waited_ns, saving = _saving_of_lateness(signals, delays, excess)
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
                f"Speed up {names}: waiting for late ranks takes "
                f"{share_of_each(waited_ns, signals)}"
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


def _over_run(late: LateRank) -> Series:
    title = f"How late rank {late.cost.parts.rank} is over the run, per step"
    return run_series(title, late.cost, late.cost.cost_ns)


def _ranks_over_run(late: LateRank) -> Table:
    return Table(
        "Ranks in the affected steps of the run",
        (
            Column("rank", "Rank", "count"),
            Column("ready_ns", "Until its gradients begin, per step", "ns"),
            Column("input_ns", "Waits for input, per step", "ns"),
        ),
        late.by_rank,
    )


def _saving_of_lateness(
    signals: Signals, delays: Lateness, excess: Sequence[Excess]
) -> tuple[int, Saving]:
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


class ExpertImbalance(Rule):
    """Ranks whose experts receive more tokens than others hold up every all-to-all."""

    id = "expert-imbalance"
    title = "Balance the tokens across experts"
    refines = "straggler"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS, Need.SENT_SIZES)
    is_preview = False

    minimum_count = 2
    """An expert layer exchanges tokens twice; a single all-to-all may be anything."""
    minimum_share = Limit(
        0.03,
        "share",
        "No router is perfectly even; a smaller gain does not justify a new loss term.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        load = expert_load(signals)
        if load is None or load.collectives < self.minimum_count:
            return
        saving = _saving_of_balance(signals, load)
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
            remedies=advise("expert-replicas", "router-balance"),
            ranks=tuple(rank for i in last if (rank := sources[i].rank) is not None),
        )


def _saving_of_balance(signals: Signals, load: ExpertLoad) -> Saving:
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
