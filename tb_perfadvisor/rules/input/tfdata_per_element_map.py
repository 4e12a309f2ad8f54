"""A tf.data map whose calls cost more than the work that they do."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    BATCHES,
    MAPS,
    MINIMUM_SHARE,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.signals.input.tfdata_elements import element_bytes
from tb_perfadvisor.signals.input.tfdata_functions import file_reads, python_functions
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, total_ns, union
from tb_perfadvisor.units import format_duration


class TfdataPerElementMap(Rule):
    """A tf.data map calls a tiny function for each element, and the calls are the cost.

    What it finds
    -------------
    Maps before the batch whose function runs a few microseconds for each of many elements while
    the step waits for them. Functions that read files or call Python are left out, because
    batching does not help them, and so are large elements, for which copying is the cost.

    Why it matters
    --------------
    Starting a user function takes tens of microseconds, whatever it does. For a cast or a division
    that is ten times the work, and it is paid for each element instead of once per batch.

    How it is measured
    ------------------
    High is the time that the step waits for these maps. Expected leaves out the time in which the
    operators of their functions run, because a batch needs them as well. Recording costs about as
    much as the calls themselves, so low is half of expected.

    When to ignore
    --------------
    When elements differ in shape, or the function cannot work on a batch.

    How to verify
    -------------
    The map comes after `Batch` in the chain and has one call per batch.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on vectorizing mapping.
    """

    id = "tfdata-per-element-map"
    title = "Map whole batches instead of single elements"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    minimum_calls = Limit(64, "count", "Fewer calls per step cost too little to matter.")
    maximum_run_ns = Limit(30_000, "ns", "Starting the function costs less than a longer run.")
    maximum_bytes = Limit(
        16_384, "bytes", "Copying a larger element into its batch takes as long as the call."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits for such maps."""
        pipelines, calls = tfdata(signals), self.minimum_calls * signals.steps.count
        excluded = _reading_or_python(signals)
        nodes = []
        for node in range(len(pipelines)):
            count = int(pipelines.function_count[node])
            above = [pipelines.kind[parent] for parent in pipelines.above(node)]
            is_batched = pipelines.kind[node] == "MapAndBatch" or not BATCHES.isdisjoint(above)
            if (
                pipelines.kind[node] in MAPS
                and is_batched
                and count >= calls
                and pipelines.function_ns[node] <= count * self.maximum_run_ns
                and _element_bytes(pipelines, node) <= self.maximum_bytes
                and not len(intersect(pipelines.work[node], excluded))
            ):
                nodes.append(node)
        claims = stalls_of(pipelines, nodes)
        count = sum(int(pipelines.function_count[node]) for node in nodes)
        running = join(*(pipelines.work[node] for node in nodes))
        saved_ns = total_ns(claims) - total_ns(intersect(claims, running))
        if self.is_minor(saved_ns, signals):
            return
        mean_ns = sum(int(pipelines.function_ns[node]) for node in nodes) / count
        yield Finding(
            instance=count_per_step(count, "call", signals),
            summary=(
                f"Calling tiny functions makes the step wait {per_step(saved_ns, signals)}:"
                f" {count_per_step(count, 'call', signals)} that each run"
                f" {format_duration(mean_ns)}."
            ),
            saving=Saving(saved_ns // 2, saved_ns, total_ns(claims), claims, "modeled"),
            evidence=iterator_evidence(signals, nodes, claims),
            remedies=advise("vectorized-map"),
        )


def _element_bytes(pipelines: Pipelines, node: int) -> float:
    """The size of a mapped element; infinite where it is unknown."""
    batch = max(int(pipelines.batch_size[node]), 1)
    size = element_bytes(pipelines.shapes[node], pipelines.types[node], batch_size=batch)
    return inf if size is None else size / batch


def _reading_or_python(signals: Signals) -> Intervals:
    """When functions read files or run Python code."""
    events = signals.trace.events
    return join(
        *(
            union(events.start_ns[rows], events.end_ns[rows])
            for rows in (file_reads(signals), python_functions(signals))
        )
    )
