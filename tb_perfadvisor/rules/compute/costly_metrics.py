"""Metrics that take a good part of each training step."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.work.metric_operators import metric_operators
from tb_perfadvisor.trace.intervals import intersect, total_ns, union


class CostlyMetrics(Rule):
    """The metrics of a Keras model take a good part of each step on the CPU.

    What it finds
    -------------
    Operators that update the metrics given to `compile`, in programs that `perfadvisor run`
    recorded: it names them.

    Why it matters
    --------------
    Metrics teach the model nothing. Keras computes each in every step, for every threshold and for
    every output.

    How it is measured
    ------------------
    The time of these operators. Expected is 70 % of it, because a few metrics stay; low is 40 %,
    and high all of it.

    When to ignore
    --------------
    When every step's metrics are looked at, and time does not matter.

    How to verify
    -------------
    The operators are gone from the training step.

    References:
    ----------
    Keras documentation, "Training & evaluation with the built-in methods", and `keras.metrics.AUC`,
    whose evenly spaced thresholds are counted by buckets.
    """

    id = "costly-metrics"
    title = "Compute fewer metrics in each training step"
    category = "compute"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.CPU_PROGRAM)

    minimum_share = Limit(
        0.05, "share", "An accuracy and a mean loss take 1 to 3 % of short steps."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when metrics take a good part of the steps."""
        events, rows = signals.trace.events, metric_operators(signals)
        claims = intersect(
            signals.attribution.intervals[Cause.HOST_COMPUTE],
            union(events.start_ns[rows], events.end_ns[rows]),
        )
        spent_ns = total_ns(claims)
        if self.is_minor(spent_ns, signals):
            return
        duration_ns = events.duration_ns[rows]
        yield Finding(
            instance=count_per_step(len(rows), "operator", signals),
            summary=f"{per_step(spent_ns, signals)} goes into the model's metrics.",
            saving=Saving(int(0.4 * spent_ns), int(0.7 * spent_ns), spent_ns, claims, "measured"),
            evidence=(
                events_by_name(
                    "Operators of metrics",
                    "Operator",
                    signals.trace,
                    rows,
                    ((Column("duration_ns", "Time", "ns"), duration_ns),),
                ),
            ),
            remedies=advise("fewer-metrics"),
        )
