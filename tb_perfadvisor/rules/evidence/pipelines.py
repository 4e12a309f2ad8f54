"""What several rules show and ask of tf.data pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.evidence.evidence import Column, Evidence, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.trace.intervals import Intervals, join, overlap_ns, total_ns

MINIMUM_SHARE = Limit(
    0.03, "share", "Less would not show beside the noise of a step that waits for input."
)
"""The share of the step that a pipeline's fault must cost."""

REPEATS = frozenset({"Repeat", "ForeverRepeat", "FiniteRepeat"})
SHUFFLES = frozenset({"Shuffle", "ShuffleAndRepeat"})
MAPS = frozenset({"Map", "ParallelMap", "MapAndBatch"})
BATCHES = frozenset({"Batch", "PaddedBatch", "ParallelBatch"})


def stalls_of(pipelines: Pipelines, nodes: Sequence[int]) -> Intervals:
    """When the step waits for any of some iterators."""
    return join(*(pipelines.stall[node] for node in nodes))


def cores_of(pipelines: Pipelines) -> int:
    """The cores that tf.data may use; two, which every machine has, where it does not tell."""
    return max(pipelines.cores or 0, 2)


def waits(signals: Signals, nodes: Sequence[int], claims: Intervals) -> tuple[Evidence, ...]:
    """What iterators cost, and their calls that are waited for longest.

    Args:
        signals: Of the worker.
        nodes: The iterators that a finding is about.
        claims: The time that it claims.
    """
    pipelines, events = tfdata(signals), signals.trace.events
    rows = pipelines.call_rows[max(nodes, key=pipelines.stall_ns)]
    waited = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
    calls = costliest(
        "The calls that are waited for longest",
        signals.worker,
        rows[waited > 0],
        waited[waited > 0],
    )
    return (chain(signals), calls) if (waited > 0).any() else (chain(signals),)


def chain(signals: Signals) -> Table:
    """The iterators of all pipelines, from their ends to their sources."""
    pipelines, count = tfdata(signals), signals.steps.count
    rows = []
    for node in range(len(pipelines)):
        parallelism = int(pipelines.parallelism[node])
        rows.append(
            (
                pipelines.path[node],
                int(pipelines.count[node]),
                pipelines.stall_ns(node) // count,
                int(pipelines.self_ns[node]) // count,
                int(pipelines.function_ns[node]) // count or None,
                parallelism if parallelism >= 0 else None,
            )
        )
    return Table(
        "Iterators, from the pipeline's end to its source",
        (
            Column("name", "Iterator"),
            Column("count", "Calls", "count"),
            Column("stall_ns", "Waited for, per step", "ns"),
            Column("self_ns", "Own time, per step", "ns"),
            Column("function_ns", "Its function, per step", "ns"),
            Column("parallelism", "At a time", "count"),
        ),
        tuple(rows),
    )


def overlap_only_ns(signals: Signals, claims: Intervals) -> int:
    """What waiting would be hidden if it ran beside the rest of each step."""
    steps, window = signals.steps, signals.attribution
    if not len(steps):
        waited = total_ns(claims)
        return min(waited, window.window_ns - waited)
    per_step = overlap_ns(claims, steps.start_ns, steps.end_ns)
    rest = steps.duration_ns - per_step
    return int(per_step.clip(max=rest).sum())
