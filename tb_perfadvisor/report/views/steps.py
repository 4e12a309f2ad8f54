"""Where each step's time goes."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.signals import Cause, Signals


class StepsView(msgspec.Struct, frozen=True, kw_only=True):
    """The breakdown of each used step: `total_ns[cause][step]`."""

    index: list[int]
    duration_ns: list[int]
    causes: list[str]
    total_ns: list[list[int]]


def make_steps_view(signals: Signals) -> StepsView:
    """The breakdown of each used step."""
    attribution, steps = signals.attribution, signals.steps
    causes = [cause for cause in Cause if len(attribution.intervals[cause])]
    return StepsView(
        index=steps.number.tolist(),
        duration_ns=steps.duration_ns.tolist(),
        causes=[cause.value for cause in causes],
        total_ns=[attribution.step_total_ns[cause].tolist() for cause in causes],
    )
