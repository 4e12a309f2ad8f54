"""The steps view: where the time of each step goes, and which steps stand out."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.steps.step_variation import step_variation
from tb_perfadvisor.trace.intervals import Intervals

MAX_INTERVALS = 20
"""Per cause. Who looks at more of them uses the trace."""


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that takes much longer than the others, and the part that grew."""

    place: int
    """Index into the view's lists."""
    kind: Literal["outlier", "periodic", "warm-up"]
    part: str
    """The part that grew most over the median of the other steps: a cause's label, or Compute."""
    excess_ns: int
    """How much longer that part takes."""


class StepsView(msgspec.Struct, frozen=True, kw_only=True):
    """The breakdown of each used step: `total_ns[cause][step]`."""

    index: list[int]
    start_ns: list[int]
    duration_ns: list[int]
    causes: list[str]
    total_ns: list[list[int]]
    longest: list[list[tuple[int, int]]]
    """`longest[cause]`: start and end of its longest intervals in the used window, in order of
    time."""
    slow: list[SlowStep] = []


def make_steps_view(signals: Signals) -> StepsView:
    """The breakdown of each used step."""
    attribution, steps = signals.attribution, signals.steps
    causes = [cause for cause in Cause if len(attribution.intervals[cause])]
    return StepsView(
        index=steps.number.tolist(),
        start_ns=steps.start_ns.tolist(),
        duration_ns=steps.duration_ns.tolist(),
        causes=[cause.value for cause in causes],
        total_ns=[attribution.step_total_ns[cause].tolist() for cause in causes],
        longest=[_longest(attribution.intervals[cause]) for cause in causes],
        slow=_slow_steps(signals) if steps.count > 1 else [],
    )


def _longest(intervals: Intervals) -> list[tuple[int, int]]:
    longest_first = np.argsort(intervals[:, 0] - intervals[:, 1], kind="stable")
    rows = np.sort(longest_first[:MAX_INTERVALS])
    return [(start_ns, end_ns) for start_ns, end_ns in intervals[rows].tolist()]


def _slow_steps(signals: Signals) -> list[SlowStep]:
    variation = step_variation(signals)
    places: dict[Literal["outlier", "periodic", "warm-up"], list[int]] = {
        "warm-up": np.flatnonzero(variation.is_warm_up).tolist(),
        "periodic": [] if variation.spikes is None else variation.spikes.index.tolist(),
        "outlier": variation.outliers.tolist(),
    }
    slow = []
    for kind, members in places.items():
        for place in members:
            part, excess_ns = variation.grown(np.array([place]))
            slow.append(SlowStep(place=place, kind=kind, part=part, excess_ns=int(excess_ns[0])))
    return sorted(slow, key=lambda step: step.place)
