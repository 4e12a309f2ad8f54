"""Remedies that record a better profile, in the words of the hints on recording."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.signals.recording.hint import Hint
from tb_perfadvisor.signals.recording.hints import STACKS
from tb_perfadvisor.signals.recording.profiled_steps import SKIP_WARM_UP

_PROFILER = "https://docs.pytorch.org/docs/stable/profiler.html"


def _remedies(change: str, before: str, hints: tuple[Hint, ...]) -> tuple[Remedy, ...]:
    """PyTorch's hints as remedies, each after the same words."""
    return tuple(
        Remedy(
            text=f"{before}{hint.text}",
            framework="pytorch",
            needs=hint.needs,
            unless=hint.unless,
            change=change,
            reference=_PROFILER,
        )
        for hint in hints
        if hint.framework in ("pytorch", "")
    )


RECORD_STACKS = _remedies(
    "record-stacks",
    "Compare the slowest step with a median one in the trace viewer. If the host's activity is "
    "missing there, record Python stacks. ",
    STACKS,
)
"""See what the host does."""

RECORD_LATER = _remedies("record-later", "", SKIP_WARM_UP)
"""Leave the start of the program out of the profile."""
