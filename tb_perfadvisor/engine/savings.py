"""Savings of findings: estimated, contended, simulated.

Widens the ranges of savings on the CPU, where work shares its cores.

When the host computes, how long a piece of work takes differs from run to run by more than it
differs between the steps of one. And a step and whatever slows it down share cores, caches and
memory bandwidth: once the cause is gone, the rest of the step runs faster or slower by an amount
that no profile shows. The ranges of such captures are wider by both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.base import Category, Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Need, Signals, why_missing
from tb_perfadvisor.signals.host.call_tree import host_operators
from tb_perfadvisor.signals.host.idle import closable_idle
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.work.fusible_work import LONG_ON_CPU_NS
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    shared_ns,
    total_ns,
)
from tb_perfadvisor.whatif import (
    Async,
    Fix,
    NotReplayable,
    Remove,
    Simulation,
    host_decides,
    most_saved_ns,
    simulation,
    simulation_for,
)
from tb_perfadvisor.whatif.program import HOST_HIDDEN

Found = tuple[Rule, Finding]


def saved_together(signals: Signals) -> Callable[[Sequence[Fix]], int]:
    """A function that simulates how much of the used window fixes save together."""

    def saved_ns(fixes: Sequence[Fix]) -> int:
        steps = simulation(signals)
        return steps.saved_ns(*fixes) if isinstance(steps, Simulation) else 0

    return saved_ns


def simulation_notes(found: Sequence[Found], signals: Signals) -> tuple[Note, ...]:
    """Explain why savings are not simulated; nothing if they never are.

    Savings are never simulated on the CPU, nor from a recorder's totals, whose own note says so.
    """
    savings = [finding.saving for _, finding in found]
    fixes = [saving.fix for saving in savings if saving is not None and saving.fix]
    if not fixes or signals.device.index is None or signals.trace.totals is not None:
        return ()
    results = [simulation_for(signals, *fix) for fix in fixes]
    unfit = [
        result
        for result in results
        if isinstance(result, NotReplayable) and result is not HOST_HIDDEN
    ]
    if not unfit:
        return ()
    return (
        Note(
            "not-simulated",
            "info",
            f"Savings come from the recorded durations, not from a replay of the steps, because "
            f"{unfit[0].reason}. Several changes together may save more or less than estimated.",
        ),
    )


def simulate(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Replace the saving of each finding whose fix can be simulated by the simulated one.

    A saving that keeps its fix was simulated. A measured saving becomes simulated; a modeled one
    stays modeled, and the simulation tells how much of it reaches the step. No more is expected
    than the rule's high estimate. If a host that runs ahead closes more idle time later, that is
    the new high end. If recording slowed
    the host down for much of the steps, a model of a faster device is expected to save half of
    what the simulation rules out. With several ranks, the expected saving ends where the next
    rank becomes the slowest.
    """
    return [
        (rule, finding)
        if finding.saving is None
        else (
            rule,
            replace(
                finding,
                saving=_limited_by_other_ranks(_simulated(finding.saving, signals), signals),
            ),
        )
        for rule, finding in found
    ]


def _limited_by_other_ranks(saving: Saving, signals: Signals) -> Saving:
    most_ns = most_saved_ns(signals, saving.claims)
    if saving.expected_ns <= most_ns:
        return saving
    return replace(
        saving,
        low_ns=min(saving.low_ns, most_ns),
        expected_ns=most_ns,
        unproven_ns=min(saving.unproven_ns, most_ns),
    )


def _simulated(saving: Saving, signals: Signals) -> Saving:
    if not saving.fix or saving.basis == "simulated":
        return saving
    steps = simulation_for(signals, *saving.fix)
    if not isinstance(steps, Simulation):
        return replace(saving, fix=())
    realized_ns = int(saving.realized_share * steps.saved_ns(*saving.fix))
    saved_ns = max(realized_ns - saving.elsewhere_ns, 0)
    beyond_ns = saved_ns - saving.high_ns
    saved_ns = min(saved_ns, saving.high_ns)
    if beyond_ns > 0 and any(isinstance(fix, Async | Remove) for fix in saving.fix):
        saving = _closing_later_idle(saving, beyond_ns, signals)
    unproven_ns = 0
    if steps.host_speed_is_unknown and host_decides(*saving.fix) and saving.basis == "modeled":
        # Without a profiler, the host may be fast enough to keep the device busy. Then the model
        # holds in full. It is unknown, so expect half.
        unproven_ns = max(saving.expected_ns - saved_ns, 0) // 2
    return replace(
        saving,
        low_ns=min(saving.low_ns, saved_ns),
        expected_ns=saved_ns + unproven_ns,
        unproven_ns=unproven_ns,
        basis="simulated" if saving.basis == "measured" else saving.basis,
    )


