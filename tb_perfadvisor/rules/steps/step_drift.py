"""Steps get longer over time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import step_time_series
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.step_variation import drift, in_steps, step_variation
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import NS_PER_S, format_duration, format_share


class StepDrift(Rule):
    """The steps take longer and longer.

    What it finds
    -------------
    A steady rise of the step time over the profile, and the part of the step that grows most.

    Why it matters
    --------------
    What grows within a profile of seconds keeps growing for days: lists that are never emptied,
    graphs that are kept, fragmented memory, a device that throttles.

    How it is measured
    ------------------
    The Theil-Sen slope of the step times, if the Mann-Kendall test finds a trend of at least three
    sigma, also for the number of steps that do not depend on their neighbors. On a machine that
    other programs used meanwhile, the severity is low. A rise that cannot have lasted since the
    first step, because steps would have taken less than no time then, is chance. Expected is what
    the growing part takes beyond its first step, over all recorded steps. Low is 0, because the
    rise may end. High assumes that every step is like the last.

    When to ignore
    --------------
    When batches grow on purpose, as in sequence-length warm-up.

    How to verify
    -------------
    In a profile with as many steps, the last ones take as long as the first.

    References:
    ----------
    Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau" (1968); Mann,
    "Nonparametric Tests Against Trend" (1945); Yue and Wang, "The Mann-Kendall Test Modified by
    Effective Sample Size to Detect Trend in Serially Correlated Hydrological Series" (2004).
    """

    id = "step-drift"
    title = "Find what grows from step to step"
    category = "steps"
    needs = (Need.WORK, Need.STEPS, Need.SEVERAL_STEPS)

    minimum_steps = Limit(10, "count", "Fewer steps often show a trend by chance.")
    minimum_growth = Limit(0.10, "share", "Batches and clocks make steps vary by several percent.")

    busy_machine = Limit(
        0.05, "share", "Other programs come and go, and steps that share a core with them vary."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step time rises."""
        variation = step_variation(signals)
        count = len(variation.duration_ns)
        if count < self.minimum_steps:
            return
        trend = drift(variation, signals)
        if trend is None or trend.growth_ns < self.minimum_growth * trend.first_ns:
            return
        if 2 * trend.part_growth_ns < trend.growth_ns:
            return  # several parts vary, but none explains the trend
        if trend.growth_ns * _windows_before(signals) > trend.first_ns:
            return
        claims = in_steps(signals, trend.part, np.arange(count))
        load = signals.trace.facts.load
        high_ns = min(trend.part_growth_ns * (count - 1), total_ns(claims))
        yield Finding(
            instance=f"{format_duration(trend.growth_ns)} over {count} steps",
            summary=(
                f"The step time rises by {format_duration(trend.growth_ns)}"
                f" ({format_share(trend.growth_ns / trend.first_ns)}) over {count} steps; most of"
                f" it is {trend.part.lower()}."
            ),
            saving=Saving(
                0, min(trend.part_growth_ns * count // 2, high_ns), high_ns, claims, "heuristic"
            ),
            evidence=(
                step_time_series(signals),
                Table(
                    "First and last third of the steps (mean)",
                    (
                        Column("part", "Part"),
                        Column("first_ns", "First third", "ns"),
                        Column("last_ns", "Last third", "ns"),
                    ),
                    tuple(
                        (
                            part,
                            int(values[: count // 3].mean()),
                            int(values[-(count // 3) :].mean()),
                        )
                        for part, values in variation.parts.items()
                        if values.any()
                    ),
                ),
            ),
            remedies=advise("keep-numbers", "watch-clocks"),
            severity="low" if load is not None and load.others >= self.busy_machine else None,
        )


def _windows_before(signals: Signals) -> float:
    """How many times as long as the recorded steps the loop ran before them; 0 if unknown."""
    lines = signals.trace.facts.lines
    return 0.0 if lines is None else lines.seconds * NS_PER_S / signals.attribution.window_ns
