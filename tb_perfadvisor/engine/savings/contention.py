"""What sharing its cores does to an estimate on the CPU.

Where the host computes, a step and what slows it share cores, caches and memory bandwidth. With
the cause gone the rest of the step does not take what it took beside it, by an amount that no
profile shows: the ranges of such captures are as much wider.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.savings.simulated import Found
from tb_perfadvisor.rules.base import Category
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.attribution import Cause
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, total_ns, union

FASTER_SHARE, SLOWER_SHARE = 0.13, 0.06
"""How much faster or slower the rest of a step may run with the cause gone: the least with which
nine of ten recordings of the tuning half (`benchmarks/recorded_pairs`, two cores) gain what their
range says. Oftener the gain is larger than what is seen to be lost, for what is gone no longer
takes part of the cores, caches and memory bandwidth."""


def widen(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Widen the ranges of a CPU-only capture; other captures' findings stay as they are.

    The ends move by `SLOWER_SHARE` and `FASTER_SHARE` of the step's own work that a saving does
    not claim. Of input and of collectives, high counts also what their threads take from the
    work beside them.
    """
    if not signals.device.is_host_only:
        return list(found)
    return [
        (rule, finding)
        if finding.saving is None or finding.saving.expected_ns == 0
        else (
            rule,
            replace(finding, saving=_widened(finding.saving, signals, rule.category)),
        )
        for rule, finding in found
    ]


_BESIDE = {"input": EventKind.INPUT_WORK, "communication": EventKind.HOST_COLLECTIVE}
"""What threads beside the step's do that a finding of some category is about."""


def _widened(saving: Saving, signals: Signals, category: Category) -> Saving:
    rest = minus(signals.attribution.intervals[Cause.HOST_COMPUTE], saving.claims)
    work_ns = total_ns(rest)
    beside = _BESIDE.get(category)
    taken_ns = 0 if beside is None else _taken_by(beside, signals, rest)
    own_ns = saving.high_ns - saving.outside_claims_ns
    outside_claims_ns = min(
        saving.outside_claims_ns + round(FASTER_SHARE * work_ns) + taken_ns, work_ns
    )
    return replace(
        saving,
        low_ns=max(saving.low_ns - round(SLOWER_SHARE * work_ns), 0),
        high_ns=own_ns + outside_claims_ns,
        outside_claims_ns=outside_claims_ns,
    )


def _taken_by(kind: EventKind, signals: Signals, work: Intervals) -> int:
    """The most that threads may have taken from the work beside them.

    Schedulers share cores fairly: beside k busy threads a thread has at least one part in
    k + 1 of its core, and loses at most k. With k the mean over the overlap, that is
    overlap x k / (k + 1) = overlap x busy / (busy + overlap), busy being the threads' sum.
    """
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(kind)
    overlap_ns = total_ns(intersect(work, union(events.start_ns[rows], events.end_ns[rows])))
    if overlap_ns == 0:
        return 0
    busy_ns = 0
    for track in distinct(events.track[rows]).tolist():
        own = rows[events.track[rows] == track]
        busy_ns += total_ns(intersect(work, union(events.start_ns[own], events.end_ns[own])))
    return overlap_ns * busy_ns // (busy_ns + overlap_ns)
