"""The dimensions of parallelism, what each costs, and what twice the devices would cost.

Every device keeps its work, and the data-parallel groups double, as do those of all ranks. A
collective takes a latency and its bytes ÷ the bandwidth; both grow in known ways. What is unknown
makes the range: the network between nodes, how much of the growth compute hides, and how long more
ranks wait for the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.collectives import KNOWN_SHARE, Mask
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_costs import (
    DEVICES_PER_NODE,
    LATENCY_NS,
    fit_of,
    is_within_a_node,
    link_of_group,
    quickest_ns,
    step_messages,
    wire_bytes,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.exposed_communication import free_compute_ns, has_role
from tb_perfadvisor.signals.ranks.ranks import Ranks, collectives_of, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import steps_of, uncovered_waits
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.transfers import async_pairs
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, places_by_value
from tb_perfadvisor.trace.intervals import intersect, shared_ns, total_ns
from tb_perfadvisor.trace.rank_summary import NO_STEP
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import NS_PER_S, format_rate


class Dimension(Enum):
    """A way in which a program divides its work among devices."""

    UNKNOWN = "unknown"
    DATA = "data"
    """Each rank has the whole model and a part of the batch."""
    SHARDED = "sharded"
    """As `DATA`, with parameters, gradients and optimizer state divided among the ranks."""
    TENSOR = "tensor"
    CONTEXT = "context"
    PIPELINE = "pipeline"
    EXPERT = "expert"
    EMBEDDING = "embedding"


DIMENSIONS: Final = tuple(Dimension)
_OF_ROLE: Final = {
    Role.UNKNOWN: Dimension.UNKNOWN,
    Role.GRADIENTS: Dimension.DATA,
    Role.BUFFERS: Dimension.DATA,
    Role.STATISTICS: Dimension.DATA,
    Role.SHARDS: Dimension.SHARDED,
    Role.TENSOR: Dimension.TENSOR,
    Role.CONTEXT: Dimension.CONTEXT,
    Role.PIPELINE: Dimension.PIPELINE,
    Role.EXPERTS: Dimension.EXPERT,
    Role.EMBEDDINGS: Dimension.EMBEDDING,
}
DIMENSION_OF_ROLE: Final = np.array(
    [DIMENSIONS.index(_OF_ROLE[role]) for role in Role], dtype=np.uint8
)
"""Index into `Dimension` by index into `Role`."""
# Names of mesh axes in MaxText (configs/base.yml), Flax's and JAX's documentation and T5X.
_OF_AXIS: Final = {
    **dict.fromkeys(("data", "batch", "dp", "replica", "replicas", "dp_replicate"), Dimension.DATA),
    **dict.fromkeys(("fsdp", "fsdp_transpose", "dp_shard"), Dimension.SHARDED),
    **dict.fromkeys(
        ("tensor", "tensor_transpose", "tensor_sequence", "model", "mdl", "tp", "mp"),
        Dimension.TENSOR,
    ),
    **dict.fromkeys(("context", "sequence", "seq", "cp", "sp"), Dimension.CONTEXT),
    **dict.fromkeys(("stage", "stages", "pipeline", "pipe", "pp"), Dimension.PIPELINE),
    **dict.fromkeys(("expert", "experts", "ep"), Dimension.EXPERT),
}


@memoized
def dimension_of_collectives(signals: Signals) -> NDArray[np.uint8]:
    """Index into `Dimension` of each row of the trace's table of collectives; shape (n,).

    What a collective is for decides. In XLA programs it is the name of the mesh axis, if the
    program has named axes. Sizes of groups prove nothing.
    """
    trace = signals.trace
    dimension = DIMENSION_OF_ROLE[collective_roles(signals).role]
    if trace.source.framework == "pytorch":
        return dimension
    axes = np.where(dimension == 0, trace.collectives.description, -1)
    for index, places in places_by_value(axes):
        if index >= 0:
            dimension[places] = DIMENSIONS.index(dimension_of_axes(trace.strings[index]))
    return dimension


def dimension_of_axes(names: str) -> Dimension:
    """The dimension of a group that spans some axes of a mesh; unknown where axes disagree.

    Names are joined by commas, such as `data,fsdp`.
    """
    found = {_OF_AXIS.get(name.strip().lower(), Dimension.UNKNOWN) for name in names.split(",")}
    if found == {Dimension.DATA, Dimension.SHARDED}:
        return Dimension.DATA  # the batch is divided along both
    return found.pop() if len(found) == 1 else Dimension.UNKNOWN


MAX_GROUPS = 8
"""Of a dimension. A rank is in one group of most dimensions."""
MAX_UNKNOWN = 64
"""Groups of unknown purpose with a row of their own: more than a page can show. A made-up file may
have a hundred thousand."""


class ProcessGroup(Struct, frozen=True):
    """The ranks that take part in a collective together."""

    name: str
    """Empty if the file has no name; likewise for the other texts."""
    description: str
    """What the program calls it, such as `mesh_tp`, or the axes of the mesh that it spans."""
    ranks: str
    """As the file lists them: `[0, 1]`."""
    size: int | None
    """None if unknown."""


class Cost(Struct, frozen=True):
    """What some collectives cost in the used window; times are totals over it."""

    count: int
    time_ns: int
    """Time in which any of them runs."""
    exposed_ns: int
    """The part of it that no compute covers."""
    hidden_ns: int
    """The rest; of asynchronous collectives on a TPU also the compute between start and done."""
    bytes_per_step: int | None
    """Of whole steps; None if unknown."""
    algorithm_bytes_per_s: float | None
    """Size of the buffers ÷ time; None where sizes are unknown."""
    bus_bytes_per_s: float | None
    """Bytes on the wire ÷ time, as nccl-tests defines it; None where they are unknown."""


class OperationCost(Struct, frozen=True):
    """The cost of one operation in a dimension."""

    operation: str
    cost: Cost


class WorkerCosts(Struct, frozen=True):
    """A dimension on every rank of the run; columns of shape (workers,), totals over the steps."""

    exposed_ns: Int64
    """Where collectives overlap, each counts; -1 if not all collectives were kept."""
    waiting_ns: Int64 | None
    """Waiting for other ranks that no compute covers; None if no collectives were matched."""
    sent_bytes: Int64 | None
    """What each rank puts into the matched collectives; None if any size is unknown."""


class ParallelDimension(Struct, frozen=True):
    """The collectives of one dimension, or of one group whose purpose is unknown."""

    dimension: Dimension
    evidence: str
    """What most are recognized by; empty if unknown."""
    groups: tuple[ProcessGroup, ...]
    """The busiest first."""
    groups_left_out: int
    cost: Cost
    operations: tuple[OperationCost, ...]
    """The most exposed first."""
    is_transfer_known: bool
    """Whether bandwidths are those of the transfer. If not, times include waiting for other ranks,
    and bandwidths are lower limits."""
    link_bytes_per_s: float | None
    """Bandwidth of the link; None if unknown."""
    workers: WorkerCosts | None
    """None with a single worker, and for collectives of unknown purpose."""


@memoized
def parallel_dimensions(signals: Signals) -> tuple[ParallelDimension, ...]:
    """The dimensions of the used window, the most exposed first.

    Where collectives of two dimensions overlap, both count that time.
    """
    collectives, table = collectives_of(signals), signals.trace.collectives
    if not len(collectives) or signals.trace.totals is not None:
        return ()
    slot = np.searchsorted(table.row, collectives.row)
    dimension = dimension_of_collectives(signals)[slot]
    # Each unknown group is a row of its own, the least busy aside; what is known belongs together.
    unknown = dimension == DIMENSIONS.index(Dimension.UNKNOWN)

    def where_unknown(column: NDArray[np.int32] | Int64) -> NDArray[np.int64]:
        return np.where(unknown, column, -1).astype(np.int64)

    first, of_row = group_rows(
        dimension.astype(np.int64),
        where_unknown(table.group[slot]),
        where_unknown(table.ranks[slot]),
        where_unknown(collectives.group_size),
    )
    first, of_row = _with_few_unknown(first, of_row, unknown, collectives.duration_ns)
    ranks = ranks_of(signals)
    found = [
        _dimension(signals, DIMENSIONS[int(dimension[row])], of_row == index, slot, ranks)
        for index, row in enumerate(first.tolist())
    ]
    return tuple(sorted(found, key=lambda row: (-row.cost.exposed_ns, -row.cost.time_ns)))


def _with_few_unknown(
    first: NDArray[np.intp], of_row: NDArray[np.intp], unknown: Mask, duration_ns: Int64
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Let the least busy groups of unknown purpose share a row, if there are too many.

    `first` is the first collective of each row, and `of_row` the row of each collective.
    """
    is_unknown = unknown[first]
    if int(is_unknown.sum()) <= MAX_UNKNOWN:
        return first, of_row
    time_ns = np.bincount(of_row, weights=duration_ns)
    order = np.argsort(np.where(is_unknown, -time_ns, -np.inf), kind="stable")
    shown = len(first) - int(is_unknown.sum()) + MAX_UNKNOWN - 1
    place = np.empty(len(first), dtype=np.intp)
    place[order] = np.minimum(np.arange(len(first)), shown)
    return first[order[: shown + 1]], place[of_row]


