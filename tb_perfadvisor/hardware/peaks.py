"""Peak rates of devices, and the rows of the device table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

DEFAULT_ACHIEVABLE = 0.75
"""For devices without a published measurement; measured values are 0.54 to 0.87."""
ACHIEVABLE_BANDWIDTH = 0.85
"""Share of peak memory bandwidth that kernels reach that only move data."""


class Peaks(Struct, frozen=True):
    """Dense peak rates, without sparsity. Rates that are not published are missing."""

    tensor: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """FLOP/s of the matrix units by precision: fp64, fp32, tf32, fp16, bf16, fp8, int8."""
    vector: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """FLOP/s of the vector units by precision."""
    memory_bandwidth_bytes_per_s: float | None = None
    achievable: float = DEFAULT_ACHIEVABLE
    """Share of the 16-bit peak that matrix products reach in practice while they compute."""
    achievable_bandwidth: float = ACHIEVABLE_BANDWIDTH
    """Share of peak memory bandwidth that large copies reach in practice."""
    overlapped_writes: float = 0.0
    """Share of writing the result of a matrix product that overlaps computing it."""

    def flop_per_s(self, precision: str, *, tensor: bool = True) -> float | None:
        """The dense peak rate for a precision.

        Args:
            precision: fp64, fp32, tf32, fp16, bf16, fp8 or int8 (then operations/s). Devices
                without tf32 use the fp32 rate of their matrix units for it.
            tensor: Whether matrix units may be used. If so, the rate is that of the matrix units,
                or of the vector units if matrix units do not support the precision.

        Returns:
            FLOP/s; None if it is not published.
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
        """Peaks as an XPlane states them: the 16-bit rate and the memory bandwidth.

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
    """A row of the device table: what the runtime shows as one device."""

    name: str
    """Canonical name, which may differ from the driver's."""
    vendor: Literal["nvidia", "amd", "google", "intel"]
    kind: Literal["gpu", "tpu", "other"]
    architecture: str
    """Compute capability (NVIDIA) or gfx target (AMD); empty for others."""
    multiprocessors: int | None
    peaks: Peaks
    memory_bytes: int | None
    """None if the candidates for a device differ."""
    link: Literal["nvlink", "xgmi", "ici", "pcie", ""]
    """The link to other devices in the node; empty if unknown."""
    link_bandwidth_bytes_per_s: float | None
    """Per direction, sum of all links of the device."""
    direct_links: int | None
    """Number of links to neighbors without a switch; None if unknown or behind a switch."""
    host_link: str
    """The link to the host; empty if unknown."""
    host_link_bandwidth_bytes_per_s: float | None
    """What a copy from pinned memory reaches in one direction, as measured."""
    aliases: tuple[str, ...]
    """Names that drivers report for this device alone."""
    shared_names: tuple[str, ...]
    """Names that drivers report for this device and others."""
    source: str
    """Document and table that the figures come from."""
    achievable_source: str
    host_link_source: str
    is_export_variant: bool = False
    """Whether another, more common device has the same properties. It is found by name only."""

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """As the runtime reports it: 9, 4 for gfx942; None if the architecture is unknown."""
        if self.architecture.startswith("gfx"):
            return capability_of_target(self.architecture)
        major, _, minor = self.architecture.partition(".")
        return (int(major), int(minor)) if minor else None


def capability_of_target(target: str) -> tuple[int, int]:
    """The compute capability that AMD's runtime reports for a target: 9, 4 for `gfx942`."""
    digits = target.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2], 16)
