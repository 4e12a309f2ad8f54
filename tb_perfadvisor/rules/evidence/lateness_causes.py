"""Which ranks are late and why, in words and in a table, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Column, Evidence, Table, costliest
from tb_perfadvisor.signals import Cause, Signals, ranks_of
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.host.idle_annotations import annotated_idle
from tb_perfadvisor.signals.host.preempted_calls import preempted_calls
from tb_perfadvisor.signals.ranks.stragglers import Excess
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration

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

    Args:
        signals: The late rank.
        excess: Where it spends more time than the others.
    """
    idle = signals.attribution.of(*(e.cause for e in excess if e.cause in _HOST_LAUNCHES_LATE))
    named = [(name, ns) for name, ns in annotated_idle(signals).by_name(idle) if name >= 0]
    if not named or named[0][1] < _MOSTLY * total_ns(idle):
        return ""
    return _OPTIMIZER.sub("", signals.trace.text(named[0][0]))


_OPTIMIZER = re.compile(r"^Optimizer\.step#")
"""How PyTorch's profiler marks `NorMuon.step`."""


def _is_preempted(excess: Sequence[Excess], preempted_ns: float) -> bool:
    """Whether most of the extra time passes while host calls have lost their core.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    return 2 * preempted_ns >= sum(item.own_ns - item.others_ns for item in excess) > 0


def reason_of(signals: Signals, late: int, excess: Sequence[Excess], preempted_ns: float) -> str:
    """Why a rank is late, in words: "because of …" what takes most of the extra time.

    Args:
        signals: The reference rank.
        late: The late worker. If it is the reference rank, the part of the program is named.
        excess: Where it spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    if _is_preempted(excess, preempted_ns):
        return (
            "because the operating system took the core from the launching thread (host-preempted:"
            f" {format_duration(preempted_ns)} more idle time per step)"
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

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
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

    Args:
        signals: The worker's facts.
        late: Their workers, the worst first.
        most: How many to name.
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
