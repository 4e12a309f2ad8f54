"""The ranks view: where the time of each rank goes, and which ranks wait for which."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals import Cause, Signals, ranks_of
from tb_perfadvisor.signals.ranks.parallel_dimensions import (
    Cost,
    ParallelDimension,
    parallel_dimensions,
)
from tb_perfadvisor.signals.ranks.ranks import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import lateness, waiting_for, waits_by_step
from tb_perfadvisor.trace.tables import Int64

MAX_PAIRS = 65_536
"""Cells of each map of waits. Columns of pairs are the ranks that others wait for most."""


class RanksView(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks in the order of the report's `workers`; unknown values are null."""

    causes: list[str]
    total_ns: list[list[int]]
    """`total_ns[cause][worker]`: mean per used step."""
    step_ns: list[int]
    """Per worker: the mean step time."""
    clock_skew_ns: list[int] | None
    """Per worker: how far its wall clock is ahead of the median rank's."""
    collectives: int
    """How many collectives in used steps were matched over all ranks of their group."""
    times_late: list[int] | None
    """Per worker: in how many of these collectives it was late."""
    late_ns: list[int] | None
    """Per worker, per step: how long the median rank waited for it, without compute."""
    waiting_ns: list[int] | None
    """Per worker, per step: how long it waited itself."""
    late: list[int]
    """Workers that are late more than by chance."""
    waited_for: list[int]
    """The workers that others wait for, the most waited for first: the columns of `pairs_ns`."""
    pairs_ns: list[list[int]]
    """`pairs_ns[column][worker]`: how long a worker waits for the column's worker, per step."""
    step_index: list[int]
    step_waiting_ns: list[list[int | None]] | None
    """`step_waiting_ns[step][worker]`: how long a worker waits in a step of `step_index`; null for
    one without collectives in it. Null if there are too many."""
    critical: list[int]
    """Per step of `step_index`: the worker that waits least."""


