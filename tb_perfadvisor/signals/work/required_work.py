"""The minimum work of an operation: arithmetic and memory traffic.

A multiplication and an addition count as two FLOP. Traffic is the minimum: each input is read once,
and each output is written once. Real traffic is larger, because of tiles and limited caches.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct

from tb_perfadvisor.trace import KernelFamily


class Matmul(Struct, frozen=True):
    """The matrix product behind an operation: `batch` times (m, k) by (k, n)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """FLOP: a multiplication and an addition for each term of each inner product."""
        return 2.0 * self.batch * self.m * self.n * self.k


class Work(Struct, frozen=True):
    """The work of one execution of an operation."""

    family: KernelFamily
    """What it computes. Its kernels of other families do auxiliary work."""
    flop: float
    traffic_bytes: float
    number_format: str
    """Format of its inputs: fp64, fp32, fp16, bf16, fp8 or int8; empty if it is another."""
    matmul: Matmul | None = None
    """Set for matrix products, and for convolutions as the equivalent product."""
    model_flop: float | None = None
    """FLOP that count toward MFU, if they differ from `flop`; see `step_flop`."""


def convolution_product(
    output: tuple[int, ...], weight: tuple[int, ...], groups: int = 1
) -> Matmul:
    """The matrix product equivalent to a convolution: positions by channels, over its window.

    The output has shape (batch, channels, positions …), and the weight (output channels, input
    channels per group, window …). Groups of channels are convolved separately.
    """
    positions = output[0] * prod(output[2:])
    return Matmul(groups, positions, output[1] // groups, prod(weight[1:]))
