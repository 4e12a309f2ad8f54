"""Tables of tf.data pipelines, and the kinds of their iterators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.finding import Column, Evidence, Table, costliest
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.core_sharing import FEWEST_CORES
from tb_perfadvisor.signals.input.tfdata import Pipelines, kind_of, python_functions, tfdata
from tb_perfadvisor.trace.intervals import Intervals, join, overlap_ns

MINIMUM_SHARE = Limit(
    0.03, "share", "Steps that wait for input vary by a few percent on their own."
)
"""The share of the step that a problem in a pipeline must cost to be reported."""

REPEATS = frozenset({"Repeat", "ForeverRepeat", "FiniteRepeat"})
SHUFFLES = frozenset({"Shuffle", "ShuffleAndRepeat"})
PARALLEL_MAPS = frozenset({"ParallelMap", "MapAndBatch"})
MAPS = PARALLEL_MAPS | {"Map"}
BATCHES = frozenset({"Batch", "PaddedBatch", "ParallelBatch"})

_TINY_RUN_NS = 500_000
"""Below half a millisecond, what calling a function for each element costs is a large part."""
_MANY_CALLS = 8
"""Calls per batch from which on a batch at a time pays."""


def stalls_of(pipelines: Pipelines, nodes: Sequence[int]) -> Intervals:
    """When the step waits for any of these iterators."""
    return join(*(pipelines.stall[node] for node in nodes))


def available_cores(pipelines: Pipelines) -> int:
    """The cores that tf.data may use; the fewest of any machine if it does not say."""
    return max(pipelines.cores or 0, FEWEST_CORES)


def iterator_evidence(
    signals: Signals, nodes: Sequence[int], claims: Intervals
) -> tuple[Evidence, ...]:
    """What the iterators cost, and the calls that the step waits for longest.

    `nodes` are the iterators that the finding is about, and its saving is taken from `claims`.
    """
    pipelines, events = tfdata(signals), signals.trace.events
    rows = pipelines.call_rows[max(nodes, key=pipelines.stall_ns)]
    waited = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
    calls = costliest(
        "Calls that the step waits for longest",
        signals.worker,
        rows[waited > 0],
        waited[waited > 0],
    )
    return (iterator_table(signals), calls) if (waited > 0).any() else (iterator_table(signals),)


def iterator_table(signals: Signals) -> Table:
    """The iterators of all pipelines, from the last transformation to the source."""
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
        "Iterators, from the last transformation to the source",
        (
            Column("name", "Iterator"),
            Column("count", "Calls", "count"),
            Column("stall_ns", "Waiting for it, per step", "ns"),
            Column("self_ns", "Own time, per step", "ns"),
            Column("function_ns", "Its function, per step", "ns"),
            Column("parallelism", "Parallel calls", "count"),
        ),
        tuple(rows),
    )


def changes_of_parallel_map(signals: Signals) -> tuple[str, ...]:
    """What helps a pipeline that maps in parallel and prefetches, and is too slow all the same.

    To overlap it with the step is done already. Empty for other pipelines.
    """
    pipelines = tfdata(signals)
    if not len(pipelines) or not pipelines.function_ns.any():
        return ()
    node = int(np.argmax(pipelines.function_ns))
    above = {pipelines.kind[parent] for parent in pipelines.above(node)}
    if pipelines.kind[node] not in PARALLEL_MAPS or "Prefetch" not in above:
        return ()
    python_ns = int(signals.trace.events.duration_ns[python_functions(signals)].sum())
    is_python = 2 * python_ns > int(pipelines.function_ns.sum())
    return changes_of_stage(signals, node, is_python=is_python)


def missing_overlap(signals: Signals) -> tuple[str, ...]:
    """What lets input and step overlap, as far as the recorded stages lack it."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    kinds = {*tfdata(signals).kind, *(kind_of(stage.name) for stage in stages)}
    if "ParallelMap" not in kinds:
        return ("overlapped-input",)
    return ("prepare-once", "data-service") if "Prefetch" in kinds else ("prefetch",)


def changes_of_stage(signals: Signals, node: int, *, is_python: bool) -> tuple[str, ...]:
    """The changes that help against a stage that computes most, the best first.

    If it `is_python`, it computes mostly in Python.
    """
    pipelines, steps = tfdata(signals), max(len(signals.steps), 1)
    above = {pipelines.kind[parent] for parent in pipelines.above(node)}
    below = {pipelines.kind[child] for child in pipelines.below(node)}
    calls = int(pipelines.function_count[node])
    mean_ns = int(pipelines.function_ns[node]) / max(calls, 1)
    is_per_element = (
        pipelines.kind[node] in MAPS
        and (pipelines.kind[node] == "MapAndBatch" or not BATCHES.isdisjoint(above))
        and calls >= _MANY_CALLS * steps
    )
    is_cached = any("Cache" in kind for kind in above | below)
    repeats = not REPEATS.isdisjoint(above)
    changes: list[str] = []
    if is_python:
        changes += ("tensorflow-input", "parallel-python-input")
    if is_per_element and mean_ns < _TINY_RUN_NS:
        changes.append("vectorized-map")
    if not is_cached and (repeats or not changes):
        changes.append("cached-records")
    return tuple(changes)
