"""What a step would take on twice the devices, as a range.

Every device keeps its work, and the data-parallel groups double, as do those of all ranks. A
collective takes a latency and its bytes ÷ the bandwidth; both grow in known ways. What is unknown
makes the range: the network between nodes, how much of the growth compute hides, and how long more
ranks wait for the latest.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.collectives import KNOWN_SHARE, Mask
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_costs import (
    LATENCY_NS,
    fit_of,
    quickest_ns,
    wire_bytes,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import free_compute_ns
from tb_perfadvisor.signals.ranks.links import DEVICES_PER_NODE, is_within_a_node
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.window_roles import has_role
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import NS_PER_S, format_rate

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
    ranks = collectives.group_size[known].astype(np.float64)
    taken = np.minimum(quickest_ns(signals), collectives.duration_ns)[known].astype(np.float64)
    exposed = collectives.exposed_ns[known].astype(np.float64)
    crosses = is_within_a_node(signals) and 2 * float(np.median(ranks)) > DEVICES_PER_NODE
    low, high = _growth_ns(signals, known, taken, ranks, crosses=crosses)
    seen = exposed / duration[known]
    waited = np.minimum(duration[known] - taken, exposed)
    longer_waits = waited * (np.log(2 * ranks) / np.log(ranks) - 1)
    free_ns = free_compute_ns(signals)
    at_worst = max(float((high * seen).sum()), float(high.sum()) - free_ns)
    return NextDoubling(
        group=int(np.median(ranks)),
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
