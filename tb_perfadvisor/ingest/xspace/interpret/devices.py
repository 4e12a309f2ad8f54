"""Describes devices from their planes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.xspace.decode.metadata import Value
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace import Device

_PLANE: Final = re.compile(r"/device:(?!CPU\b)([^:]+)(?::(.*))?$")
_NUMBERED: Final = re.compile(r"(\d{1,6})(?: (.*))?$")
# If two types of devices have the same number, these keep it, because allocators refer to them.
_FIRST_TYPES: Final = ("GPU", "TPU")


class PlaneDevice(Struct, frozen=True):
    """The device of a plane."""

    type: str
    """In capitals: GPU, TPU, or the type of a plug-in."""
    index: int
    """The device's index, unique in its file."""
    part: str
    """The part of the chip (`SparseCore 1`) or other label; empty for the device itself."""


def place_devices(names: Iterable[str]) -> dict[str, PlaneDevice]:
    """Find the planes of devices by name: `/device:TPU:0 SparseCore 1`, `/device:XYZ:0`.

    Planes without a number (`/device:CUSTOM:Megascale Trace`) are not devices, unless no plane has
    a number: then each plane is a device.
    """
    numbered: dict[str, tuple[str, int, str]] = {}
    unnumbered: dict[str, tuple[str, str]] = {}
    for name in names:
        match = _PLANE.match(name)
        if match is None:
            continue
        type_, label = match[1].upper(), match[2] or ""
        number = _NUMBERED.match(label)
        if number is None:
            unnumbered[name] = (type_, label or type_)
        else:
            numbered[name] = (type_, int(number[1]), number[2] or "")
    known = sorted({key[:2] for key in numbered.values()}, key=_rank)
    index_of: dict[tuple[str, int], int] = {}
    for key in known:
        taken = set(index_of.values())
        index_of[key] = key[1] if key[1] not in taken else max(taken) + 1
    places = {
        name: PlaneDevice(type_, index_of[type_, number], part)
        for name, (type_, number, part) in numbered.items()
    }
    for place, (name, (type_, label)) in enumerate(unnumbered.items()):
        first = min(index_of.values(), default=None)
        places[name] = (
            PlaneDevice(type_, place, "") if first is None else PlaneDevice(type_, first, label)
        )
    return places


def _rank(device: tuple[str, int]) -> tuple[bool, str, int]:
    type_, number = device
    return type_ not in _FIRST_TYPES, type_, number


def describe_device(plane: Plane, place: PlaneDevice, memory_limit: int | None) -> Device | None:
    """The device of a plane; None for planes of a part of a device.

    Args:
        plane: A device plane.
        place: The device of the plane.
        memory_limit: The limit of the device's allocator, if it was traced.
    """
    if place.part:
        return None
    stats = plane.stats
    if place.type == "TPU":
        teraflop = _number(stats.get("peak_teraflops_per_second"))
        gigabytes = _number(stats.get("peak_hbm_bw_gigabytes_per_second"))
        return Device(
            index=place.index,
            name=str(stats.get("device_type_string", "TPU")),
            kind="tpu",
            memory_bytes=_whole(stats.get("memory_size")) or memory_limit,
            reported_flop_per_s=teraflop * 1e12 if teraflop else None,
            reported_bandwidth_bytes_per_s=gigabytes * 1e9 if gigabytes else None,
            matrix_unit_use=_matrix_unit_use(plane),
        )
    vendor = str(stats.get("device_vendor", "NVIDIA")).upper()
    vendor = "AMD" if "AMD" in vendor else "NVIDIA" if "NVIDIA" in vendor else vendor
    bandwidth, clock_khz = _number(stats.get("memory_bandwidth")), _number(stats.get("clock_rate"))
    kind: Literal["gpu", "other"] = "gpu" if place.type == "GPU" else "other"
    capability = _compute_capability(stats)
    # Planes of GPUs have no product names.
    name = "" if capability else f"{vendor} GPU" if "device_vendor" in stats else "GPU"
    return Device(
        index=place.index,
        name=name if kind == "gpu" else f"{place.type} device",
        kind=kind,
        memory_bytes=_whole(stats.get("memory_size")) or memory_limit,
        multiprocessors=_whole(stats.get("core_count")),
        vendor=vendor.lower() if capability and vendor in ("AMD", "NVIDIA") else "",
        compute_capability=capability,
        clock_hz=clock_khz * 1e3 if clock_khz else None,
        # ROCm's tracer reports half, because it ignores that memory transfers twice per clock.
        reported_bandwidth_bytes_per_s=bandwidth if vendor == "NVIDIA" and kind == "gpu" else None,
    )


def _compute_capability(stats: dict[str, Value]) -> str:
    major = _whole(stats.get("compute_cap_major"))
    minor = _whole(stats.get("compute_cap_minor"), least=0)
    return "" if major is None or minor is None else f"{major}.{minor}"


def _number(value: Value | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e30 else None


def _whole(value: Value | None, least: int = 1) -> int | None:
    return int(value) if isinstance(value, (int, float)) and least <= value < 2**62 else None


def _matrix_unit_use(plane: Plane) -> float | None:
    """The mean of the counter `MXU`, weighted by time; None if it was not sampled."""
    for line in plane.lines:
        if line.name != "_counters_":
            continue
        is_unit = np.array([name == "MXU" for name in line.names], dtype=bool)[line.row]
        percent = line.floats("% util")
        is_unit &= (percent >= 0) & (percent <= 100)
        if is_unit.any():
            weight = np.maximum(line.duration_ns[is_unit], 1)
            return float(np.average(percent[is_unit], weights=weight) / 100)
    return None
