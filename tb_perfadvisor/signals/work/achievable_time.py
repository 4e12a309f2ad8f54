"""How long a kernel takes if it runs as well as large, well-shaped kernels do in practice.

A kernel needs at least the time of its arithmetic or of its memory traffic, whichever is longer.
The time of a matrix product has more terms, each of which users can check by hand:

    time = START + sqrt(compute² + memory²) + writes

- *Start*: a product with almost no work takes some microseconds.
- *Compute* is FLOP divided by the achievable rate, in waves: each multiprocessor computes one
  tile of the result after another. In the last wave, some have nothing to do.
- *Memory*: reading both operands overlaps compute, though not perfectly where it takes about as
  long.
- *Writes*: results are written when they are complete. Where libraries compute the next tile
  meanwhile, half of the writes count as memory.

The model is checked against recorded products and against NVIDIA's own predictor, see
`docs/accuracy.md`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.trace.tables import Float64, Int8, Int64

COMPUTE_BOUND: Final = 0
MEMORY_BOUND: Final = 1
LATENCY_BOUND: Final = 2
UNKNOWN_BOUND: Final = -1
BOUNDS: Final = {COMPUTE_BOUND: "compute", MEMORY_BOUND: "memory", LATENCY_BOUND: "latency"}

MIN_KERNEL_NS: Final = 2_000
"""Time of a kernel with almost no work: 1.0 to 2.5 microseconds in recorded profiles of V100,
A100, H100 and MI300X."""
START_NS: Final = 4_000
"""Time of a product with almost no work: 3.5 to 5 microseconds in recorded profiles of A100, H100
and B300."""

_TILE: Final = 64
"""The side of the smallest tile that libraries use for large products. Larger tiles that fill the
device equally well are covered: each is a number of these."""
_NARROWEST_TILE: Final = 8
"""The narrowest side of a tensor-core instruction."""
_SPLIT_K: Final = 4096
"""If a result has too few tiles to fill the device, libraries compute its inner products in parts.
Shorter ones are not worth adding up the parts."""

_CHUNK: Final = 1 << 16
"""Kernels per batch, so that a dozen columns of them fit into the cache."""


class Demand(Struct, frozen=True):
    """What kernels have to do; columns of shape (n,)."""

    flop: Float64
    traffic_bytes: Float64
    written_bytes: Float64
    """The part of the traffic that writes the result of a matrix product; 0 for other kernels."""
    waste: Float64
    """Multiprocessor time of a matrix product relative to full waves; 1 for other kernels."""
    is_product: NDArray[np.bool_]

    def part(self, chunk: slice) -> Demand:
        """The demand of some kernels."""
        return Demand(
            self.flop[chunk],
            self.traffic_bytes[chunk],
            self.written_bytes[chunk],
            self.waste[chunk],
            self.is_product[chunk],
        )


def wave_waste(products: Int64, multiprocessors: int | None) -> Float64:
    """Time that products take in waves, relative to multiprocessors that are always busy.

    Args:
        products: Batch, m, n and k of each; shape (n, 4). 0 stands for no product.
        multiprocessors: Of the device; None if unknown.

    Returns:
        At least 1; shape (n,).
    """
    if not multiprocessors:
        return np.ones(len(products))
    batch, m, n, k = np.maximum(products, 1).T.astype(np.float64)
    tiles = most_tiles(products)
    parts = np.minimum(multiprocessors // tiles, k // _SPLIT_K)
    parts = np.maximum(parts, 1.0)
    waves = np.ceil(tiles * parts / multiprocessors)
    tile = _tile_side(m) * _tile_side(n)
    waste: Float64 = waves * multiprocessors * tile / parts / (batch * m * n)
    return waste


def most_tiles(products: Int64) -> Float64:
    """How many of the smallest tiles the results of products have; shape (n,)."""
    batch, m, n, _ = np.maximum(products, 1).T.astype(np.float64)
    tiles: Float64 = batch * np.ceil(m / _tile_side(m)) * np.ceil(n / _tile_side(n))
    return tiles


def _tile_side(size: Float64) -> Float64:
    return np.clip(size, _NARROWEST_TILE, _TILE)


def achievable_times(demand: Demand, rate: Float64, peaks: Peaks | None) -> tuple[Float64, Int8]:
    """Achievable times of kernels, and what limits each.

    Args:
        demand: What they have to do.
        rate: The peak FLOP/s that limits each; NaN if unknown.
        peaks: Peaks of the device.

    Returns:
        Nanoseconds, NaN if unknown; and a key of `BOUNDS` or `UNKNOWN_BOUND`. Shape (n,) each.
    """
    count = len(rate)
    achievable_ns = np.empty(count)
    bound = np.empty(count, dtype=np.int8)
    for first in range(0, count, _CHUNK):
        chunk = slice(first, first + _CHUNK)
        achievable_ns[chunk], bound[chunk] = _times(demand.part(chunk), rate[chunk], peaks)
    return achievable_ns, bound


def _times(demand: Demand, rate: Float64, peaks: Peaks | None) -> tuple[Float64, NDArray[np.intp]]:
    bandwidth = (peaks.memory_bandwidth_bytes_per_s if peaks else None) or np.nan
    compute_share, memory_share = (
        (peaks.achievable, peaks.achievable_bandwidth) if peaks else (1.0, 1.0)
    )
    compute_ns = demand.flop / rate * 1e9 / compute_share * demand.waste
    memory_ns = demand.traffic_bytes / bandwidth * 1e9 / memory_share
    writes_ns = np.minimum(demand.written_bytes / bandwidth * 1e9 / memory_share, memory_ns)
    writes_ns *= 1.0 - (peaks.overlapped_writes if peaks else 0.0)
    # If either time is NaN, so is the result: half a roofline says nothing.
    product_ns = np.hypot(compute_ns, memory_ns - writes_ns) + writes_ns
    work_ns = np.where(demand.is_product, product_ns, np.maximum(compute_ns, memory_ns))
    start_ns = np.where(demand.is_product, START_NS, 0)
    bound = np.where(compute_ns >= memory_ns, COMPUTE_BOUND, MEMORY_BOUND)
    bound = np.where(work_ns < np.maximum(start_ns, MIN_KERNEL_NS), LATENCY_BOUND, bound)
    bound = np.where(np.isnan(work_ns), UNKNOWN_BOUND, bound)
    return np.maximum(start_ns + work_ns, MIN_KERNEL_NS), bound