def make_ranks_view(signals: Signals) -> RanksView | None:
    """The ranks view; None for a single rank."""
    ranks = ranks_of(signals)
    if len(ranks) < 2:
        return None
    steps = np.array([summary.step_count for summary in ranks.summaries])
    totals = np.stack([summary.cause_total_ns for summary in ranks.summaries], axis=1)
    used = np.flatnonzero(totals.sum(axis=1))
    found = lateness(signals)

    def per_step(values: Int64) -> list[int]:
        mean: list[int] = np.rint(values / signals.steps.count).astype(np.int64).tolist()
        return mean

    pairs = waiting_for(ranks, MAX_PAIRS // len(ranks)) if found is not None else None
    by_step = waits_by_step(ranks)
    has_map = by_step.waiting_ns.size <= MAX_PAIRS
    return RanksView(
        causes=[CAUSES[index].value for index in used.tolist()],
        total_ns=np.rint(totals[used] / steps).astype(np.int64).tolist(),
        step_ns=[round(summary.window_ns / summary.step_count) for summary in ranks.summaries],
        clock_skew_ns=ranks.clocks.skew_ns.tolist() if ranks.clocks.skew_is_known else None,
        collectives=found.collectives if found is not None else 0,
        times_late=found.times_late.tolist() if found is not None else None,
        late_ns=per_step(found.late_ns) if found is not None else None,
        waiting_ns=per_step(found.waiting_ns) if found is not None else None,
        late=list(found.late) if found is not None else [],
        waited_for=[worker for worker, _ in pairs] if pairs is not None else [],
        pairs_ns=[per_step(column) for _, column in pairs] if pairs is not None else [],
        step_index=by_step.number.tolist(),
        step_waiting_ns=[
            [None if waited_ns < 0 else waited_ns for waited_ns in of_step]
            for of_step in by_step.waiting_ns.tolist()
        ]
        if has_map
        else None,
        critical=by_step.critical.tolist(),
    )


MAX_DIMENSIONS = 32
"""Groups of unknown purpose have a row each."""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str | None
    description: str | None
    """What the program calls it, such as `mesh_tp`, or the axes of the mesh that it spans."""
    ranks: str | None
    """As the file lists them."""
    size: int | None


class CommunicationCost(msgspec.Struct, frozen=True, kw_only=True):
    """What some collectives cost; times are totals over the used steps."""

    operation: str | None
    """None for all operations of a dimension."""
    count: int
    time_ns: int
    """Time in which any of them runs."""
    exposed_ns: int
    """The part of it that no compute covers."""
    hidden_ns: int
    bytes_per_step: int | None
    """Of whole steps."""
    algorithm_bytes_per_s: float | None
    """Size of the buffers divided by time."""
    bus_bytes_per_s: float | None
    """Bytes on the wire divided by time, as in nccl-tests."""


class DimensionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One parallel dimension, or one process group whose purpose is unknown."""

    dimension: str
    """data, sharded, tensor, context, pipeline, expert, embedding or unknown."""
    evidence: str | None
    """What most of its collectives are recognized by."""
    groups: list[GroupInfo]
    groups_truncated: int
    cost: CommunicationCost
    operations: list[CommunicationCost]
    """The most exposed first."""
    is_transfer_known: bool
    """If not, times include waiting for other ranks, and bandwidths are lower limits."""
    link_bytes_per_s: float | None
    rank_exposed_ns: list[int | None] | None
    """By worker: exposed time per step; None for a single worker."""
    rank_waiting_ns: list[int] | None
    """By worker: time per step that it waits for the others without computing."""
    rank_sent_bytes: list[int] | None
    """By worker: bytes per step that it puts into the collectives."""


class ParallelismView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the collectives of the reference worker go, by parallel dimension."""

    exposed_ns: int
    """Total over the used steps. Where collectives of two dimensions overlap, both count."""
    dimensions: list[DimensionInfo]
    """The most exposed first."""
    truncated: int
    elsewhere_ns: int
    """The exposed time that is in no dimension: of collectives that no used step launched."""


def make_parallelism_view(signals: Signals) -> ParallelismView | None:
    """The parallelism view; None if no collective ran in the used steps."""
    found = parallel_dimensions(signals)
    if not found:
        return None
    exposed_ns = signals.attribution.total_ns(Cause.COMMUNICATION)
    return ParallelismView(
        exposed_ns=exposed_ns,
        dimensions=[_dimension(entry, signals.steps.count) for entry in found[:MAX_DIMENSIONS]],
        truncated=max(len(found) - MAX_DIMENSIONS, 0),
        elsewhere_ns=max(exposed_ns - sum(entry.cost.exposed_ns for entry in found), 0),
    )


def _dimension(found: ParallelDimension, steps: int) -> DimensionInfo:
    workers = found.workers
    waiting = workers.waiting_ns if workers is not None else None
    sent = workers.sent_bytes if workers is not None else None
    return DimensionInfo(
        dimension=found.dimension.value,
        evidence=found.evidence or None,
        groups=[
            GroupInfo(
                name=group.name or None,
                description=group.description or None,
                ranks=group.ranks or None,
                size=group.size,
            )
            for group in found.groups
        ],
        groups_truncated=found.groups_left_out,
        cost=_cost(found.cost, None),
        operations=[_cost(entry.cost, entry.operation) for entry in found.operations],
        is_transfer_known=found.is_transfer_known,
        link_bytes_per_s=found.link_bytes_per_s,
        rank_exposed_ns=None
        if workers is None
        else [None if ns < 0 else ns // steps for ns in workers.exposed_ns.tolist()],
        rank_waiting_ns=None if waiting is None else (waiting // steps).tolist(),
        rank_sent_bytes=None if sent is None else (sent // steps).tolist(),
    )


def _cost(cost: Cost, operation: str | None) -> CommunicationCost:
    return CommunicationCost(
        operation=operation,
        count=cost.count,
        time_ns=cost.time_ns,
        exposed_ns=cost.exposed_ns,
        hidden_ns=cost.hidden_ns,
        bytes_per_step=cost.bytes_per_step,
        algorithm_bytes_per_s=cost.algorithm_bytes_per_s,
        bus_bytes_per_s=cost.bus_bytes_per_s,
    )