def _dimension(
    signals: Signals, dimension: Dimension, chosen: Mask, slot: NDArray[np.intp], ranks: Ranks
) -> ParallelDimension:
    collectives = collectives_of(signals)
    uses = collective_roles(signals).uses(slot[chosen])
    evidence = next((use.evidence for use in uses if use.evidence), "")
    groups = _groups(signals, chosen, slot)
    if not evidence and dimension is not Dimension.UNKNOWN:
        evidence = f"along the mesh axis `{groups[0].description}`"
    operations = [
        OperationCost(name, _cost(signals, chosen & collectives.of(name), (name,), dimension))
        for name in collectives.operation.texts
        if (chosen & collectives.of(name)).any()
    ]
    links = link_of_group(signals)[chosen]
    links = np.sort(links[np.isfinite(links)])
    middle = [(len(links) - 1) // 2, len(links) // 2]
    is_known = dimension is not Dimension.UNKNOWN
    return ParallelDimension(
        dimension=dimension,
        evidence=evidence,
        groups=groups[:MAX_GROUPS],
        groups_left_out=max(len(groups) - MAX_GROUPS, 0),
        cost=_cost(signals, chosen, [entry.operation for entry in operations], dimension),
        operations=tuple(sorted(operations, key=lambda entry: -entry.cost.exposed_ns)),
        is_transfer_known=bool((collectives.transfer_ns[chosen] >= 0).all()),
        link_bytes_per_s=float(links[middle].mean()) if len(links) else None,
        workers=_worker_costs(ranks, dimension) if len(ranks) > 1 and is_known else None,
    )


def _groups(signals: Signals, chosen: Mask, slot: NDArray[np.intp]) -> tuple[ProcessGroup, ...]:
    trace, table = signals.trace, signals.trace.collectives
    columns = [column[slot] for column in (table.group, table.description, table.ranks)]
    collectives = collectives_of(signals)
    rows = np.flatnonzero(chosen)
    sizes = collectives.group_size
    first, of_row = group_rows(*(column[rows] for column in columns), sizes[rows])
    time_ns = np.bincount(of_row, weights=collectives.duration_ns[rows])
    found = []
    for row in rows[first[np.argsort(-time_ns, kind="stable")]].tolist():
        name, description, ranks = (trace.text(int(column[row])) for column in columns)
        size = int(sizes[row]) if sizes[row] > 0 else None
        if name or description or ranks or size:
            found.append(ProcessGroup(name, description, ranks, size))
    return tuple(found)


def _cost(signals: Signals, chosen: Mask, operations: Sequence[str], dimension: Dimension) -> Cost:
    collectives, attribution = collectives_of(signals), signals.attribution
    events = signals.trace.events
    rows = collectives.row[chosen]
    window = np.array([[attribution.window_start_ns, attribution.window_end_ns]])
    time = intersect(events.spans(rows), window)
    exposed_ns = shared_ns(time, attribution.intervals[Cause.COMMUNICATION])
    algorithm, bus = _bandwidths(signals, chosen & ~collectives.is_start)
    return Cost(
        count=int((chosen & ~collectives.is_start).sum()),
        time_ns=total_ns(time),
        exposed_ns=exposed_ns,
        hidden_ns=total_ns(time) - exposed_ns + _hidden_between(signals, chosen),
        bytes_per_step=_bytes_per_step(signals, chosen, operations, dimension),
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=bus,
    )


def _hidden_between(signals: Signals, chosen: Mask) -> int:
    """Compute between the start and the done operation of asynchronous collectives."""
    collectives = collectives_of(signals)
    if not (chosen & collectives.is_start).any():
        return 0
    pairs = async_pairs(signals)
    return int(pairs.hidden_ns[is_in(pairs.done, collectives.row[chosen])].sum())


def _bytes_per_step(
    signals: Signals, chosen: Mask, operations: Sequence[str], dimension: Dimension
) -> int | None:
    """Bytes of whole steps; without any, of the window, if it has the sizes of all."""
    collectives = collectives_of(signals)
    if dimension is not Dimension.UNKNOWN and not (chosen & collectives.is_start).any():
        messages = [step_messages(signals, operation) for operation in operations]
        whole = [found for found in messages if found is not None]
        if whole and len(whole) == len(messages):
            of_trace = dimension_of_collectives(signals)
            table, code = signals.trace.collectives, DIMENSIONS.index(dimension)
            total = 0
            for found in whole:
                slot = np.searchsorted(table.row, found.collectives.row)
                sizes = found.collectives.size_bytes[of_trace[slot] == code]
                total += int(sizes.sum()) // found.steps
            return total
    sizes = collectives.size_bytes[chosen & ~collectives.is_start]
    if not len(sizes) or (sizes < 0).any():
        return None
    return int(sizes.sum()) // signals.steps.count


def _bandwidths(signals: Signals, chosen: Mask) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth of some collectives; None where sizes are unknown."""
    collectives = collectives_of(signals)
    if (collectives.is_start & collectives.of(*_texts(signals, chosen))).any():
        return None, None  # a done operation's duration is only the rest of the transfer
    taken_ns = np.where(
        collectives.transfer_ns >= 0, collectives.transfer_ns, collectives.duration_ns
    )
    wire, size = wire_bytes(signals), collectives.size_bytes.astype(np.float64)

    def rate(moved: NDArray[np.float64], is_sized: Mask) -> float | None:
        time_ns = int(taken_ns[is_sized].sum())
        if not time_ns or time_ns < KNOWN_SHARE * int(taken_ns[chosen].sum()):
            return None
        return float(moved[is_sized].sum() / time_ns * NS_PER_S)

    return rate(size, chosen & (size >= 0)), rate(wire, chosen & np.isfinite(wire))


def _texts(signals: Signals, chosen: Mask) -> list[str]:
    operation = collectives_of(signals).operation
    return [operation.texts[code] for code in distinct(operation.code[chosen]).tolist()]


def _worker_costs(ranks: Ranks, dimension: Dimension) -> WorkerCosts:
    """What a dimension costs on each rank, by what each rank's own file says."""
    code = DIMENSIONS.index(dimension)
    of_worker = [DIMENSION_OF_ROLE[summary.collectives.role] == code for summary in ranks.summaries]
    exposed = np.array(
        [
            -1 if table.left_out else int(table.exposed_ns[is_of].sum())
            for table, is_of in zip(
                (summary.collectives for summary in ranks.summaries), of_worker, strict=True
            )
        ],
        dtype=np.int64,
    )
    matched = ranks.matched
    is_of = np.zeros(len(matched.rank), dtype=bool)
    sent = np.zeros(len(matched.rank), dtype=np.int64)
    for worker, rows in ranks.rows_by_worker():
        position = matched.position[rows]
        is_of[rows] = of_worker[worker][position]
        sent[rows] = ranks.summaries[worker].collectives.sent_bytes[position]
    if len(matched):
        is_of &= (steps_of(ranks) != NO_STEP)[matched.collective]
    if not is_of.any():
        return WorkerCosts(exposed, None, None)

    def by_worker(values: Int64) -> Int64:
        total = np.bincount(matched.rank[is_of], weights=values[is_of], minlength=len(ranks))
        return total.astype(np.int64)

    return WorkerCosts(
        exposed,
        by_worker(uncovered_waits(ranks)),
        by_worker(sent) if sent[is_of].min() >= 0 else None,
    )


NETWORK_BYTES_PER_S: Final = (12.5e9, 50e9)
"""Between nodes, per device and direction: 100 to 400 Gbit/s. A DGX H100 has a port of 400 Gbit/s
for each GPU (NVIDIA, "DGX H100/H200 User Guide"); AWS p4d has 400 Gbit/s for eight."""
_GROWING: Final = (
    Role.GRADIENTS,
    Role.SHARDS,
    Role.BUFFERS,
    Role.STATISTICS,
    Role.EMBEDDINGS,  # tables are divided among all ranks
)


class NextDoubling(Struct, frozen=True):
    """Twice the ranks with the same work each."""

    group: int
    """Ranks of a group that grows, now; the median."""
    low_ns: int
    """By how much the used steps get longer at least; total."""
    high_ns: int
    leaves_node: bool
    """Whether groups that fit into a node no longer would."""

    def efficiency(self, window_ns: int) -> tuple[float, float]:
        """Throughput per device as a share of today's: low and high end."""
        return window_ns / (window_ns + self.high_ns), window_ns / (window_ns + self.low_ns)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the range rests on, in sentences."""
        low, high = (format_rate(rate, "B/s") for rate in NETWORK_BYTES_PER_S)
        return (
            "Each device does the same work as now.",
            f"Groups of data-parallel ranks, and of all ranks, grow from {self.group} to"
            f" {2 * self.group}; other groups stay as they are.",
            f"Messages that stay in a node now cross a network of {low} to {high} per device."
            if self.leaves_node
            else "The link is as fast as now.",
            "At best, as much of each message is hidden as now, and ranks wait no longer for one"
            " another. At worst, only compute that is free now hides more, latencies double, and"
            " waiting grows with the logarithm of the ranks.",
        )


@memoized
def next_doubling(signals: Signals) -> NextDoubling | None:
    """What twice the devices would cost; None without data-parallel collectives of known sizes."""
    collectives = collectives_of(signals)
    if signals.trace.totals is not None or collectives.is_start.any():
        return None
    duration = collectives.duration_ns.astype(np.float64)
    growing, unknown = has_role(signals, *_GROWING), has_role(signals, Role.UNKNOWN)
    growing |= unknown & (collectives.group_size == signals.trace.source.world_size)
    if duration[unknown & ~growing].sum() > (1 - KNOWN_SHARE) * duration.sum():
        return None
    known = growing & np.isfinite(wire_bytes(signals)) & (collectives.group_size >= 2)
    known &= collectives.duration_ns > 0
    if not known.any() or duration[known].sum() < KNOWN_SHARE * duration[growing].sum():
        return None
    group_size = collectives.group_size[known]
    ranks = group_size.astype(np.float64)
    taken = np.minimum(quickest_ns(signals), collectives.duration_ns)[known].astype(np.float64)
    exposed = collectives.exposed_ns[known].astype(np.float64)
    crosses = is_within_a_node(signals) and 2 * float(np.median(group_size)) > DEVICES_PER_NODE
    low, high = _growth_ns(signals, known, taken, ranks, crosses=crosses)
    seen = exposed / duration[known]
    waited = np.minimum(duration[known] - taken, exposed)
    longer_waits = waited * (np.log(2 * ranks) / np.log(ranks) - 1)
    free_ns = free_compute_ns(signals)
    at_worst = max(float((high * seen).sum()), float(high.sum()) - free_ns)
    return NextDoubling(
        group=int(np.median(group_size)),
        low_ns=round(float((low * seen).sum())),
        high_ns=round(at_worst + float(longer_waits.sum())),
        leaves_node=crosses,
    )


def _growth_ns(
    signals: Signals, known: Mask, taken: Float64, ranks: Float64, *, crosses: bool
) -> tuple[Float64, Float64]:
    """By how much each transfer gets longer, at least and at most; shape (n,).

    A ring sends (2n - 1)/(2n - 2) times the bytes over each link, in twice the hops; a tree has one
    more level.
    """
    collectives = collectives_of(signals)
    latency = np.minimum(taken, _latency_ns(signals)[known])
    is_ring = ~collectives.of("broadcast", "reduce")[known]
    more_bytes = np.where(is_ring, (2 * ranks - 1) / (2 * ranks - 2), 1.0)
    moving = (taken - latency) * more_bytes
    wire = wire_bytes(signals)[known] * more_bytes
    slowest, fastest = (wire / rate * NS_PER_S for rate in NETWORK_BYTES_PER_S)
    best = np.maximum(moving, fastest) if crosses else moving
    worst = np.maximum(moving, slowest) if crosses else moving
    one_level = np.log2(2 * ranks) / np.log2(ranks)
    return best + latency * one_level - taken, worst + 2 * latency - taken


def _latency_ns(signals: Signals) -> Float64:
    """The latency of each collective: fitted where sizes differ; shape (n,)."""
    collectives = collectives_of(signals)
    latency = np.full(len(collectives), float(LATENCY_NS))
    for operation in collectives.operation.texts:
        fit = fit_of(collectives, quickest_ns(signals), wire_bytes(signals), operation)
        if fit is not None:
            latency[collectives.of(operation)] = fit.latency_ns
    return latency
