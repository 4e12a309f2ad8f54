"""Finds the table row of a device that a profile names. Never guesses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct, field

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.toml_files import parse

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
        """Peaks as an XPlane states them: the 16-bit rate and the memory bandwidth."""
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


_TABLE = Path(__file__).with_name("devices.toml")
_ROW = regex(r'^\[(nvidia|amd|intel|google)\."(.+)"\]$', re.MULTILINE)
_GIB = 2**30

# Drivers report a little less memory than the device has: some pages are reserved, and some are
# used for error correction on GDDR.
_MIN_MEMORY_SHARE = 0.88
_MAX_MEMORY_SHARE = 1.01


def find_device(
    name: str, *, multiprocessors: int | None = None, memory_bytes: int | None = None
) -> DeviceSpec | None:
    """Find the device that a profile names.

    Args:
        name: The driver's name of the device (`NVIDIA H100 80GB HBM3`, `TPU v6 Lite`).
        multiprocessors: The reported number. A partition of a device (MIG, CPX) has fewer than the
            device of its name, so it does not match.
        memory_bytes: The reported size; it only decides between devices with the same name.

    Returns:
        The row; None if the name is unknown or ambiguous.
    """
    wanted = name.strip().casefold()
    candidates = _called(wanted)
    if not candidates:
        return None
    matches = [spec for spec in candidates if _matches_multiprocessors(spec, multiprocessors)]
    if any(wanted in map(str.casefold, spec.shared_names) for spec in candidates):
        if multiprocessors is None and memory_bytes is None:
            return None
        matches = [spec for spec in matches if matches_memory(spec, memory_bytes)]
    return matches[0] if len(matches) == 1 else None


def named_device(name: str) -> DeviceSpec:
    """The device that a user names: a row or a driver's name, or a part of only one of them."""
    wanted = name.strip().casefold()
    by_name = {spec.name.casefold(): spec for spec in known_devices()}
    if wanted in by_name:
        return by_name[wanted]
    found = _called(wanted)
    if not found and wanted:
        words = wanted.split()
        found = tuple(
            spec for row, spec in by_name.items() if all(word in row.split() for word in words)
        ) or tuple(spec for row, spec in by_name.items() if wanted in row)
    if len(found) == 1:
        return found[0]
    if found:
        near = [spec.name for spec in found]
        raise UsageError(
            f"several devices are called {name!r}.", hint=f"Choose one: {', '.join(near)}."
        )
    from difflib import get_close_matches

    near = [by_name[row].name for row in get_close_matches(wanted, by_name, n=5, cutoff=0.4)]
    raise UsageError(
        f"there is no device called {name!r} in the hardware table.",
        hint=f"Similar names: {', '.join(near)}."
        if near
        else f"Examples: {', '.join(spec.name for spec in known_devices()[-3:])}.",
    )


def known_devices() -> tuple[DeviceSpec, ...]:
    """All rows of the table."""
    return tuple(map(_spec, _table()[1]))


@lru_cache(maxsize=64)
def _called(name: str) -> tuple[DeviceSpec, ...]:
    """The devices that drivers call by a name, in lower case."""
    rows = [row for row, text in _table()[1].items() if f'"{name}"' in text.casefold()]
    return tuple(
        spec
        for spec in map(_spec, rows)
        if name in map(str.casefold, (*spec.aliases, *spec.shared_names))
    )


@cache
def _table() -> tuple[dict[str, Any], Mapping[str, str]]:
    """What stands before the rows of the table, and the text of each, by name: few are needed."""
    shared, *rows = _ROW.split(_TABLE.read_text(encoding="utf-8"))
    texts = {
        name: f'vendor = "{vendor}"{text}'
        for vendor, name, text in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
    }
    return parse(shared), texts


@cache
def _row(name: str) -> dict[str, Any]:
    """A row with what it inherits."""
    row = parse(_table()[1][name])
    parent = _row(row["inherits"]) if "inherits" in row else {}
    dropped = {"aliases", "shared_names", "is_export_variant"}
    if "memory_gib" in row or "memory_gb" in row:
        dropped |= {"memory_gib", "memory_gb"}
    if "link" in row:
        dropped |= {"link_bandwidth", "direct_links"}
    return {key: value for key, value in parent.items() if key not in dropped} | row


@cache
def _spec(name: str) -> DeviceSpec:
    row, shared = _row(name), _table()[0]
    link = _host_link(row, shared["host_link"])
    host_link = shared["host_link"].get(link, {})
    measured = shared["achievable"][row.get("achievable", "default")]
    pcie = host_link.get("link_bandwidth") if row.get("link") == "pcie" else None
    memory = row["memory_gib"] * _GIB if "memory_gib" in row else row["memory_gb"] * 10**9
    return DeviceSpec(
        name=name,
        vendor=row["vendor"],
        kind=row.get("kind", "gpu"),
        architecture=row.get("architecture", ""),
        multiprocessors=row.get("multiprocessors"),
        peaks=Peaks(
            tensor=MappingProxyType(row.get("tensor", {})),
            vector=MappingProxyType(row.get("vector", {})),
            memory_bandwidth_bytes_per_s=row.get("memory_bandwidth"),
            achievable=measured["factor"],
            overlapped_writes=measured.get("overlapped_writes", 0.0),
        ),
        memory_bytes=memory,
        link=row.get("link", ""),
        link_bandwidth_bytes_per_s=row.get("link_bandwidth", pcie),
        direct_links=row.get("direct_links"),
        host_link=link if host_link else "",
        host_link_bandwidth_bytes_per_s=host_link.get("bandwidth"),
        aliases=tuple(row.get("aliases", ())),
        shared_names=tuple(row.get("shared_names", ())),
        source=row["source"],
        achievable_source=measured["source"],
        host_link_source=host_link.get("source", ""),
        is_export_variant=row.get("is_export_variant", False),
    )


def _host_link(row: dict[str, Any], host_links: dict[str, dict[str, Any]]) -> str:
    """The link to the host that a row names, or that devices of its architecture have."""
    if "host_link" in row:
        return str(row["host_link"])
    architecture = row.get("architecture", "")
    known = (name for name, link in host_links.items() if architecture in link["architectures"])
    return next(known, "")


def _matches_multiprocessors(spec: DeviceSpec, multiprocessors: int | None) -> bool:
    known = multiprocessors is not None and spec.multiprocessors is not None
    return not known or multiprocessors == spec.multiprocessors


def matches_memory(spec: DeviceSpec, memory_bytes: int | None) -> bool:
    """Whether a device of a row may report this size; true if either is unknown."""
    if memory_bytes is None or spec.memory_bytes is None:
        return True
    return _MIN_MEMORY_SHARE <= memory_bytes / spec.memory_bytes <= _MAX_MEMORY_SHARE
