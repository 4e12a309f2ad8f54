"""What a report leads with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import (
    SOLID,
    BlindSpot,
    RankedFinding,
    RuleOutcome,
    Trust,
)
from tb_perfadvisor.engine.change_model import limits_of
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.evidence.compilation import log_in_short
from tb_perfadvisor.rules.evidence.synchronization import wait_in_short
from tb_perfadvisor.rules.evidence.tables import holders_in
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE, Cause
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work
from tb_perfadvisor.signals.host.busy_functions import busiest_for
from tb_perfadvisor.signals.host.idle import annotated_idle
from tb_perfadvisor.signals.host.queued_waits import queued_waits
from tb_perfadvisor.signals.recording.completeness import start_up
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace.intervals import Intervals, join, shared_ns, total_ns
from tb_perfadvisor.trace.names import short_annotation
from tb_perfadvisor.units import format_bytes, format_duration, format_share

NOTABLE_SHARE = 0.2
"""Name a cause that takes a fifth of the step even if there is nothing to save."""
SURE_SHARE = 0.1
"""If the low end is less than a tenth of what is expected, it is near 0."""
NEAR_SHARE = 0.5
"""Work that needs less of its time stands out, even if nothing tells why."""
LITTLE_SHARE = 0.05
"""If a change saves less, where the time goes comes first."""
QUEUED_SHARE = 0.1
"""Say what launched work waits for if it waits for a tenth of the step."""
_SENTENCE = regex(r"(?<=[a-z)])\. (?=[A-Z])")
_ALL = 0.9995
"""Rounded, this is 100.0 %."""
_AT_WORK = {"training": "training", "inference server": "serving", "forward only": "inference"}
_TAKES = {
    Cause.COPIES: "Exposed copies take",
    Cause.NOT_RECORDED: "Work that was not recorded takes",
    Cause.BETWEEN_STEPS: "The time between steps takes",
    Cause.SYNCHRONIZATION: "Synchronization takes",
    Cause.PYTHON: "Python code takes",
}
"""Causes whose label is no subject for "takes"."""


def headline(
    signals: Signals,
    findings: Sequence[RankedFinding],
    first: int | None,
    blind_spot: BlindSpot | None = None,
    trust: Trust = SOLID,
    *,
    starts_up: bool = False,
) -> str:
    """Say what costs the time, and what the change to begin with saves of it, how surely.

    `first` is the index of that change. `blind_spot` is None unless finding little says little.
    `starts_up` holds for a profile of a program that starts up. If the recording should not be
    acted on, that is all there is to say.
    """
    window_ns = signals.attribution.window_ns
    if trust.level == "do not act" and window_ns and not starts_up:
        reason = trust.reasons[0]
        remedy = _SENTENCE.split(reason.remedy, maxsplit=1)[0].rstrip(".")
        return f"Do not act on this recording: {reason.in_short}" + (f". {remedy}" * bool(remedy))
    log = signals.trace.compile_log
    if log is not None:
        return f"torch.compile: {log_in_short(log)}"
    if signals.trace.is_snapshot_only:
        return _of_snapshot(signals, findings)
    if window_ns == 0:
        return "The profile is empty: nothing was recorded"
    if starts_up:
        once = format_share(total_ns(start_up(signals)) / window_ns)
        what = _AT_WORK.get(workload(signals).mode, "the program at work")
        return (
            f"This records start-up, not {what}: {once} of the time is spent on what happens only "
            "once. Record again after a few steps"
        )
    change = None if first is None else findings[first]
    saved = None if change is None or not _expected_ns(change) else limits_of(change.finding)
    waits = _launched_work_waits(signals, 0 if saved is None else saved.high_ns)
    if change is None or (saved is None and change.severity == "low"):
        return waits or _where_time_goes(signals, blind_spot)
    title, _, about = change.title.partition(": ")
    whole = "each step" if len(signals.steps) else "the profile"
    is_cost = f"% of {whole}" in about or f" of {whole} (" in about
    if waits:
        cost = waits
    elif saved is not None and _expected_ns(change) < LITTLE_SHARE * window_ns:
        cost = _where_time_goes(signals, blind_spot, is_all=False)
        worst = _notable(signals)
        if worst is not None and worst is not Cause.UNEXPLAINED:
            is_claimed = _is_claimed(signals.attribution.intervals[worst], findings)
            cost += "" if is_claimed else ", and no finding saves much of that"
    elif is_cost:
        cost = f"{about[0].upper()}{about[1:]}"
    elif saved is not None:
        cost = _what_costs(signals, saved.claims)
    else:
        return change.title
    is_said = is_cost or not about or "…" in about or about in cost
    about = re.sub(r" \(([^()]*)\)", r", \1", about)
    subject = "" if is_said else f" ({about})"
    if saved is None:
        return f"{cost}. {title}{subject}: the saving is unknown"
    return f"{cost}. {title}{subject}: {_size(change, window_ns, signals.steps.count)}"


def _expected_ns(change: RankedFinding) -> int:
    """What a change is expected to save; without a price, the most that it may."""
    saving, bounds = change.finding.saving, change.finding.bounds
    return saving.expected_ns if saving is not None else bounds.high_ns if bounds is not None else 0


def _size(change: RankedFinding, window_ns: int, steps: int) -> str:
    """What a change saves of the step, and how surely: `probably −44.0 ms of 175 (31.2 to 59.1)`.

    Up to so much, if the low end is near 0, or nothing tells what to expect.
    """
    saving, limits = change.finding.saving, limits_of(change.finding)
    assert limits is not None
    costs = dict(change.finding.remedies[0].costs) if change.finding.is_lossy else {}
    loss = ", at the cost of accuracy" if "accuracy" in costs else ""
    if saving is None or saving.low_ns < SURE_SHARE * saving.expected_ns:
        probable_ns = 0 if saving is None else saving.expected_ns
        cost_ns = 0 if saving is None else max(-saving.low_ns, 0)
        most, whole, expected, cost = _in_short(
            limits.high_ns, window_ns, probable_ns, cost_ns, steps=steps
        )
        text = f"up to −{most} of {whole}"
        text += f", probably −{expected}" if probable_ns and expected != most.split()[0] else ""
        return f"{text}, at worst +{cost}{loss}" if cost_ns else text + loss
    expected, whole, low, high = _in_short(
        saving.expected_ns, window_ns, saving.low_ns, saving.high_ns, steps=steps
    )
    span = f" ({low} to {high})" if low != high else ""
    return f"probably −{expected} of {whole}{span}{loss}"


def _in_short(*totals_ns: int, steps: int) -> list[str]:
    """Durations per step; only the first has a unit if all have the same."""
    texts = [format_duration(total / steps) for total in totals_ns]
    units = {text.partition(" ")[2] for text, total in zip(texts, totals_ns, strict=True) if total}
    return texts if len(units) > 1 else [texts[0], *(text.partition(" ")[0] for text in texts[1:])]


def _of_snapshot(signals: Signals, findings: Sequence[RankedFinding]) -> str:
    """What a memory snapshot shows first: a finding, or what holds the peak."""
    course = memory_course(signals)
    if course is None:
        return "The memory snapshot is empty: nothing was allocated"
    peak = course.peak_allocated_bytes
    if findings:
        return f"Peak memory is {format_bytes(peak)}. {findings[0].title}"
    holders = [holder for holder in holders_in(course, course.peak) if holder.line is not None]
    share = holders[0].bytes / peak if holders else 0.0
    part = "all" if share > _ALL else format_share(share)
    held = f", {part} of it from {holders[0].line}" if share >= NOTABLE_SHARE else ""
    return f"Nothing stands out: peak memory is {format_bytes(peak)}{held}"


def _launched_work_waits(signals: Signals, more_than_ns: int = 0) -> str:
    """What is launched and does not start for a good part of the time; else empty."""
    found = queued_waits(signals)
    least_ns = max(QUEUED_SHARE * signals.attribution.window_ns, more_than_ns + 1)
    return _takes(signals, Cause.QUEUED) if found.waits and found.total_ns >= least_ns else ""


def _share_of_whole(signals: Signals, share: float | None) -> str:
    """`34.1 % of each step`."""
    return f"{format_share(share)} of {'each step' if len(signals.steps) else 'the profile'}"


def _what_costs(signals: Signals, claims: Intervals) -> str:
    """The cause that most of some time has, and the share of the step that it takes in all."""
    attribution = signals.attribution
    overlap_ns = attribution.within_ns(claims)
    computing_ns = sum(overlap_ns.get(cause, 0) for cause in (*COMPUTE, Cause.HOST_COMPUTE))
    others = {
        cause: overlap
        for cause, overlap in overlap_ns.items()
        if cause not in (*COMPUTE, Cause.HOST_COMPUTE)
    }
    worst = max(others, key=others.__getitem__, default=None)
    is_little = worst is None or (attribution.share(worst) or 0.0) < LITTLE_SHARE
    if worst is None or is_little or others[worst] <= computing_ns:
        return _computing(signals)
    return _takes(signals, worst)


def _computing(signals: Signals) -> str:
    attribution = signals.attribution
    if signals.device.index is None:
        share = attribution.share(Cause.HOST_COMPUTE)
        return f"Operators run for {_share_of_whole(signals, share)}"
    return f"The device computes for {_share_of_whole(signals, attribution.share(*COMPUTE))}"


def _takes(signals: Signals, cause: Cause) -> str:
    """`Waiting for input takes 34.1 % of each step`, and where, if anything tells."""
    attribution = signals.attribution
    share = _share_of_whole(signals, attribution.share(cause))
    of_python = cause in (Cause.UNEXPLAINED, Cause.PYTHON)
    function = busiest_for(signals, attribution.total_ns(cause)) if of_python else None
    seen = "" if function is None else f", mostly in {function}"
    if cause is Cause.UNEXPLAINED:
        idle = "No operator runs" if signals.device.index is None else "The device idles"
        return f"{idle} for {share}{seen or ', and nothing in the profile explains it'}"
    if cause is Cause.QUEUED:
        waits = queued_waits(signals).waits
        which = f": {wait_in_short(waits[0])}" if waits else ""
        return f"Launched work waits for {share} to start{which}"
    names = [] if cause in BUSY else annotated_idle(signals).by_name(attribution.intervals[cause])
    name = signals.trace.text(names[0][0]) if names else ""
    where = f", mostly under {short_annotation(name)}" if name else seen
    return f"{_TAKES.get(cause, f'{cause.label} takes')} {share}{where}"


def _where_time_goes(signals: Signals, blind_spot: BlindSpot | None, *, is_all: bool = True) -> str:
    """What takes the time; how near that is to its limits, if nothing else is said."""
    worst = _notable(signals)
    if worst is not None:
        return _takes(signals, worst)
    doing = _computing(signals)
    if blind_spot is not None:
        return (
            f"{doing}. {blind_spot.checks - blind_spot.looked} of {blind_spot.checks} checks could "
            f"not run: {blind_spot.reason}"
        )
    work = next((work for work in costliest_work(signals) if not work.is_idle), None)
    is_far = work is not None and (work.achieved_share or 1.0) < NEAR_SHARE
    text = f"{doing}{_how_near(signals)}" if is_all else doing
    return text if is_far else f"Nothing stands out: {text[0].lower()}{text[1:]}"


def _notable(signals: Signals) -> Cause | None:
    """What takes most of the time that nothing computes, if it takes a good part of all."""
    attribution = signals.attribution
    worst = max(
        (cause for cause in Cause if cause not in (*COMPUTE, Cause.HOST_COMPUTE)),
        key=attribution.total_ns,
    )
    return worst if (attribution.share(worst) or 0.0) >= NOTABLE_SHARE else None


def _is_claimed(intervals: Intervals, findings: Sequence[RankedFinding]) -> bool:
    """Whether a finding may save a good part of some time."""
    limits = (limits_of(each.finding) for each in findings)
    claims = [each.claims for each in limits if each is not None]
    least_ns = NOTABLE_SHARE * total_ns(intervals)
    # One often claims enough of it.
    return (
        any(shared_ns(some, intervals) > least_ns for some in claims)
        or shared_ns(join(*claims), intervals) > least_ns
    )


def _how_near(signals: Signals) -> str:
    """How near to its limits the costliest work is, for the end of a sentence."""
    first = next((work for work in costliest_work(signals) if not work.is_idle), None)
    if first is None:
        return ""
    share = format_share(first.time_ns / signals.attribution.window_ns)
    at = f" at {first.place}" if first.place else ""
    text = f", {share} in {first.name}{at}"
    if first.achieved_share is None:
        return text
    if first.achieved_share >= 1:
        return f"{text}, as fast as the hardware allows"
    return f"{text}, at {format_share(first.achieved_share)} of the achievable rate"


def agreeing(findings: Sequence[RankedFinding]) -> tuple[RankedFinding, ...]:
    """Findings whose remedies agree with those of the findings that refine them.

    The refining finding knows more, so the general one drops what contradicts it, unless it would
    be left without a remedy.
    """
    proposed: dict[str, dict[str, set[str]]] = {}
    for ranked in findings:
        if ranked.refines is not None:
            changes = proposed.setdefault(ranked.refines, {})
            for remedy in ranked.finding.remedies:
                changes.setdefault(remedy.subject, set()).add(remedy.snippet)
    return tuple(
        _without_contradictions(ranked, proposed.get(ranked.rule.id, {})) for ranked in findings
    )


def _without_contradictions(ranked: RankedFinding, proposed: dict[str, set[str]]) -> RankedFinding:
    """A finding without remedies for the proposed changes that have other code.

    `proposed` has, for each change, the code that the refining findings propose.
    """
    remedies = ranked.finding.remedies
    kept = tuple(
        remedy
        for remedy in remedies
        if not remedy.subject or remedy.snippet in proposed.get(remedy.subject, {remedy.snippet})
    )
    if len(kept) in (0, len(remedies)):
        return ranked
    return replace(ranked, finding=replace(ranked.finding, remedies=kept))


ENOUGH_SHARE = 1 / 3
"""An ordinary profile without memory, stacks or shapes allows about half of the checks. Sums alone
allow a twelfth."""


def blind_spot(outcomes: Sequence[RuleOutcome]) -> BlindSpot | None:
    """Why most checks could not run; None if at least a third of them did.

    Checks that cannot concern the program, or that no recorder allows, do not count.
    """
    looked = sum(outcome.status in ("found", "passed") for outcome in outcomes)
    unseen = [outcome for outcome in outcomes if outcome.lacks_recording]
    checks = looked + len(unseen)
    if not unseen or looked >= ENOUGH_SHARE * checks:
        return None
    reasons = Counter(reason for o in unseen for reason in {gap.reason for gap in o.missing})
    (reason, _), *_ = reasons.most_common(1)
    return BlindSpot(looked, checks, reason)
