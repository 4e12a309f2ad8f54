"""A tf.data map runs too few calls at a time."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MAPS,
    MINIMUM_SHARE,
    available_cores,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.core_sharing import overlap_limit
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.trace.intervals import clip, total_ns


class TfdataSequentialMap(Rule):
    """A tf.data map runs one call after the other while the step waits for it.

    What it finds
    -------------
    `Map`, or a fused map and batch, that runs one call at a time, or a fixed number of calls that
    is at most half the number of cores.

    Why it matters
    --------------
    Elements are independent of each other. One thread decodes at the speed of one core while the
    other cores are idle.

    How it is measured
    ------------------
    High is the time that the step waits for this iterator. Expected is what is saved when the
    calls spread over the cores that tf.data may use: the time in which the function runs, minus
    the part that remains on that many cores. Low is half of what a pipeline of twice the rate
    would save, because the cores may be busy. Maps inside a parallel interleave already run in
    parallel.

    In a program on the CPU, the step needs the cores as well. More calls at a time save no more
    than the time that cores idle, divided by their number. If it is unknown, expected is that of
    two cores, and high has no such limit. An operator is recorded on one thread, but three quarters
    of the time of the step's operators count as time on all cores.

    When to ignore
    --------------
    When the function computes in Python: its calls take turns (see python-fed-input).

    How to verify
    -------------
    The iterator is called `ParallelMap`, or its parallelism is above one, and the wait falls.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on parallelizing data
    transformation.
    """

    id = "tfdata-sequential-map"
    title = "Run the map's calls in parallel"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    few_calls_share = Limit(
        0.5, "share", "The step itself may need the cores if more than half are in use."
    )

    minimum_run_ns = Limit(
        30_000, "ns", "Passing a shorter call to another thread takes as long as running it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each map that runs few calls at a time."""
        pipelines = tfdata(signals)
        cores = available_cores(pipelines)
        for node in range(len(pipelines)):
            calls = _parallel_calls(pipelines, node)
            has_few = calls == 1 or (calls > 1 and calls <= self.few_calls_share * cores)
            if not has_few:
                continue
            mean_ns = pipelines.function_ns[node] / pipelines.function_count[node]
            if mean_ns < self.minimum_run_ns:
                continue
            claims = stalls_of(pipelines, (node,))
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            saved_ns = min(stall_ns, round(_work_ns(signals, node) * (1 - calls / cores)))
            most_ns = stall_ns
            if (limit := overlap_limit(signals)) is not None:
                most_ns, saved_ns = min(most_ns, limit.high_ns), min(saved_ns, limit.expected_ns)
            if self.is_minor(saved_ns, signals):
                continue
            call_count = "one call" if calls == 1 else f"{calls} calls"
            yield Finding(
                instance=f"{pipelines.kind[node]} runs {call_count} at a time",
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for {pipelines.kind[node]},"
                    f" which runs {call_count} of its function at a time on {cores} cores."
                ),
                saving=Saving(
                    min(
                        saving_of_doubled_input_rate_ns(stall_ns, signals.attribution.window_ns),
                        saved_ns,
                    ),
                    saved_ns,
                    max(most_ns, saved_ns),
                    claims,
                    "modeled",
                ),
                evidence=iterator_evidence(signals, (node,), claims),
                remedies=advise("parallel-map", "larger-thread-pool"),
            )


def _parallel_calls(pipelines: Pipelines, node: int) -> int:
    """How many calls of a map's function run at a time; 0 for no map, or where it adapts."""
    kind, parallelism = pipelines.kind[node], int(pipelines.parallelism[node])
    if kind not in MAPS or not pipelines.function_count[node]:
        return 0
    if any(pipelines.kind[above] == "ParallelInterleave" for above in pipelines.above(node)):
        return 0
    if kind == "Map":
        return 1
    return 0 if pipelines.is_autotuned[node] == 1 else max(parallelism, 0)


def _work_ns(signals: Signals, node: int) -> int:
    """How long any call of the function runs during the used steps."""
    window = signals.attribution
    work = tfdata(signals).work[node]
    return total_ns(clip(work, window.window_start_ns, window.window_end_ns))
