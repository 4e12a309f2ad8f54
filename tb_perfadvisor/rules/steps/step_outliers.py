"""Single steps that take far longer than the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import step_time_series
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Remedy, Saving, Span, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.step_variation import (
    OF_THE_HOST,
    StepVariation,
    dominant_event,
    in_steps,
    step_variation,
)
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration

_REMEDIES = (
    Remedy(
        text="Open the longest of these steps in the trace viewer beside a median one, at the "
        "cause named here, and record with Python stacks if the host's part is not recorded.",
        snippet=(
            "with torch.profiler.profile(with_stack=True, record_shapes=True,\n"
            "                            schedule=torch.profiler.schedule(wait=10, warmup=5,\n"
            "                                                             active=20)) as prof:\n"
            "    for batch in loader:\n"
            "        train_step(batch)\n"
            "        prof.step()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/profiler.html",
    ),
    Remedy(
        text="Open the longest of these steps in the trace viewer beside a median one, at the "
        "cause named here, and record with the Python tracer if the host's part is not recorded.",
        snippet=(
            "options = tf.profiler.experimental.ProfilerOptions(\n"
            "    host_tracer_level=3, python_tracer_level=1)\n"
            "tf.profiler.experimental.start(logdir, options=options)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/profiler",
    ),
    Remedy(
        text="Open the longest of these steps in the trace viewer beside a median one, at the "
        "cause named here.",
        snippet="with jax.profiler.trace(logdir):\n    run_steps(20)",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/profiling.html",
    ),
)


class StepOutliers(Rule):
    """A few steps take far longer than the rest.

    What it finds
    -------------
    Steps that are both half as long again as the median and beyond what steps vary by, with the
    cause that grew in them; steps at a steady distance and a slow first one are other rules'.

    Why it matters
    --------------
    A job of many ranks waits for the slowest of them in every step: what is rare on one is
    common among hundreds.

    How it is measured
    ------------------
    By the modified z-score, three and a half median absolute deviations of the step times.
    Expected is what the cause that grew takes more than in the median step, which the steps
    recorded share; low is 0, as the profile may have caught what never happens again. What grew
    in computing, queued or communicating is shown without a saving: it may be more work.

    When to ignore
    --------------
    When the step differs by intent: evaluation, a checkpoint, a longer sequence.

    How to verify
    -------------
    In a longer profile the slowest step is near the median.

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
        0.2, "share", "What one step in five does is no exception: it is how the steps are."
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
            return  # the machine was busy with something else
        claims = in_steps(signals, part, outliers)
        expected_ns = min(int(excess.sum()), total_ns(claims))
        median_ns = float(np.median(variation.duration_ns))
        slowest = int(outliers[variation.duration_ns[outliers].argmax()])
        is_lost = part in OF_THE_HOST
        name = dominant_event(signals, claims, expected_ns)[0] if is_lost else ""
        yield Finding(
            summary=(
                f"{len(outliers)} of {count} steps {'stands' if len(outliers) == 1 else 'stand'}"
                f" out: step {int(signals.steps.number[slowest])} takes"
                f" {format_duration(int(variation.duration_ns[slowest]))}, the median"
                f" {format_duration(median_ns)}; what grew is {part.lower()}"
                f"{f', in {name}' if name else ''}."
            ),
            saving=(
                Saving(
                    0,
                    expected_ns,
                    expected_ns,
                    claims,
                    "heuristic" if len(outliers) == 1 else "measured",
                )
                if is_lost
                else None
            ),
            severity=None if is_lost else "low",
            evidence=_evidence(signals, variation, slowest),
            remedies=_REMEDIES,
        )


def _evidence(signals: Signals, variation: StepVariation, slowest: int) -> tuple[Evidence, ...]:
    steps = signals.steps
    others = np.ones(len(variation.duration_ns), dtype=bool)
    others[variation.outliers] = False
    grown = sorted(
        variation.parts.items(),
        key=lambda part: int(np.median(part[1][others])) - int(part[1][slowest]),
    )
    rows = [
        (part, int(np.median(values[others])), int(values[slowest]))
        for part, values in grown
        if values[slowest] or np.median(values[others])
    ]
    return (
        step_time_series(signals),
        Table(
            "The slowest step against the median of the others",
            (
                Column("part", "Part"),
                Column("median_ns", "Median", "ns"),
                Column("slowest_ns", f"Step {int(steps.number[slowest])}", "ns"),
            ),
            tuple(rows),
        ),
        Span(
            "The slowest step",
            signals.worker,
            int(steps.start_ns[slowest]),
            int(steps.end_ns[slowest]),
            "",
            f"step {int(steps.number[slowest])}",
        ),
    )
