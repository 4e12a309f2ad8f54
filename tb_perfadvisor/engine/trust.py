"""How far a report can be trusted: decided once, from the notes on the recording.

A note lowers trust only if what it says changes a figure that is shown, by at least 5 %, or may
change the order of the first findings. Other notes say what was repaired, or what a further
recording could add.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import RuleOutcome, Trust, TrustLevel, TrustReason
from tb_perfadvisor.engine.change_model import limits_of
from tb_perfadvisor.note import Note, NoteSeverity
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Missing, Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE, Cause
from tb_perfadvisor.signals.core.steps.partial_steps import BETWEEN_LOST, LOST_EVENTS
from tb_perfadvisor.signals.host.busy_functions import busiest_for
from tb_perfadvisor.signals.launch.delays import taken_by_others_ns
from tb_perfadvisor.signals.recording.completeness import (
    UNKNOWN_SHARE,
    knows_device_time,
    not_recorded_share,
)
from tb_perfadvisor.signals.recording.hints import LOST_WORK
from tb_perfadvisor.signals.workload.fit import first_fitting
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace import BUSY_KINDS
from tb_perfadvisor.trace.intervals import shared_ns, total_ns
from tb_perfadvisor.units import format_duration, format_share

MOST_SHARE = 0.5
"""If half of the time or of the steps is missing, the rest is a poor sample."""
SOME_SHARE = 0.01
"""Less than that cannot reorder findings that are worth acting on."""
LEAST_WORK = 20
"""Fewer kernels or operators are no program. The smallest recorded step has some 50."""
LONG_WORK_NS = 1_000_000_000
"""A second of compute is no test of a kernel, and far more than a device's start-up."""
REPEATS = 3
"""Work that repeats as often is a loop, however small."""
TOO_LITTLE = "too-little-data"
NOT_RECORDED = "not-recorded"
LOST_STEPS = "lost-steps"
ON_QUIET_CORES = "Record again while nothing else runs, or give the program cores of its own."

# What each note takes away, in words that fit into a headline. Errors make a report one not to act
# on, warnings limit it.
_IN_SHORT = {
    "device-events-missing": "it has no device events, so the device's time is unknown",
    "no-device-events": "it has no device events, so the device's time is unknown",
    "sampled-events": "it holds only a sample of the events",
    "empty-profile": "nothing was recorded",
    "piece-of-a-step": "it holds only a piece of a step",
    "start-up": "it shows a program that starts up",
    "server-front-end": "it shows the front end of a server, not the model",
    TOO_LITTLE: "it holds too little work to rank anything",
    NOT_RECORDED: "a part of the device's work was not recorded",
    LOST_STEPS: "some steps lack their device events",
    "set-up": "most of the recording is set-up, so this is about what follows",
    "truncated-file": "the file is cut off, so this is about its beginning",
    "merged-file": "several processes are analyzed as one",
    "compile-in-window": "a part of the time is warm-up",
    "first-call": "a part of the time is warm-up",
    "slowed-by-recording": "recording made its steps longer",
    "slower-than-usual": "its steps took longer than usual",
    "loaded-machine": "other programs used the cores meanwhile",
    "device-clock-shift": "the device's clock was off, and was corrected",
    "impossible-durations": "some events had impossible durations",
    "file-changed": "the file changed while it was read",
    "results-disagree": "the recorder's own results disagree",
}


def trust_in(notes: Sequence[Note]) -> Trust:
    """How far to trust a report with these notes, and why, the gravest reason first."""
    reasons = [
        TrustReason(note.id, _LEVELS[note.severity], _in_short(note), note.message, note.remedy)
        for note in dict.fromkeys(notes)
        if note.id in _IN_SHORT and note.severity != "info"
    ]
    reasons.sort(key=lambda reason: reason.level != "do not act")  # stable
    return Trust(reasons[0].level if reasons else "solid", tuple(reasons))


def _in_short(note: Note) -> str:
    return (
        _MOST.get(note.id, _IN_SHORT[note.id]) if note.severity == "error" else _IN_SHORT[note.id]
    )


_MOST = {
    NOT_RECORDED: "most of the device's work was not recorded",
    LOST_STEPS: "most steps lack their device events",
}
_LEVELS: dict[NoteSeverity, TrustLevel] = {
    "info": "solid",
    "warning": "limited",
    "error": "do not act",
}


def too_little(signals: Signals) -> Note | None:
    """That a recording holds too little work for a ranking; None if it holds enough."""
    trace = signals.trace
    is_other = trace.totals is not None or trace.compile_log is not None
    if is_other or trace.soundness.work is None or signals.device.is_missing:
        return None
    moved = len(trace.rows(*BUSY_KINDS)) if trace.soundness.work == 0 else 0
    count = trace.soundness.work or moved
    if not 0 < count < LEAST_WORK or len(signals.steps) >= REPEATS or _is_long(signals):
        return None
    what = "copy or fill" if moved else "operator" if signals.device.is_host_only else "kernel"
    many = "copies and fills" if moved else f"{what}s"
    lack = ", and no kernel" if moved else ""
    return Note(
        TOO_LITTLE,
        "error",
        f"The recording holds {count} {what if count == 1 else many}{lack}: too few to say what a "
        "program spends its time on, so nothing is ranked.",
        "Record several steps of the program at work.",
    )


