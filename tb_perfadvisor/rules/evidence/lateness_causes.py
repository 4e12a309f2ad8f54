"""Why a rank is late, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.signals import Cause
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.ranks.stragglers import Excess
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


def is_preempted(excess: Sequence[Excess], preempted_ns: float) -> bool:
    """Whether most of the extra time passes while host calls have lost their core.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    return 2 * preempted_ns >= sum(item.own_ns - item.others_ns for item in excess) > 0


def reason_of(excess: Sequence[Excess], preempted_ns: float) -> str:
    """Why the rank is late, in words: "because of …" what takes most of the extra time.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    if is_preempted(excess, preempted_ns):
        return (
            "because the operating system took the core from the launching thread (host-preempted:"
            f" {format_duration(preempted_ns)} more idle time per step)"
        )
    first = excess[0]
    more = format_duration(first.own_ns - first.others_ns)
    name = _REASONS.get(first.cause) or first.cause.label.lower()
    reason = f"because of {name} ({more} more per step)"
    if first.work is None:
        return reason
    return f"{reason}: it has {first.work:.1f} times the work of the others"


def changes_for(excess: Sequence[Excess], preempted_ns: float) -> tuple[str, ...]:
    """Changes against what makes the rank late, the most specific first.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    if is_preempted(excess, preempted_ns):
        return OWN_CORES
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return ("even-input", "same-work")
    if excess and excess[0].work is not None:
        return ("even-work", "same-work")
    if first in COMPUTE:
        return ("device-clocks", "even-work", "same-work")
    return ("same-work",)
