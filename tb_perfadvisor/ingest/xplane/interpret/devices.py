"""Devices as their planes describe them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from tb_perfadvisor.ingest.xplane.decode.metadata import Value
from tb_perfadvisor.ingest.xplane.decode.planes import Plane
from tb_perfadvisor.trace import Device

_PLANE: Final = re.compile(r"/device:(?!CPU\b)([^:]+)(?::(.*))?$")
_NUMBERED: Final = re.compile(r"(\d{1,6})(?: (.*))?$")
# Whose numbers count where two types of device have the same: allocators refer to these.
_FIRST_TYPES: Final = ("GPU", "TPU")

# GPU planes carry no product name. Vendor, compute capability and number of multiprocessors
# tell these apart; the names are those that the vendors' drivers report. Where memory tells two
# products apart, the number before the name is its least size in GiB. Chips that these do not
# tell apart and whose peaks differ (L40 and L40S, MI350X and MI355X) are left out: never a guess.
_GPU_NAMES: Final[dict[tuple[str, int, int, int], tuple[tuple[int, str], ...]]] = {
    ("NVIDIA", 6, 0, 56): ((0, "Tesla P100-PCIE-16GB"),),
    ("NVIDIA", 7, 0, 80): ((24, "Tesla V100-SXM2-32GB"), (0, "Tesla V100-SXM2-16GB")),
    ("NVIDIA", 7, 5, 40): ((0, "Tesla T4"),),
    ("NVIDIA", 8, 0, 108): ((48, "NVIDIA A100-SXM4-80GB"), (0, "NVIDIA A100-SXM4-40GB")),
    ("NVIDIA", 8, 6, 80): ((0, "NVIDIA A10G"),),
    ("NVIDIA", 8, 6, 72): ((0, "NVIDIA A10"),),
    ("NVIDIA", 8, 9, 58): ((0, "NVIDIA L4"),),
    ("NVIDIA", 8, 9, 128): ((0, "NVIDIA GeForce RTX 4090"),),
    ("NVIDIA", 9, 0, 132): (
        (120, "NVIDIA H200"),
        (90, "NVIDIA GH200 480GB"),
        (0, "NVIDIA H100 80GB HBM3"),
    ),
    ("NVIDIA", 9, 0, 114): ((0, "NVIDIA H100 PCIe"),),
    ("NVIDIA", 10, 0, 148): ((0, "NVIDIA B200"),),
    ("AMD", 9, 4, 304): ((230, "AMD Instinct MI325X"), (0, "AMD Instinct MI300X")),
    ("AMD", 9, 0, 104): ((0, "AMD Instinct MI210"),),
    ("AMD", 9, 0, 110): ((0, "AMD Instinct MI250X"),),
}


class Place(Struct, frozen=True):
    """Where a device's plane belongs."""

    type: str
    """In capitals: GPU, TPU, or what a plug-in calls its device."""
    index: int
    """Of the device, unique in its file."""
    part: str
    """Of the chip (`SparseCore 1`), or what else the plane is of; empty for the device itself."""


def place_devices(names: Iterable[str]) -> dict[str, Place]:
    """Tell the planes of devices, by name: `/device:TPU:0 SparseCore 1`, `/device:XYZ:0`.

    A plane without a number (`/device:CUSTOM:Megascale Trace`) is something beside the devices,
    unless there are no others: then each is a device.
    """
    numbered: dict[str, tuple[str, int, str]] = {}
    rest: dict[str, tuple[str, str]] = {}
    for name in names:
        match = _PLANE.match(name)
        if match is None:
            continue
        type_, label = match[1].upper(), match[2] or ""
        number = _NUMBERED.match(label)
        if number is None:
            rest[name] = (type_, label or type_)
        else:
            numbered[name] = (type_, int(number[1]), number[2] or "")
    known = sorted({key[:2] for key in numbered.values()}, key=_rank)
    index_of: dict[tuple[str, int], int] = {}
    for key in known:
        taken = set(index_of.values())
        index_of[key] = key[1] if key[1] not in taken else max(taken) + 1
    places = {
        name: Place(type_, index_of[type_, number], part)
        for name, (type_, number, part) in numbered.items()
    }
    for place, (name, (type_, label)) in enumerate(rest.items()):
        beside = min(index_of.values(), default=None)
        places[name] = Place(type_, place, "") if beside is None else Place(type_, beside, label)
    return places


def _rank(device: tuple[str, int]) -> tuple[bool, str, int]:
    type_, number = device
    return type_ not in _FIRST_TYPES, type_, number


def describe_device(plane: Plane, place: Place, memory_limit: int | None) -> Device | None:
    """The device of a plane; None for planes of a part of one.

    Args:
        plane: A device's plane.
        place: Where it belongs.
        memory_limit: The limit of the device's allocator, when it was traced.
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
    bandwidth = _number(stats.get("memory_bandwidth"))
    kind: Literal["gpu", "other"] = "gpu" if place.type == "GPU" else "other"
    return Device(
        index=place.index,
        name=_gpu_name(vendor, stats) if kind == "gpu" else f"{place.type} device",
        kind=kind,
        memory_bytes=_whole(stats.get("memory_size")) or memory_limit,
        multiprocessors=_whole(stats.get("core_count")),
        # ROCm's tracer forgets that memory moves data twice per clock: it reports half.
        reported_bandwidth_bytes_per_s=bandwidth if vendor == "NVIDIA" and kind == "gpu" else None,
    )


def _gpu_name(vendor: str, stats: dict[str, Value]) -> str:
    major = _whole(stats.get("compute_cap_major"))
    minor = _whole(stats.get("compute_cap_minor"), least=0)
    cores = _whole(stats.get("core_count"))
    if major is None or minor is None:
        return f"{vendor} GPU" if "device_vendor" in stats else "GPU"
    memory_gib = (_whole(stats.get("memory_size")) or 0) / 2**30
    for least_gib, name in _GPU_NAMES.get((vendor, major, minor, cores or 0), ()):
        if memory_gib >= least_gib:
            return name
    return f"{vendor} GPU, compute capability {major}.{minor}, {cores} multiprocessors"


def _number(value: Value | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e30 else None


def _whole(value: Value | None, least: int = 1) -> int | None:
    return int(value) if isinstance(value, (int, float)) and least <= value < 2**62 else None


def _matrix_unit_use(plane: Plane) -> float | None:
    """The mean of the counter `MXU`, weighted by time; None where it was not sampled."""
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