def _closing_later_idle(saving: Saving, beyond_ns: int, signals: Signals) -> Saving:
    """A saving whose high end includes idle time that it is not about, as a replay shows."""
    claims = join(saving.claims, closable_idle(signals))
    return replace(
        saving,
        high_ns=min(saving.high_ns + beyond_ns, total_ns(claims)),
        claims=claims,
        priced=saving.expected_from,
    )


FASTER_SHARE, SLOWER_SHARE = 0.06, 0.05
"""How much faster or slower the rest of a step may run once the cause is gone."""
DIFFERS = 0.05
"""How much the time that is saved may differ between runs.

These shares hold the range for nine of ten recordings of the tuning half
(`benchmarks/recorded_pairs`, two cores), with a median width of 0.9 of what is expected. Others
that do so are as wide, or rate the remains of mended causes as medium."""

LONGER_BY_RECORDING = 1.4
"""How many times as long recording by JAX or TensorFlow may make a step: at most that in 14 of 16
programs that ran with and without it on a quiet machine of two cores (median 1.2, most 2.05). The
file does not tell: the extra time per event was 0.2 to 17 microseconds."""


def widen(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Widen the ranges of a CPU-only capture; leave the findings of other captures unchanged.

    Both ends move by `DIFFERS` of what is expected, and by `SLOWER_SHARE` and `FASTER_SHARE` of the
    step's own work that the saving does not claim. For input and collectives, the high end also
    includes the processor time that their threads take from concurrent work. What makes operators
    wait has a part in the time that no finding claims, and at best its end makes the rest of each
    step as quick as it is in quick steps. Of steps that JAX or TensorFlow recorded, the high end
    may be a larger share without that.
    """
    if not signals.device.is_host_only:
        return list(found)
    nameless = _nameless(found, signals)
    return [
        (rule, finding)
        if finding.saving is None or finding.saving.expected_ns == 0
        else (
            rule,
            replace(finding, saving=_widened(finding.saving, signals, rule.category, nameless)),
        )
        for rule, finding in found
    ]


_BACKGROUND_WORK = {"input": EventKind.INPUT_WORK, "communication": EventKind.HOST_COLLECTIVE}
"""The work of background threads that findings of a category are about."""
_NAMELESS = (Cause.FRAMEWORK, Cause.PYTHON, Cause.UNEXPLAINED)
_QUICK = 0.1
"""A quick step: one in ten is as quick."""


def _nameless(found: Sequence[Found], signals: Signals) -> Intervals:
    """Idle time for which no finding has a certain reason."""
    savings = [f.saving for rule, f in found if f.saving is not None and rule.category != "steps"]
    claims = join(*(saving.claims for saving in savings if saving.low_ns > 0))
    return minus(signals.attribution.of(*_NAMELESS), claims)


def _widened(saving: Saving, signals: Signals, category: Category, nameless: Intervals) -> Saving:
    computing = signals.attribution.intervals[Cause.HOST_COMPUTE]
    work, waiting = minus(computing, saving.claims), minus(saving.claims, computing)
    work_ns, waiting_ns = total_ns(work), total_ns(waiting)
    kind = _BACKGROUND_WORK.get(category)
    taken_ns = 0 if kind is None else _most_time_taken_ns(kind, signals, work)
    differs_ns = round(DIFFERS * saving.expected_ns)
    quicker_ns, beside_ns = round(FASTER_SHARE * work_ns), 0
    if category in ("input", "launch") and saving.basis == "measured":
        waiting_ns = saving.claimed_ns  # what the host does may run operators, such as a checkpoint
    # Findings about slow steps do not say why they are slow. Where no operator is recorded, nothing
    # tells which part of the time is nameless.
    if category != "steps" and len(computing):
        beside_ns = _beside_ns(saving, waiting_ns, signals, nameless)
        if 2 * waiting_ns > saving.claimed_ns:
            quicker_ns = max(quicker_ns, min(_quicker_ns(work, signals), saving.expected_ns))
    outside_ns = saving.outside_claims_ns
    claimed_ns = saving.high_ns - outside_ns
    more_ns = quicker_ns + taken_ns + differs_ns
    outside_ns = max(outside_ns, min(outside_ns + more_ns, work_ns)) + beside_ns
    high_ns = _most_of_unrecorded_ns(claimed_ns + outside_ns, signals)
    return replace(
        saving,
        low_ns=max(saving.low_ns - round(SLOWER_SHARE * work_ns) - differs_ns, 0),
        expected_ns=min(saving.expected_ns + beside_ns // 2, high_ns),
        high_ns=high_ns,
        outside_claims_ns=high_ns - claimed_ns,
    )


def _most_of_unrecorded_ns(high_ns: int, signals: Signals) -> int:
    """A high end that is its share of a step whose other time recording has made longer.

    No change saves more than all of the time.
    """
    window_ns = signals.attribution.window_ns
    high_ns = min(high_ns, window_ns)
    if signals.trace.source.framework not in ("jax", "tensorflow"):
        return high_ns
    most = LONGER_BY_RECORDING * high_ns
    return round(window_ns * most / (most + window_ns - high_ns))


def _beside_ns(saving: Saving, waiting_ns: int, signals: Signals, nameless: Intervals) -> int:
    """The part of a waiting time in what no finding explains.

    That is code around what findings are about, or time in which other programs had the cores.
    Either is more likely where the program spends more of its time.
    """
    nameless_ns = total_ns(minus(nameless, saving.claims))
    return nameless_ns * waiting_ns // max(signals.attribution.window_ns - nameless_ns, 1)


def _quicker_ns(work: Intervals, signals: Signals) -> int:
    """What is saved of the steps' other work if it takes as long as in a quick step.

    Other work takes its caches and cores, and so do other programs.
    """
    starts, ends = signals.steps.host_start_ns, signals.steps.host_end_ns
    work_ns = overlap_ns(work, starts, ends)
    quick_ns = np.quantile(work_ns, _QUICK, method="lower") if len(work_ns) else 0
    return int(np.maximum(work_ns - quick_ns, 0).sum())


def _most_time_taken_ns(kind: EventKind, signals: Signals, work: Intervals) -> int:
    """The most time that background threads may have taken from concurrent work.

    Schedulers share cores fairly: next to k busy threads, a thread gets at least 1 / (k + 1) of
    its core, and loses at most k / (k + 1). With k as the mean over the overlap, the loss is
    overlap x k / (k + 1) = overlap x busy / (busy + overlap), where busy sums over the threads.
    """
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(kind)
    overlap_ns = shared_ns(work, events.spans(rows))
    if overlap_ns == 0:
        return 0
    busy_ns = 0
    for _, places in places_by_value(events.track[rows]):
        of_track = rows[places]
        busy = events.spans(of_track)
        busy_ns += shared_ns(busy, work)
    return overlap_ns * busy_ns // (busy_ns + overlap_ns)


_WIDEST = 4
"""The width of a range in terms of the expected saving, above which it is a heuristic."""


def estimated(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Findings with their final savings.

    They are simulated where possible, do without the cost of recording, are wider on the CPU, and
    are heuristics if their range is too wide for anything else. A saving without a price is
    none: its finding keeps the bounds.
    """
    found = [(rule, _without_unknown(_unless_shapes_change(f, signals))) for rule, f in found]
    simulated = zip(found, simulate(found, signals), strict=True)
    recorded = [
        (rule, finding)
        if finding.saving is None or original.saving is None
        else (
            rule,
            replace(
                finding,
                saving=_without_recording(
                    finding.saving, _recorded_host_code(original.saving, signals), signals
                ),
            ),
        )
        for (_, original), (rule, finding) in simulated
    ]
    return mark_wide_ranges(with_costs(widen(recorded, signals), signals))


def with_costs(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Lower the low end of changes that may also make the steps longer: it may be negative.

    Compiled code that returns to Python in many places, or compiles again for new shapes, costs the
    host time: a part of what is compiled, and no more than the time in which no long operator
    computes, or with a device than the idle time that the host causes. With a device it is nothing
    if shapes were recorded, and neither they nor the data decide how the program goes on.
    """
    if signals.device.is_host_only:
        computing_ns = host_operators(signals).self_ns
        long_ns = int(computing_ns[computing_ns >= LONG_ON_CPU_NS].sum())
        host_ns = max(signals.attribution.window_ns - long_ns, 0)
    elif why_missing(signals, Need.SHAPES) is None and not workload(signals).has(Part.DECISIONS):
        return list(found)
    else:
        host_ns = signals.attribution.total_ns(*HOST_CAUSED)
    return [(rule, _with_cost(finding, host_ns)) for rule, finding in found]


def _with_cost(finding: Finding, host_ns: int) -> Finding:
    saving = finding.saving
    if saving is None or not _may_cost(finding):
        return finding
    cost_ns = round(_may_cost(finding) * min(saving.claimed_ns, host_ns))
    low_ns = saving.low_ns - cost_ns
    return replace(finding, saving=replace(saving, low_ns=low_ns, may_cost_ns=cost_ns))


def _may_cost(finding: Finding) -> float:
    """What the first remedy, which the saving is about, may cost."""
    return finding.remedies[0].may_cost if finding.remedies else 0.0


def _unless_shapes_change(finding: Finding, signals: Signals) -> Finding:
    """A finding without a price if its change compiles again for each of the many new shapes."""
    if finding.saving is None or not _may_cost(finding):
        return finding
    if not workload(signals).has(Part.NEW_SHAPES):
        return finding
    return replace(
        finding,
        summary=f"{finding.summary} But its shapes change from step to step, and each new one may"
        " compile again.",
        saving=replace(finding.saving, is_unknown=True),
    )


def _without_unknown(finding: Finding) -> Finding:
    """A finding whose saving has no price keeps its bounds."""
    if finding.saving is None or not finding.saving.has_no_price:
        return finding
    return replace(finding, saving=None, bounds=replace(finding.saving, fix=()))


def _recorded_host_code(saving: Saving, signals: Signals) -> Intervals:
    """The idle time of a rule's saving that comes from host code which the change removes."""
    if signals.trace.totals is not None or not any(isinstance(fix, Remove) for fix in saving.fix):
        return saving.claims[:0]
    return intersect(saving.claims, signals.attribution.of(*HOST_CAUSED, Cause.BETWEEN_STEPS))


def _without_recording(saving: Saving, host_code: Intervals, signals: Signals) -> Saving:
    """Subtract the cost of recording.

    A change that removes host code also removes the recording of that code, which takes time only
    while a profiler runs. A replay may leave it out already.

    The saving is simulated if possible. `host_code` is what `_recorded_host_code` found for the
    rule's own.
    """
    cost_ns = profiler_overhead(signals).within_ns(host_code)
    steps = simulation(signals) if cost_ns and saving.fix else None
    if isinstance(steps, Simulation) and steps.leaves_out_pauses(*saving.fix):
        cost_ns = max(cost_ns - shared_ns(steps.pauses, host_code), 0)
    if cost_ns == 0:
        return saving
    expected_ns = max(saving.expected_ns - cost_ns, 0)
    return replace(
        saving,
        low_ns=min(saving.low_ns, expected_ns),
        expected_ns=expected_ns,
        unproven_ns=min(saving.unproven_ns, expected_ns),
        recording_ns=cost_ns,
    )


def mark_wide_ranges(found: Sequence[Found]) -> list[Found]:
    """Call the basis of each saving a heuristic if its range is too wide for anything else.

    Of a saving of 20 ms between 0 and 144 ms, the profile tells the direction and the limit, but
    not the amount: something that decides it is not recorded, such as whether the program needs a
    value that it copies. Cutting the range would leave the truth outside. So it stays.
    """
    return [
        (rule, replace(finding, saving=replace(finding.saving, basis="heuristic")))
        if finding.saving is not None and _is_wide(finding.saving)
        else (rule, finding)
        for rule, finding in found
    ]


def _is_wide(saving: Saving) -> bool:
    """Whether a range is wider than four times the expected saving."""
    return saving.high_ns - saving.low_ns > _WIDEST * saving.expected_ns
