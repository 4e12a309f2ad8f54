"""Changes that record a better profile, in the words of the hints on recording."""

from __future__ import annotations

from types import MappingProxyType

from tb_perfadvisor.advice.remedy import Remedy
from tb_perfadvisor.signals.recording.hints import STACKS
from tb_perfadvisor.signals.recording.profiled_steps import SKIP_WARM_UP
from tb_perfadvisor.signals.workload.fit import Hint


def _remedies(change: str, before: str, hints: tuple[Hint, ...]) -> tuple[Remedy, ...]:
    """PyTorch's hints as remedies, each after the same words."""
    return tuple(
        Remedy(
            text=f"{before}{hint.text}",
            framework="pytorch",
            needs=hint.needs,
            unless=hint.unless,
            change=change,
            reference="https://docs.pytorch.org/docs/stable/profiler.html",
        )
        for hint in hints
        if hint.framework in ("pytorch", "")
    )


RECORDING = MappingProxyType(
    {
        "record-stacks": _remedies(
            "record-stacks",
            "Compare the slowest step with a median one in the trace viewer. If the host's activity"
            " is missing there, record Python stacks. ",
            STACKS,
        ),
        "record-later": _remedies("record-later", "", SKIP_WARM_UP),
    }
)
"""The remedies of each change."""
