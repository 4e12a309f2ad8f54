"""What a report leads with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import (
    SOLID,
    BlindSpot,
    CombinedSaving,
    RankedFinding,
    RuleOutcome,
    Trust,
)
from tb_perfadvisor.engine.combination import limits_of
from tb_perfadvisor.rules.evidence.compilation import log_in_short
from tb_perfadvisor.rules.evidence.memory import holders_in
from tb_perfadvisor.rules.evidence.synchronization import wait_in_short
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE, Cause
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work
from tb_perfadvisor.signals.host.idle import annotated_idle
from tb_perfadvisor.signals.host.queued_waits import queued_waits
from tb_perfadvisor.signals.recording.start_up import start_up
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.names import short_annotation
from tb_perfadvisor.units import format_bytes, format_duration, format_share

NOTABLE_SHARE = 0.2
"""Name a cause that takes a fifth of the step even if there is nothing to save."""
SURE_SHARE = 0.1
"""If the low end is less than a tenth of what is expected, it is near 0."""
NEAR_SHARE = 0.5
"""Work that needs less of its time stands out, even if nothing tells why."""
LITTLE_SHARE = 0.05
"""If all changes together save less, where the time goes comes first."""
COUNTED_SHARE = 0.01
"""A change that adds less than a hundredth to the others is not worth counting."""
QUEUED_SHARE = 0.1
"""Say what launched work waits for if it waits for a tenth of the step."""
_SENTENCE = re.compile(r"(?<=[a-z)])\. (?=[A-Z])")
_ALL = 0.9995
"""Rounded, this is 100.0 %."""
_AT_WORK = {"training": "training", "inference server": "serving", "forward only": "inference"}
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def headline(
    signals: Signals,
    findings: Sequence[RankedFinding],
    combined: CombinedSaving | None,
    blind_spot: BlindSpot | None = None,
    trust: Trust = SOLID,
    *,
    starts_up: bool = False,
) -> str:
    """Say what all the advice together would save, or else where the time goes.

    What limits the trust in that comes first. If it should not be acted on, that is all.

    `combined` is None when no finding has a saving, `blind_spot` unless finding little says little.
    `starts_up` holds for a profile of a program that starts up.
    """
    said = _said(signals, findings, combined, blind_spot, starts_up=starts_up)
    if not trust.reasons or starts_up or signals.attribution.window_ns == 0:
        return said
    reason = trust.reasons[0]
    if reason.level == "do not act":
        remedy = _SENTENCE.split(reason.remedy, maxsplit=1)[0].rstrip(".")
        return f"Do not act on this recording: {reason.in_short}" + (f". {remedy}" * bool(remedy))
    return f"{reason.in_short[0].upper()}{reason.in_short[1:]}. {said}"


def _said(
    signals: Signals,
    findings: Sequence[RankedFinding],
    combined: CombinedSaving | None,
    blind_spot: BlindSpot | None,
    *,
    starts_up: bool,
) -> str:
    steps, attribution = signals.steps, signals.attribution
    log = signals.trace.compile_log
    if log is not None:
        return f"torch.compile: {log_in_short(log)}"
    if signals.trace.is_snapshot_only:
        return _of_snapshot(signals, findings)
    if attribution.window_ns == 0:
        return "The profile is empty: nothing was recorded"
    if starts_up:
        once = format_share(total_ns(start_up(signals)) / attribution.window_ns)
        what = _AT_WORK.get(workload(signals).mode, "the program at work")
        return (
            f"This records start-up, not {what}: {once} of the time is spent on what happens only "
            "once. Record again after a few steps"
        )
    whole = (
        f"each {format_duration(attribution.window_ns / steps.count)} step"
        if len(steps)
        else f"the {format_duration(attribution.window_ns)} profiled"
    )
    if combined is not None and combined.expected_ns > 0:
        count = sum(
            ranked.refines is None and ranked.marginal_ns >= COUNTED_SHARE * combined.expected_ns
            for ranked in findings
        )
        number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
        changes = (
            f"{number} change{'' if count == 1 else 's'} could save "
            f"{_saved_of(combined, _most_ns(findings), whole, steps.count)}"
        )
        if findings[0].finding.severity == "low":
            changes = f"Nothing stands out but what costs accuracy. {changes}"
        elif combined.expected_ns < LITTLE_SHARE * attribution.window_ns and blind_spot is None:
            changes = f"{_where_time_goes(signals, whole, None)}. {changes}"
        waits = _launched_work_waits(signals, "it")
        return f"{changes}. {waits}" if waits else changes
    waits = _launched_work_waits(signals, whole)
    notable = [ranked for ranked in findings if ranked.severity != "low"]
    if notable and (not waits or _may_save(notable[0]) > queued_waits(signals).total_ns):
        return notable[0].title
    if waits:
        return waits
    return _where_time_goes(signals, whole, blind_spot)


def _of_snapshot(signals: Signals, findings: Sequence[RankedFinding]) -> str:
    """What a memory snapshot shows first: a finding, or what holds the peak."""
    if findings:
        return findings[0].title
    course = memory_course(signals)
    if course is None:
        return "The memory snapshot is empty: nothing was allocated"
    peak = course.peak_allocated_bytes
    holders = [holder for holder in holders_in(course, course.peak) if holder.line is not None]
    text = f"Peak memory is {format_bytes(peak)}"
    if not holders:
        return text
    share = holders[0].bytes / peak
    part = "all" if share > _ALL else format_share(share)
    return f"{text}, {part} of it from {holders[0].line}"


def _most_ns(findings: Sequence[RankedFinding]) -> int:
    """The most that the changes themselves save: `CombinedSaving` also counts what happens once."""
    limits = [limits_of(ranked.finding) for ranked in findings if ranked.refines is None]
    return sum(saving.high_ns for saving in limits if saving is not None)


def _saved_of(combined: CombinedSaving, most_ns: int, whole: str, steps: int) -> str:
    """What is saved of the whole: at most, and probably, if the low end is near 0."""
    expected = format_duration(combined.expected_ns / steps)
    if combined.low_ns >= SURE_SHARE * combined.expected_ns:
        return f"{expected} of {whole}"
    most = format_duration(min(combined.high_ns, most_ns) / steps)
    text = f"up to {most} of {whole}" + (f", probably {expected}" if expected != most else "")
    cost = format_duration(-combined.low_ns / steps)
    return f"{text}, or cost up to {cost}" if combined.low_ns < 0 else text


def _may_save(ranked: RankedFinding) -> int:
    """The most that a finding may save, in nanoseconds of the window."""
    limits = limits_of(ranked.finding)
    return 0 if limits is None else limits.high_ns


def _launched_work_waits(signals: Signals, whole: str) -> str:
    """What is launched and does not start for a good part of the time; else empty."""
    found = queued_waits(signals)
    share = found.total_ns / signals.attribution.window_ns
    if share < QUEUED_SHARE or not found.waits:
        return ""
    wait = wait_in_short(found.waits[0])
    return f"For {format_share(share)} of {whole}, queued work does not start: {wait}"


def _where_time_goes(signals: Signals, whole: str, blind_spot: BlindSpot | None) -> str:
    attribution = signals.attribution
    worst = max(
        (cause for cause in Cause if cause not in (*COMPUTE, Cause.HOST_COMPUTE)),
        key=attribution.total_ns,
    )
    is_host_only = signals.device.index is None
    if (attribution.share(worst) or 0.0) >= NOTABLE_SHARE:
        share = format_share(attribution.share(worst))
        if worst is Cause.UNEXPLAINED:
            idle = "No operator runs" if is_host_only else "The device idles"
            return f"{idle} for {share} of {whole}, and nothing in the profile explains it"
        names = annotated_idle(signals).by_name(attribution.intervals[worst])
        name = signals.trace.text(names[0][0]) if names and worst not in BUSY else ""
        return f"{worst.label}: {share} of {whole}" + (
            f", mostly under {short_annotation(name)}" if name else ""
        )
    if is_host_only:
        doing = f"operators run for {format_share(attribution.share(Cause.HOST_COMPUTE))}"
    else:
        doing = f"the device computes for {format_share(attribution.share(*COMPUTE))}"
    if blind_spot is None:
        text = f"{doing} of {whole}{_how_near(signals)}"
        costliest = next((work for work in costliest_work(signals) if not work.is_idle), None)
        is_far = costliest is not None and (costliest.achieved_share or 1.0) < NEAR_SHARE
        return f"{text[0].upper()}{text[1:]}" if is_far else f"Nothing stands out: {text}"
    return (
        f"{doing[0].upper()}{doing[1:]} of {whole}, but only {blind_spot.looked} of"
        f" {blind_spot.checks} checks could look: {blind_spot.reason}"
    )


def _how_near(signals: Signals) -> str:
    """How near to its limits the costliest work is, for the end of a sentence."""
    work = [work for work in costliest_work(signals) if not work.is_idle]
    if not work:
        return ""
    first = work[0]
    share = format_share(first.time_ns / signals.attribution.window_ns)
    at = f" at {first.place}" if first.place else ""
    text = f", {share} of it in {first.name}{at}"
    if first.achieved_share is None:
        return text
    if first.achieved_share >= 1:
        return f"{text}, which is as fast as its work allows"
    return f"{text}, whose work needs {format_share(first.achieved_share)} of that"


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
