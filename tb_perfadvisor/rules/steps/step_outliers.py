"""A few steps take much longer than the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import step_time_series
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Saving, Span, Table
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.steps.step_variation import (
    OF_THE_HOST,
    StepVariation,
    dominant_event,
    in_steps,
    step_variation,
)
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration


class StepOutliers(Rule):
    """A few steps take much longer than the others.

    What it finds
    -------------
    Steps that take 50 % longer than the median and lie outside the normal variation of the steps,
    and the part of the step that grew. Steps at a fixed distance are reported by periodic-spikes,
    a slow first step by warm-up-in-profile.

    Why it matters
    --------------
    A job with many ranks waits for the slowest rank in every step: what is rare on one rank is
    common among hundreds.

    How it is measured
    ------------------
    By the modified z-score: 3.5 median absolute deviations of the step times. High is by how
    much the part that grew exceeds the median step, spread over the recorded steps. Low is 0,
    because it may never happen again. A few steps do not tell how often it will, so expected is
    half. If computing, queued time or communication grew, there is no
    saving: it may be more work. If gaps between steps grew, step-gap reports them.

    When to ignore
    --------------
    When the step differs on purpose: evaluation, a checkpoint, a longer sequence.

    How to verify
    -------------
    In a longer profile, the slowest step is close to the median.

    References:
    ----------
    Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993); Dean and Barroso, "The Tail
    at Scale" (2013).
    """

    id = "step-outliers"
    title = "Look into the slow steps"
    category = "steps"
    needs = (Need.WORK, Need.STEPS, Need.SEVERAL_STEPS)
    is_preview = False

    greatest_share = Limit(
        0.2, "share", "If more than every fifth step is slow, slow steps are normal."
    )
    greatest_gap_share = Limit(
        0.02, "share", "Gaps between steps that take more than this have a finding of their own."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a few steps stand out."""
        variation = step_variation(signals)
        outliers = variation.outliers
        count = len(variation.duration_ns)
        if len(outliers) == 0 or len(outliers) > self.greatest_share * count:
            return
        part, excess = variation.grown(outliers)
        if part == "Operators on the host":
            return  # the machine was busy with other work
        gaps_ns = signals.attribution.total_ns(Cause.BETWEEN_STEPS)
        has_gaps = share_of_window(gaps_ns, signals) > self.greatest_gap_share
        if part == Cause.BETWEEN_STEPS.label and has_gaps:
            return
        claims = in_steps(signals, part, outliers)
        excess_ns = min(int(excess.sum()), total_ns(claims))
        median_ns = float(np.median(variation.duration_ns))
        slowest = int(outliers[variation.duration_ns[outliers].argmax()])
        number, slowest_ns = int(signals.steps.number[slowest]), int(variation.duration_ns[slowest])
        is_lost = part in OF_THE_HOST
        name = dominant_event(signals, claims, excess_ns)[0] if is_lost else ""
        yield Finding(
            instance=(
                f"step {number} takes {format_duration(slowest_ns)},"
                f" the median {format_duration(median_ns)}"
            ),
            summary=(
                f"{len(outliers)} of {count} steps {'is' if len(outliers) == 1 else 'are'} much"
                f" slower than the others: step {number} takes"
                f" {format_duration(slowest_ns)}, the median is"
                f" {format_duration(median_ns)}. Most of the additional time is {part.lower()}"
                f"{f', in {name}' if name else ''}."
            ),
            saving=(
                Saving(
                    0,
                    excess_ns // 2,
                    excess_ns,
                    claims,
                    "heuristic" if len(outliers) == 1 else "measured",
                )
                if is_lost
                else None
            ),
            severity=None if is_lost else "low",
            evidence=_evidence(signals, variation, slowest),
            remedies=advise("record-stacks", "compare-steps"),
        )


def _evidence(signals: Signals, variation: StepVariation, slowest: int) -> tuple[Evidence, ...]:
    steps = signals.steps
    is_normal = np.ones(len(variation.duration_ns), dtype=bool)
    is_normal[variation.outliers] = False
    grown = sorted(
        variation.parts.items(),
        key=lambda part: int(np.median(part[1][is_normal])) - int(part[1][slowest]),
    )
    rows = [
        (part, int(np.median(values[is_normal])), int(values[slowest]))
        for part, values in grown
        if values[slowest] or np.median(values[is_normal])
    ]
    return (
        step_time_series(signals),
        Table(
            "Slowest step vs. the median of the other steps",
            (
                Column("part", "Part"),
                Column("median_ns", "Median", "ns"),
                Column("slowest_ns", f"Step {int(steps.number[slowest])}", "ns"),
            ),
            tuple(rows),
        ),
        Span(
            "Slowest step",
            signals.worker,
            int(steps.start_ns[slowest]),
            int(steps.end_ns[slowest]),
            "",
            f"step {int(steps.number[slowest])}",
        ),
    )
