"""What collectives cost: sizes, links, and messages per step.

The device may be steps behind the host. A window of the recording then holds collectives of steps
that were launched before it, of which nothing but the time is known, and the end of the recording
may lack those that the last step launched. Bytes per step come from whole steps only.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.collectives import (
    Collectives,
    Mask,
    collective_rows_of,
)
from tb_perfadvisor.signals.core.steps.launched_work import owner_by_time
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.ranks import collectives_of, described
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.steps.step_variation import gradient_bytes
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, rows_by_group
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import NS_PER_S, format_bytes

DEVICES_PER_NODE = 8
"""The most GPUs that servers commonly hold; a profile may list fewer than the node has."""


def link_bandwidth_bytes_per_s(signals: Signals) -> float | None:
    """Bandwidth of the link that the user names, else of the device's link within the node.

    None where GPUs of several nodes take part: no profile describes the network between them.
    """
    if signals.options.link_bandwidth_bytes_per_s is not None:
        return signals.options.link_bandwidth_bytes_per_s
    facts = signals.device_facts
    if facts is None or (facts.kind == "gpu" and _spans_nodes(signals)):
        return None
    return facts.link_bandwidth_bytes_per_s


def is_within_a_node(signals: Signals) -> bool:
    """Whether the ranks are GPUs of one node, as far as the profile tells."""
    facts = signals.device_facts
    is_given = signals.options.link_bandwidth_bytes_per_s is not None
    return facts is not None and facts.kind == "gpu" and not is_given and not _spans_nodes(signals)


def _spans_nodes(signals: Signals) -> bool:
    hosts = {source.host for source in signals.run.sources if source.host}
    ranks = signals.trace.source.world_size or len(signals.run.traces)
    return len(hosts) > 1 or ranks > max(len(signals.trace.devices), DEVICES_PER_NODE)


LATENCY_NS = 30_000
"""Launch and latency of one all-reduce within a node."""
MIN_SPREAD = 4.0
"""The largest message must be at least this many times the smallest to fit a line."""


class Fit(Struct, frozen=True):
    """time = latency + wire bytes / bandwidth, fitted to the fastest message of each size."""

    operation: str
    latency_ns: float
    bandwidth_bytes_per_s: float


@memoized
def wire_bytes(signals: Signals) -> Float64:
    """Bytes that each collective sends over a rank's link; NaN if size or ranks are unknown.

    The "bus bandwidth" of nccl-tests (doc/PERFORMANCE.md) is these bytes divided by the time.
    """
    collectives = collectives_of(signals)
    ranks = collectives.group_size.astype(np.float64)
    size = collectives.size_bytes.astype(np.float64)
    operation = collectives.operation
    share = np.array([_FACTORS.get(text, np.nan) for text in operation.texts])[operation.code]
    rounds = np.where(np.isinf(share), 1.0, share * (ranks - 1) / np.maximum(ranks, 1))
    return np.where((size >= 0) & ((ranks >= 2) | np.isinf(share)), rounds * size, np.nan)


@memoized
def quickest_ns(signals: Signals) -> Int64:
    """Shortest time over collectives of the same operation, group, ranks and bytes; shape (n,).

    If waiting is unknown, the fastest of them waited least. A collective without a size stands
    alone.
    """
    collectives = collectives_of(signals)
    quickest = np.where(
        collectives.transfer_ns >= 0, collectives.transfer_ns, collectives.duration_ns
    )
    first, kind = group_rows(
        collectives.size_bytes,
        collectives.operation.code,
        collectives.group.code,
        collectives.group_size,
    )
    least = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(least, kind, quickest)
    return np.where(collectives.size_bytes >= 0, least[kind], quickest)


@memoized
def link_of_group(signals: Signals) -> Float64:
    """Bandwidth of the link that each collective's group uses; NaN if unknown; shape (n,)."""
    return link_of(signals, collectives_of(signals))


def link_of(signals: Signals, collectives: Collectives) -> Float64:
    """Bandwidth of the link that each of some collectives uses; NaN if unknown; shape (n,).

    Without a switch, a device in a group of n devices can use at most n - 1 of its links. In a
    torus of TPUs, it uses the two links along each axis of the mesh that the group spans.
    """
    bandwidth = link_bandwidth_bytes_per_s(signals)
    ranks = np.maximum(collectives.group_size, 2).astype(np.float64)
    if bandwidth is None:
        return np.full(len(ranks), np.nan)
    facts = signals.device_facts
    is_given = signals.options.link_bandwidth_bytes_per_s is not None
    if is_given or facts is None or facts.direct_links is None:
        return np.full(len(ranks), bandwidth)
    links = ranks - 1
    if facts.link == "ici":
        neighbors = np.where(collectives.neighbors > 0, collectives.neighbors, 2)
        links = np.minimum(links, neighbors)
    return np.asarray(bandwidth * np.minimum(links / facts.direct_links, 1.0))


