"""Steps that grow longer and longer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import step_time_series
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.step_variation import drift, in_steps, step_variation
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration, format_share

_REMEDIES = (
    Remedy(
        text="Where the host's part grows, look for what is kept from step to step: losses with "
        "their graphs, lists, logs.",
        snippet="total_loss += loss.detach()   # not loss: it keeps every step's graph",
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/faq.html",
    ),
    Remedy(
        text="Where the host's part grows, look for what is kept from step to step: lists of "
        "tensors, metrics that are never reset, new tf.functions.",
        snippet="metric.reset_state()   # after each report",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/function",
    ),
    Remedy(
        text="Where the host's part grows, look for what is kept from step to step, such as "
        "lists of device arrays.",
        snippet="losses.append(float(loss))   # every hundred steps: the number, not the array",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
    Remedy(
        text="Where the device's part grows at the same work, watch its clocks and temperature: "
        "it may throttle.",
        snippet="nvidia-smi --format=csv -l 1 \\\n"
        "    --query-gpu=clocks.sm,temperature.gpu,clocks_throttle_reasons.active",
        language="bash",
    ),
)


class StepDrift(Rule):
    """The steps take longer and longer.

    What it finds
    -------------
    A steady rise of the step time over the profile, with the cause that rises most.

    Why it matters
    --------------
    What grows within a profile of seconds goes on growing for days: lists that are never
    emptied, graphs that are kept, memory that fragments, a device that throttles.

    How it is measured
    ------------------
    Theil and Sen's slope of the step times, if Mann and Kendall's test tells it from chance by
    three sigma. Expected is what the rising cause takes beyond its first step, over the steps
    recorded; low is 0, since the rise may end; high takes every step to be like the last.

    When to ignore
    --------------
    When batches grow by intent, as in sequence-length warm-up.

    How to verify
    -------------
    In a profile of as many steps the last ones take as long as the first.

    References:
    ----------
    Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau" (1968); Mann,
    "Nonparametric Tests Against Trend" (1945).
    """

    id = "step-drift"
    title = "Find what grows from step to step"
    category = "steps"
    needs = (Need.WORK, Need.STEPS, Need.SEVERAL_STEPS)

    minimum_steps = Limit(10, "count", "Fewer steps show a trend by chance too often.")
    minimum_growth = Limit(
        0.10, "share", "Of the first step: batches and clocks vary by some percent."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the steps grow."""
        variation = step_variation(signals)
        count = len(variation.duration_ns)
        if count < self.minimum_steps:
            return
        trend = drift(variation, signals)
        if trend is None or trend.growth_ns < self.minimum_growth * trend.first_ns:
            return
        if 2 * trend.part_growth_ns < trend.growth_ns:
            return  # several things vary; none of them drifts
        claims = in_steps(signals, trend.part, np.arange(count))
        high_ns = min(trend.part_growth_ns * (count - 1), total_ns(claims))
        yield Finding(
            summary=(
                f"Over {count} steps the step time rises by {format_duration(trend.growth_ns)}"
                f" ({format_share(trend.growth_ns / trend.first_ns)}), most of it"
                f" {trend.part.lower()}."
            ),
            saving=Saving(
                0, min(trend.part_growth_ns * count // 2, high_ns), high_ns, claims, "heuristic"
            ),
            evidence=(
                step_time_series(signals),
                Table(
                    "First and last third of the steps (means)",
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
            remedies=_REMEDIES,
        )
