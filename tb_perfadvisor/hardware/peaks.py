"""Peaks of a device, and the device that has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

DEFAULT_ACHIEVABLE = 0.75
"""For devices without a published measurement; measured ones lie between 0.54 and 0.87."""
ACHIEVABLE_BANDWIDTH = 0.85
"""Of the memory's peak, what kernels that only move data reach."""


class Peaks(Struct, frozen=True):
    """Dense peak rates, without sparsity. What is not published is absent."""

    tensor: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """FLOP/s of the matrix units by precision: fp64, fp32, tf32, fp16, bf16, fp8, int8."""
    vector: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """FLOP/s of the vector units by precision."""
    memory_bandwidth_bytes_per_s: float | None = None
    achievable: float = DEFAULT_ACHIEVABLE
    """Share of the 16-bit peak that large matrix products reach in practice."""
    achievable_bandwidth: float = ACHIEVABLE_BANDWIDTH
    """Share of the memory's peak that large copies reach in practice."""

    def flop_per_s(self, precision: str, *, tensor: bool = True) -> float | None:
        """Dense peak for numbers of a precision.

        Args:
            precision: fp64, fp32, tf32, fp16, bf16, fp8 or int8 (then operations/s). For tf32,
                devices without the format answer with what their matrix units do in fp32.
            tensor: Whether matrix units may be used. Then the rate is theirs, or the vector
                units' where matrix units don't take the precision.

        Returns:
            FLOP/s; None where no document states it.
        """
        if not tensor:
            return self.vector.get(precision)
        if precision == "tf32":
            return self.tensor.get("tf32", self.tensor.get("fp32"))
        return self.tensor.get(precision, self.vector.get(precision))

    @classmethod
    def from_plane(
        cls, *, flop_per_s: float | None, memory_bandwidth_bytes_per_s: float | None
    ) -> Peaks:
        """Peaks as an XPlane's own statistics state them: the 16-bit one and the memory's.

        Args:
            flop_per_s: `peak_teraflops_per_second` in FLOP/s.
            memory_bandwidth_bytes_per_s: `peak_hbm_bw_gigabytes_per_second` in bytes/s.
        """
        tensor = {} if flop_per_s is None else {"fp16": flop_per_s, "bf16": flop_per_s}
        return cls(
            tensor=MappingProxyType(tensor),
            memory_bandwidth_bytes_per_s=memory_bandwidth_bytes_per_s,
        )


class DeviceSpec(Struct, frozen=True):
    """One row of the table: what the runtime shows as one device."""

    name: str
    """Canonical name, not a driver's."""
    vendor: Literal["nvidia", "amd", "google"]
    kind: Literal["gpu", "tpu"]
    architecture: str
    """Compute capability (NVIDIA) or gfx target (AMD); empty for TPUs."""
    multiprocessors: int | None
    peaks: Peaks
    memory_bytes: int
    link: Literal["nvlink", "xgmi", "ici", "pcie", ""]
    """How it reaches its neighbors in the node; empty when unknown."""
    link_bandwidth_bytes_per_s: float | None
    """Per direction, all links of the device together."""
    direct_links: int | None
    """How many of them reach neighbors without a switch; None behind one, or unknown."""
    aliases: tuple[str, ...]
    """Names that drivers report for this device alone."""
    shared_names: tuple[str, ...]
    """Names that drivers report for this device and others."""
    source: str
    """Document and table of the figures."""
    achievable_source: str