def _is_long(signals: Signals) -> bool:
    """Whether kernels, however few, take the most of a long time: they are the program."""
    window = signals.attribution
    computing_ns = sum(window.total_ns(cause) for cause in COMPUTE)
    return computing_ns >= max(LONG_WORK_NS, MOST_SHARE * window.window_ns)


def lost_work_notes(signals: Signals) -> list[Note]:
    """What the device did, and which steps did it, that was not recorded."""
    return [*_on_time(signals), *_on_steps(signals)]


def _on_time(signals: Signals) -> list[Note]:
    share = not_recorded_share(signals)
    if share < SOME_SHARE:
        return []
    window = signals.attribution
    missing_ns = window.total_ns(Cause.NOT_RECORDED)
    waited_ns = total_ns(signals.trace.soundness.proven)
    launches = signals.trace.soundness.unanswered
    how = []
    if launches:
        plural = "es" if launches > 1 else ""
        lack = "lack their kernels" if launches > 1 else "lacks its kernels"
        how.append(f"{launches:,} launch{plural} of kernels or graphs {lack}")
    if waited_ns:
        how.append(
            f"calls waited for {format_duration(waited_ns)} after all recorded work had ended"
        )
    return [
        Note(
            NOT_RECORDED,
            _severity(share),
            f"What the device did was not recorded for {format_duration(missing_ns)} "
            f"({format_share(share)}) of the analyzed time: {', and '.join(how)}. Whether the "
            "device was busy then is unknown, and so is what follows from it.",
            first_fitting(LOST_WORK, workload(signals)),
        )
    ]


def _on_steps(signals: Signals) -> list[Note]:
    steps = signals.steps
    lost = [step.number for step in steps.excluded if step.reason == LOST_EVENTS]
    beside = sum(step.reason == BETWEEN_LOST for step in steps.excluded)
    count = len(steps) + len(steps.excluded)
    # The last step often lacks some: the recording ended before the device had run them.
    if not lost or (len(lost) == 1 and not beside and lost[0] > int(steps.number.max(initial=-1))):
        return []
    more = f", and {beside} beside them," if beside else ""
    return [
        Note(
            LOST_STEPS,
            "error" if len(lost) >= MOST_SHARE * count else "warning",
            f"{len(lost)} of {count} steps ({_numbers(lost)}) lack device events that they "
            f"launched. They{more} are left out: nothing can be said of their device time.",
            first_fitting(LOST_WORK, workload(signals)),
        )
    ]


def _severity(share: float) -> NoteSeverity:
    if share < UNKNOWN_SHARE:
        return "info"
    return "error" if share >= MOST_SHARE else "warning"


def _numbers(numbers: Sequence[int]) -> str:
    """`13, 14, 20 to 25`: runs of numbers in short, at most eight of them."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [
        str(first) if first == last else f"{first}{', ' if last == first + 1 else ' to '}{last}"
        for first, last in runs
    ]
    more = ["…"] if len(texts) > _MOST_RUNS else []
    return ", ".join(texts[:_MOST_RUNS] + more)


_MOST_RUNS = 8


def abstaining(outcomes: Sequence[RuleOutcome], signals: Signals) -> tuple[RuleOutcome, ...]:
    """The outcomes without findings about idle time that the recording does not prove.

    Either it is not known when the device idled, or other programs used the cores for as long as
    a program on the CPU did nothing between its steps. A finding is about idle time if most of what
    it claims is. What kernels that were recorded cost is known all the same, and so is what looks
    at the whole run found.
    """
    if not knows_device_time(signals):
        proven = signals.attribution.of(*BUSY)
        longest_ns = signals.attribution.window_ns
        reason = (
            "what the device did was not recorded for "
            f"{format_share(not_recorded_share(signals))} of the time"
        )
        remedy = first_fitting(LOST_WORK, workload(signals))
        lost = Missing(Need.DEVICE_EVENTS, reason, remedy)
    elif signals.device.is_host_only and signals.trace.facts.load is not None:
        proven = signals.attribution.of(*(set(Cause) - {Cause.BETWEEN_STEPS}))
        longest_ns = taken_by_others_ns(signals.attribution.window_ns, signals.trace)
        reason = "other programs used the cores for as long as these steps were apart"
        lost = Missing(Need.NAMELESS_TIME, reason, ON_QUIET_CORES)
    else:
        return tuple(outcomes)

    def is_known(finding: Finding) -> bool:
        claims = limits_of(finding)
        if claims is None or (signals.device.is_host_only and not len(claims.claims)):
            return True
        claimed_ns = total_ns(claims.claims)
        if claimed_ns > longest_ns or shared_ns(claims.claims, proven) * 2 >= claimed_ns > 0:
            return True
        return signals.device.is_host_only and busiest_for(signals, claimed_ns) is not None

    kept = []
    for outcome in outcomes:
        known = tuple(finding for finding in outcome.findings if is_known(finding))
        if outcome.findings and not known:
            changes = {"status": "not_applicable", "missing": (lost,), "reason": reason}
            kept.append(replace(outcome, findings=(), **changes))
        else:
            kept.append(replace(outcome, findings=known))
    return tuple(kept)
