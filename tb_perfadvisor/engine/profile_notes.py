"""Notes on the profile itself: what it lacks, and how to record a better one."""

from __future__ import annotations

from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.needs import remedy_for
from tb_perfadvisor.trace import Note

FEW_STEPS = 3
"""Below three steps one slow step decides the mean."""
# What readers call a device of which they know the kind at most.
_UNNAMED = frozenset({"", "GPU", "TPU"})

_CUPTI = (
    "Three usual causes: the profiling library (CUPTI, roctracer) is not found; profiling is "
    "restricted to administrators (NVreg_RestrictProfilingToAdminUsers=0 lifts it); another "
    "profiler is attached. In PyTorch, also pass ProfilerActivity.CUDA."
)


def profile_notes(signals: Signals) -> tuple[Note, ...]:
    """Notes on one worker's profile, its reader's own first."""
    trace, steps = signals.trace, signals.steps
    notes = list(trace.notes)
    framework = trace.source.framework
    if len(steps) == 0:
        notes.append(
            Note(
                "no-steps",
                "warning",
                "The profile marks no steps and none can be inferred: the whole of it is "
                "analysed as one, and no figure is per step.",
                remedy_for(Need.STEPS, framework),
            )
        )
    elif len(steps) < FEW_STEPS:
        count = "One step is" if len(steps) == 1 else f"{len(steps)} steps are"
        notes.append(
            Note(
                "few-steps",
                "info",
                f"{count} used: too few to tell the usual from the chance.",
                "Record five steps or more after warm-up.",
            )
        )
    if len(steps) and steps.is_inferred:
        notes.append(
            Note(
                "inferred-steps",
                "info",
                f"The profile marks no steps; they are inferred from {steps.source}.",
                remedy_for(Need.STEPS, framework),
            )
        )
    if signals.device.is_missing:
        notes.append(
            Note(
                "no-device-events",
                "error",
                "The profile names a device but has no events of it: the program did not use it, "
                "or they were not recorded. Nothing can be said of the device's time.",
                _CUPTI,
            )
        )
    facts = signals.device_facts
    if facts is not None and facts.peaks is None and facts.name in _UNNAMED:
        notes.append(
            Note(
                "unknown-device",
                "info",
                "The profile does not say what the device is: nothing is claimed from its peaks.",
            )
        )
    elif facts is not None and facts.peaks is None:
        notes.append(
            Note(
                "unknown-device",
                "info",
                f"The device {facts.name!r} is not in the hardware table: nothing is claimed from "
                "peaks.",
                "Tell the maintainers its name, with its data sheet.",
            )
        )
    return tuple(notes)