@memoized
def longest_transfer_ns(signals: Signals) -> Float64:
    """Twice the time that the bytes of each need on the link, plus latency: more is no transfer.

    Infinity where ranks, sizes or the link are unknown, or where the transfer is known; shape (n,).
    """
    known_ns = collectives_of(signals).transfer_ns >= 0
    on_link_ns = 2 * wire_bytes(signals) / link_of_group(signals) * NS_PER_S + LATENCY_NS
    return np.where(np.isnan(on_link_ns) | known_ns, np.inf, on_link_ns)


LARGE_BYTES = 1_000_000
"""From a megabyte on, bandwidth outweighs latency."""
_LITTLE = 0.35
"""Of the link's bandwidth. Bad tuning alone does not cost half of what is reachable."""
_FEWEST_OF_A_SIZE = 3


_ALIKE = 0.1
"""Messages of one size on one link vary by a few percent."""


class SlowMessages(Struct, frozen=True):
    """Large messages of which even the fastest uses little of the link."""

    bytes_per_s: float
    """Bus bandwidth of the fastest."""
    link_bytes_per_s: float
    spread: float | None
    """How far the times of messages of the same size are apart, as a share of their median; the
    largest over the sizes. None if no size occurs three times."""

    @property
    def points_to_link(self) -> bool:
        """Late ranks come later in one step than in the next; a slow link is as slow each time."""
        return self.spread is not None and self.spread <= _ALIKE


@memoized
def slow_messages(signals: Signals) -> SlowMessages | None:
    """The large messages, waiting included, if all are slow for the link; else None."""
    collectives, wire, link = collectives_of(signals), wire_bytes(signals), link_of_group(signals)
    taken_ns = collectives.without_waiting_ns
    large = np.flatnonzero(
        np.isfinite(wire * link) & (collectives.size_bytes >= LARGE_BYTES) & (taken_ns > 0)
    )
    if not len(large):
        return None
    rate = wire[large] / taken_ns[large] * NS_PER_S
    fastest = int(np.argmax(rate / link[large]))
    if rate[fastest] >= _LITTLE * link[large][fastest]:
        return None
    first, kind = group_rows(
        collectives.operation.code[large], collectives.group.code[large], wire[large].astype(int)
    )
    spreads = [
        float(np.ptp(taken_ns[large[rows]]) / np.median(taken_ns[large[rows]]))
        for rows in rows_by_group(kind, len(first))
        if len(rows) >= _FEWEST_OF_A_SIZE
    ]
    return SlowMessages(
        float(rate[fastest]), float(link[large][fastest]), max(spreads, default=None)
    )


def wire_time_ns(signals: Signals, collectives: Collectives, size_bytes: Float64) -> Float64:
    """Time of all-reduces of some sizes on the link, without latency; shape (n,).

    A ring sends 2 (n-1)/n of the bytes over each link. A tree sends all of them up and down.
    """
    ranks = np.maximum(collectives.group_size, 1)
    factor = np.where(_is_tree(signals, collectives), 2.0, 2.0 * (ranks - 1) / ranks)
    link = link_of(signals, collectives)
    return np.asarray(factor * size_bytes / link * NS_PER_S, dtype=np.float64)


def hops(signals: Signals, collectives: Collectives) -> Int64:
    """Number of consecutive messages in an all-reduce; shape (n,)."""
    ranks = np.maximum(collectives.group_size, 2)
    depth = np.ceil(np.log2(ranks)).astype(np.int64)
    return np.where(_is_tree(signals, collectives), 2 * depth, 2 * (ranks - 1))


def _is_tree(signals: Signals, collectives: Collectives) -> NDArray[np.bool_]:
    """Which collectives are NCCL trees, by their kernels' names; shape (n,).

    The others count as rings; they are rings or faster (NCCL, src/device/generate.py).
    """
    return named(signals.trace, collectives.row, re.compile("tree", re.IGNORECASE))


# Factors of (n-1)/n: an all-reduce sends the data twice, gathering or scattering once. Broadcasts
# and reductions send all of it over each link, which infinity stands for.
_FACTORS = {
    "all-reduce": 2.0,
    "all-gather": 1.0,
    "reduce-scatter": 1.0,
    "all-to-all": 1.0,
    "broadcast": np.inf,
    "reduce": np.inf,
}


def fit_of(collectives: Collectives, taken_ns: Int64, wire: Float64, operation: str) -> Fit | None:
    """Latency and bandwidth of an operation; None if its sizes are too similar to tell.

    `taken_ns` is the time of each collective without waiting, and `wire` its bytes on the wire.
    """
    is_fitted = collectives.of(operation) & np.isfinite(wire)
    is_fitted &= wire > 0
    sizes, of_row = np.unique(wire[is_fitted], return_inverse=True)
    if len(sizes) < 2 or sizes[-1] < MIN_SPREAD * sizes[0]:
        return None
    quickest = np.full(len(sizes), np.inf)
    np.minimum.at(quickest, of_row.reshape(-1), taken_ns[is_fitted].astype(np.float64))
    slope, latency = np.polyfit(sizes, quickest, 1)
    if slope <= 0:
        return None
    return Fit(operation, max(float(latency), 0.0), NS_PER_S / float(slope))


