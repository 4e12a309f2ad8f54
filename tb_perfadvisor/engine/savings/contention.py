"""Widens the ranges of savings on the CPU, where work shares its cores.

When the host computes, how long a piece of work takes differs from run to run by more than it
differs between the steps of one. And a step and whatever slows it down share cores, caches and
memory bandwidth: once the cause is gone, the rest of the step runs faster or slower by an amount
that no profile shows. The ranges of such captures are wider by both.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.savings.simulated import Found
from tb_perfadvisor.rules.base import Category
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, total_ns, union

FASTER_SHARE, SLOWER_SHARE = 0.06, 0.05
"""How much faster or slower the rest of a step may run once the cause is gone."""
DIFFERS = 0.05
"""How much the time that is saved may differ between runs.

These shares hold the range for nine of ten recordings of the tuning half
(`benchmarks/recorded_pairs`, two cores), with a median width of 0.9 of what is expected. Others
that do so are as wide, or rate the remains of mended causes as medium."""


def widen(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Widen the ranges of a CPU-only capture; leave the findings of other captures unchanged.

    Both ends move by `DIFFERS` of what is expected, and by `SLOWER_SHARE` and `FASTER_SHARE` of the
    step's own work that the saving does not claim. For input and collectives, the high end also
    includes the processor time that their threads take from concurrent work.
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


_BACKGROUND_WORK = {"input": EventKind.INPUT_WORK, "communication": EventKind.HOST_COLLECTIVE}
"""The work of background threads that findings of a category are about."""


def _widened(saving: Saving, signals: Signals, category: Category) -> Saving:
    work = minus(signals.attribution.intervals[Cause.HOST_COMPUTE], saving.claims)
    work_ns = total_ns(work)
    kind = _BACKGROUND_WORK.get(category)
    taken_ns = 0 if kind is None else _most_time_taken_ns(kind, signals, work)
    differs_ns = round(DIFFERS * saving.expected_ns)
    claimed_ns = saving.high_ns - saving.outside_claims_ns
    more_ns = round(FASTER_SHARE * work_ns) + taken_ns + differs_ns
    outside_claims_ns = min(saving.outside_claims_ns + more_ns, work_ns)
    return replace(
        saving,
        low_ns=max(saving.low_ns - round(SLOWER_SHARE * work_ns) - differs_ns, 0),
        high_ns=claimed_ns + outside_claims_ns,
        outside_claims_ns=outside_claims_ns,
    )


def _most_time_taken_ns(kind: EventKind, signals: Signals, work: Intervals) -> int:
    """The most time that background threads may have taken from concurrent work.

    Schedulers share cores fairly: next to k busy threads, a thread gets at least 1 / (k + 1) of
    its core, and loses at most k / (k + 1). With k as the mean over the overlap, the loss is
    overlap x k / (k + 1) = overlap x busy / (busy + overlap), where busy sums over the threads.
    """
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(kind)
    overlap_ns = total_ns(intersect(work, union(events.start_ns[rows], events.end_ns[rows])))
    if overlap_ns == 0:
        return 0
    busy_ns = 0
    for _, places in places_by_value(events.track[rows]):
        of_track = rows[places]
        busy = union(events.start_ns[of_track], events.end_ns[of_track])
        busy_ns += total_ns(intersect(busy, work))
    return overlap_ns * busy_ns // (busy_ns + overlap_ns)
