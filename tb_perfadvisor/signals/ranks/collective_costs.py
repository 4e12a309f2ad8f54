"""What collectives send, and how fast: bytes on the wire, latency and bandwidth."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.collectives import Collectives
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.links import link_bandwidth_bytes_per_s
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import NS_PER_S

MIN_SPREAD = 4.0
"""The largest message must be so many times the smallest for a slope to mean anything."""


class Fit(Struct, frozen=True):
    """time = latency + wire bytes / bandwidth, over the quickest message of each size."""

    operation: str
    latency_ns: float
    bandwidth_bytes_per_s: float


@memoized
def wire_bytes(signals: Signals) -> Float64:
    """Bytes that each collective puts on a rank's link; NaN where size or ranks are unknown.

    The "bus bandwidth" of nccl-tests (doc/PERFORMANCE.md) is these bytes over the time.
    """
    collectives = collectives_of(signals)
    ranks = collectives.group_size.astype(np.float64)
    size = collectives.size_bytes.astype(np.float64)
    operation = collectives.operation
    share = np.array([_FACTORS.get(one, np.nan) for one in operation.texts])[operation.code]
    rounds = np.where(np.isinf(share), 1.0, share * (ranks - 1) / np.maximum(ranks, 1))
    return np.where((size >= 0) & ((ranks >= 2) | np.isinf(share)), rounds * size, np.nan)


@memoized
def quickest_ns(signals: Signals) -> Int64:
    """The shortest time of a collective's kind: operation, group, ranks and bytes; shape (n,).

    Where waiting is unknown, the quickest of a kind waited least. Without a size each is its own.
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
    """Bandwidth of the link that each collective's group uses; NaN where unknown; shape (n,).

    Without a switch between, a device of a group of n has at most n - 1 of its links to others.
    """
    bandwidth = link_bandwidth_bytes_per_s(signals)
    ranks = np.maximum(collectives_of(signals).group_size, 2).astype(np.float64)
    if bandwidth is None:
        return np.full(len(ranks), np.nan)
    facts = signals.device_facts
    is_told = signals.options.link_bandwidth_bytes_per_s is not None
    if is_told or facts is None or facts.direct_links is None:
        return np.full(len(ranks), bandwidth)
    return np.asarray(bandwidth * np.minimum((ranks - 1) / facts.direct_links, 1.0))


def wire_time_ns(signals: Signals, size_bytes: Float64) -> Float64:
    """What all-reduces of so many bytes each need on the link, latency left out; shape (n,).

    A ring sends 2 (n-1)/n of the bytes over each link, a tree all of them up and down again.

    Args:
        signals: The worker.
        size_bytes: Of each of its collectives; shape (n,).
    """
    ranks = np.maximum(collectives_of(signals).group_size, 1)
    factor = np.where(is_tree(signals), 2.0, 2.0 * (ranks - 1) / ranks)
    return np.asarray(factor * size_bytes / link_of_group(signals) * NS_PER_S, dtype=np.float64)


def hops(signals: Signals) -> Int64:
    """How many messages in a row an all-reduce takes; shape (n,)."""
    ranks = np.maximum(collectives_of(signals).group_size, 2)
    depth = np.ceil(np.log2(ranks)).astype(np.int64)
    return np.where(is_tree(signals), 2 * depth, 2 * (ranks - 1))


@memoized
def is_tree(signals: Signals) -> NDArray[np.bool_]:
    """Which collectives are NCCL's trees, by their kernels' names; shape (n,).

    All others stand for rings, or for what is quicker than these (NCCL, src/device/generate.py).
    """
    trace = signals.trace
    names = trace.events.name[collectives_of(signals).row]
    trees = [one for one in distinct(names).tolist() if "tree" in trace.strings[one].lower()]
    return is_in(names, trees)


# All-reduce sends everything twice less an n-th; what only gathers or scatters once; a broadcast
# or reduction passes the whole through every link (infinity stands for that).
_FACTORS = {
    "all-reduce": 2.0,
    "all-gather": 1.0,
    "reduce-scatter": 1.0,
    "all-to-all": 1.0,
    "broadcast": np.inf,
    "reduce": np.inf,
}


def fit_of(collectives: Collectives, taken_ns: Int64, wire: Float64, operation: str) -> Fit | None:
    """Latency and bandwidth of an operation; None where its sizes do not tell them apart.

    Args:
        collectives: All of them.
        taken_ns: What each takes without waiting.
        wire: Bytes on the wire of each.
        operation: Which to look at.
    """
    own = collectives.of(operation) & np.isfinite(wire)
    own &= wire > 0
    sizes, of_row = np.unique(wire[own], return_inverse=True)
    if len(sizes) < 2 or sizes[-1] < MIN_SPREAD * sizes[0]:
        return None
    quickest = np.full(len(sizes), np.inf)
    np.minimum.at(quickest, of_row.reshape(-1), taken_ns[own].astype(np.float64))
    slope, latency = np.polyfit(sizes, quickest, 1)
    if slope <= 0:
        return None
    return Fit(operation, max(float(latency), 0.0), NS_PER_S / float(slope))