class StepMessages(Struct, frozen=True):
    """The collectives of one operation that complete steps launched."""

    collectives: Collectives
    """In order of start. Those that ran outside the used window count as not exposed."""
    steps: int
    """Number of complete steps."""

    @property
    def bytes_per_step(self) -> int:
        """Sum of their sizes in a step."""
        return int(self.collectives.size_bytes.sum()) // self.steps


@memoized
def step_messages(signals: Signals, operation: str) -> StepMessages | None:
    """The collectives of an operation by the steps that launched them.

    A step is complete if all of them have sizes, and if the device events that it launched were
    recorded. None without a complete step that has such collectives.
    """
    trace = signals.trace
    table, events = trace.collectives, trace.events
    if trace.totals is not None:
        return None
    slots = collective_rows_of(trace, signals.device.index)
    at = launched_ns(signals, table.row[slots])
    step = step_at(signals, at)
    is_wanted = trace.is_any_of(table.operation[slots], operation)
    is_incomplete = is_wanted & (table.size_bytes[slots] < 0)
    is_unknown = trace.is_any_of(table.operation[slots], "unknown") & (at >= 0)
    is_incomplete |= is_unknown & (events.launched_by[table.row[slots]] < 0)
    complete = np.ones(signals.steps.count, dtype=bool)
    complete[step[is_incomplete & (step >= 0)]] = False
    complete[_lost_launches(signals)] = False
    keep = (step >= 0) & is_wanted
    keep[keep] = complete[step[keep]]
    if not keep.any():
        return None
    return StepMessages(described(signals, slots[keep]), int(complete.sum()))


def launched_ns(signals: Signals, rows: Int32) -> Int64:
    """When each collective was launched: -1 if that was not recorded.

    Where no launches are recorded at all, a collective belongs to the step that it runs in.
    """
    events = signals.trace.events
    launch = events.launched_by[rows]
    by_launch = np.where(launch >= 0, events.start_ns[launch], -1)
    is_own = (events.kind[rows] == EventKind.HOST_COLLECTIVE) | ~(launch >= 0).any()
    return np.where(is_own, events.start_ns[rows], by_launch)


def step_at(signals: Signals, at_ns: Int64) -> Int64:
    """The used step of each moment on the host; -1 outside of them."""
    steps = signals.steps
    if len(steps) == 0:
        inside = (at_ns >= steps.window_start_ns) & (at_ns < steps.window_end_ns)
        return np.where(inside, 0, -1)
    return owner_by_time(steps.host_start_ns, steps.host_end_ns, at_ns)


def _lost_launches(signals: Signals) -> NDArray[np.int64]:
    """Steps with launches after the last one whose device event was recorded."""
    events = signals.trace.events
    linked = distinct(events.launched_by)
    linked = linked[linked >= 0]
    if not len(linked):
        return np.empty(0, dtype=np.int64)
    launches = signals.trace.rows(EventKind.LAUNCH)
    last_ns = events.start_ns[linked].max()
    step = step_at(signals, events.start_ns[launches[events.start_ns[launches] > last_ns]])
    return distinct(step[step >= 0])


_FP32_BYTES = 4
_HALF_BYTES = 2


class AllReduceSizes(Struct, frozen=True):
    """What is known of the bytes of all-reduces."""

    bytes: Float64
    """Of each collective of the used window, shape (n,); -1 where unknown."""
    text: str
    """The sum per step in words: `22.3 MiB`; empty if no step is known as a whole."""
    whole: StepMessages | None
    """The all-reduces of whole steps, where sizes were recorded."""


def all_reduce_sizes(signals: Signals, all_reduces: Mask) -> AllReduceSizes:
    """Recorded sizes; if there are none, the gradients' size, spread over all-reduces by time.

    The gradients' size follows from the user's parameter count, or from what autograd accumulates.

    `all_reduces` has shape (n,), as `signals.collectives`.
    """
    collectives, steps = collectives_of(signals), signals.steps.count
    if collectives.sizes_known:
        size = np.where(all_reduces, collectives.size_bytes, -1).astype(np.float64)
        whole = step_messages(signals, "all-reduce")
        return AllReduceSizes(size, format_bytes(whole.bytes_per_step) if whole else "", whole)
    parameters, per_step = signals.options.parameters, gradient_bytes(signals)
    if parameters is not None:
        per_step = parameters * _item_bytes(signals, all_reduces)
        text = f"{parameters:,} parameters"
    elif per_step is not None:
        text = f"{format_bytes(per_step)} of gradients"
    else:
        return AllReduceSizes(np.full(len(collectives), -1.0), "", None)
    duration = np.where(all_reduces, collectives.duration_ns, 0)
    share = duration / max(int(duration.sum()), 1)
    return AllReduceSizes(np.where(all_reduces, per_step * steps * share, -1.0), text, None)


def _item_bytes(signals: Signals, all_reduces: Mask) -> int:
    """Bytes per gradient element on the wire: from the kernels' data type, else 4."""
    collectives = collectives_of(signals)
    typed = all_reduces & ~collectives.dtype.is_any_of("")
    is_half = typed.any() and bool(collectives.is_16_bit[typed].all())
    return _HALF_BYTES if is_half else _FP32_BYTES
