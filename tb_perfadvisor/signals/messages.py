"""What collectives send, and how fast: bytes on the wire, latency and bandwidth."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.collectives import Collectives
from tb_perfadvisor.signals.derived import derived
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Float64, Int64

MIN_SPREAD = 4.0
"""The largest message must be so many times the smallest for a slope to mean anything."""


class Fit(Struct, frozen=True):
    """time = latency + wire bytes / bandwidth, over the quickest message of each size."""

    operation: str
    latency_ns: float
    bandwidth_bytes_per_s: float


@derived
def wire_bytes(signals: Signals) -> Float64:
    """Bytes that each collective puts on a rank's link; NaN where size or ranks are unknown.

    The "bus bandwidth" of nccl-tests (doc/PERFORMANCE.md) is these bytes over the time.
    """
    collectives = signals.collectives
    ranks = collectives.group_size.astype(np.float64)
    size = collectives.size_bytes.astype(np.float64)
    share = np.array([_FACTORS.get(one, np.nan) for one in collectives.operation])
    rounds = np.where(np.isinf(share), 1.0, share * (ranks - 1) / np.maximum(ranks, 1))
    return np.where((size >= 0) & ((ranks >= 2) | np.isinf(share)), rounds * size, np.nan)


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
    own = np.array([one == operation for one in collectives.operation]) & np.isfinite(wire)
    own &= wire > 0
    sizes, of_row = np.unique(wire[own], return_inverse=True)
    if len(sizes) < 2 or sizes[-1] < MIN_SPREAD * sizes[0]:
        return None
    quickest = np.full(len(sizes), np.inf)
    np.minimum.at(quickest, of_row.reshape(-1), taken_ns[own].astype(np.float64))
    slope, latency = np.polyfit(sizes, quickest, 1)
    if slope <= 0:
        return None
    return Fit(operation, max(float(latency), 0.0), 1e9 / float(slope))
