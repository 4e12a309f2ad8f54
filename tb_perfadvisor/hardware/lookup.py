"""Finds the table row of a device that a profile names. Never guesses."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.hardware.peaks import DeviceSpec, Peaks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = Path(__file__).with_name("devices.toml")
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
    candidates = _by_name().get(wanted, ())
    if not candidates:
        return None
    matches = [spec for spec in candidates if _matches_multiprocessors(spec, multiprocessors)]
    if wanted in _shared_names():
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
    found: tuple[DeviceSpec, ...] = _by_name().get(wanted, ())
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
    near = [by_name[row].name for row in get_close_matches(wanted, by_name, n=5, cutoff=0.4)]
    raise UsageError(
        f"there is no device called {name!r} in the hardware table.",
        hint=f"Similar names: {', '.join(near)}."
        if near
        else f"Examples: {', '.join(spec.name for spec in known_devices()[-3:])}.",
    )


@lru_cache(maxsize=1)
def known_devices() -> tuple[DeviceSpec, ...]:
    """All rows of the table."""
    document = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    rows: dict[str, dict[str, Any]] = {}
    for row in document["device"]:
        rows[row["name"]] = {**_inheritable(rows, row), **row}
    links = {link["name"]: link for link in document["host_link"]}
    return tuple(_spec(row, document["achievable"], links) for row in rows.values())


def _inheritable(rows: dict[str, dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    parent = rows[row["inherits"]] if "inherits" in row else {}
    dropped = {"aliases", "shared_names", "is_export_variant"}
    if "memory_gib" in row or "memory_gb" in row:
        dropped |= {"memory_gib", "memory_gb"}
    if "link" in row:
        dropped |= {"link_bandwidth", "direct_links"}
    return {key: value for key, value in parent.items() if key not in dropped}


def _spec(
    row: dict[str, Any],
    achievable: dict[str, dict[str, Any]],
    host_links: dict[str, dict[str, Any]],
) -> DeviceSpec:
    host_link = host_links.get(_host_link(row, host_links), {})
    measured = achievable[row.get("achievable", "default")]
    pcie = host_link.get("link_bandwidth") if row.get("link") == "pcie" else None
    memory = row["memory_gib"] * _GIB if "memory_gib" in row else row["memory_gb"] * 10**9
    return DeviceSpec(
        name=row["name"],
        vendor=row.get("vendor", "nvidia"),
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
        host_link=host_link.get("name", ""),
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


@lru_cache(maxsize=1)
def _by_name() -> dict[str, tuple[DeviceSpec, ...]]:
    by_name: dict[str, tuple[DeviceSpec, ...]] = {}
    for spec in known_devices():
        for name in {alias.casefold() for alias in (*spec.aliases, *spec.shared_names)}:
            by_name[name] = (*by_name.get(name, ()), spec)
    return by_name


@lru_cache(maxsize=1)
def _shared_names() -> frozenset[str]:
    return frozenset(name.casefold() for spec in known_devices() for name in spec.shared_names)


def _matches_multiprocessors(spec: DeviceSpec, multiprocessors: int | None) -> bool:
    known = multiprocessors is not None and spec.multiprocessors is not None
    return not known or multiprocessors == spec.multiprocessors


def matches_memory(spec: DeviceSpec, memory_bytes: int | None) -> bool:
    """Whether a device of a row may report this size; true if either is unknown."""
    if memory_bytes is None or spec.memory_bytes is None:
        return True
    return _MIN_MEMORY_SHARE <= memory_bytes / spec.memory_bytes <= _MAX_MEMORY_SHARE
