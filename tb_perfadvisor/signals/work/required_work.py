"""What an operation has to do at the least: its arithmetic and its memory traffic.

FLOP count a multiplication and an addition as two. Traffic is the least there can be: every
input read once, every output written once; caches and tiles make real traffic larger.
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
        """A multiplication and an addition for each term of each inner product."""
        return 2.0 * self.batch * self.m * self.n * self.k


class Work(Struct, frozen=True):
    """One execution of an operation."""

    family: KernelFamily
    """What it computes; kernels of other families in it do something else."""
    flop: float
    traffic_bytes: float
    number_format: str
    """Of its inputs: fp64, fp32, fp16, bf16, fp8 or int8; empty when it is none of them."""
    matmul: Matmul | None = None
    """Of matrix products, and of convolutions as the product that they amount to."""


def convolution_product(
    output: tuple[int, ...], weight: tuple[int, ...], groups: int = 1
) -> Matmul:
    """The product that a convolution amounts to: positions by its window, by its channels.

    Args:
        output: Batch, channels, then positions: (N, K, …).
        weight: Output channels, input channels of one group, then the window: (K, C/groups, …).
        groups: How many parts of the channels are convolved on their own.
    """
    positions = output[0] * prod(output[2:])
    return Matmul(groups, positions, output[1] // groups, prod(weight[1:]))
