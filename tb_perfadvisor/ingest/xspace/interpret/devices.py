"""Devices, their clocks and derived lines, and the framework.

Corrects the times of a TPU's operations by the device's counter.

Each operation has a time on the profile's clock, and one on the device's counter
(`device_offset_ps`, `device_duration_ps`). The profile's clock is adjusted now and then to follow
the host. An adjustment during an operation stretches it: in XProf's `tpu_inference_2`, a copy of
194 ms appears as 299 ms. If the two disagree, the counter is right (XProf's own tools use it), and
the other lines of the plane are shifted accordingly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Line
from tb_perfadvisor.ingest.xspace.decode.space import UNUSED_LINES, Plane
from tb_perfadvisor.ingest.xspace.decode.stats import Value
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, Device, EventKind, Framework, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64

_PLANE: Final = regex(r"/device:(?!CPU\b)([^:]+)(?::(.*))?$")
_NUMBERED: Final = regex(r"(\d{1,6})(?: (.*))?$")
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


def place_devices(
    names: Iterable[str], without_lines: Collection[str] = ()
) -> dict[str, PlaneDevice]:
    """Find the planes of devices by name: `/device:TPU:0 SparseCore 1`, `/device:XYZ:0`.

    Planes without a number (`/device:CUSTOM:Megascale Trace`) are not devices, unless no plane has
    a number: then each plane is a device if it has lines. Where libtpu is installed, each profile
    has that plane, empty on machines without TPUs.
    """
    numbered: dict[str, tuple[str, int, str]] = {}
    unnumbered: dict[str, tuple[str, str]] = {}
    for name in names:
        match = _PLANE.match(name)
        if match is None:
            continue
        type_, label = match[1].upper(), match[2] or ""
        number = _NUMBERED.match(label)
        if number is None and name not in without_lines:
            unnumbered[name] = (type_, label or type_)
        elif number is not None:
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

    `memory_limit` is that of the device's allocator, if it was traced.
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


# Rounding and drift are much smaller. Below this difference, the profile's clock is better, because
# host events use it too.
_MAX_ERROR_SHARE = 0.01


class Correction(Struct, frozen=True):
    """The shift of each time of a plane."""

    at_ns: NDArray[np.float64]
    """Sorted."""
    shift_ns: NDArray[np.float64]

    def apply(self, line: Line) -> Line:
        """Shift a line that has no times on the counter."""
        start = line.start_ns + self._shift(line.start_ns)
        end = line.start_ns + line.duration_ns
        moved_end = np.maximum(end + self._shift(end), start)
        return replace(line, start_ns=start, duration_ns=moved_end - start)

    def _shift(self, at_ns: Int64) -> Int64:
        return np.rint(np.interp(at_ns, self.at_ns, self.shift_ns)).astype(np.int64)


def on_device_clock(plane: Plane) -> tuple[tuple[Line, ...], bool]:
    """The lines of a plane, with times of the device's counter if the profile's clock is distorted.

    Returns the lines, and whether they were shifted.
    """
    operations = next((line for line in plane.lines if line.name == "XLA Ops"), None)
    if operations is None or not len(operations):
        return plane.lines, False
    offset_ps = operations.numbers("device_offset_ps")
    duration_ps = operations.numbers("device_duration_ps")
    if (offset_ps < 0).any() or (duration_ps < 0).any() or (offset_ps > 2**61).any():
        return plane.lines, False
    start = offset_ps // 1000
    end = (offset_ps + np.minimum(duration_ps, 2**61)) // 1000
    error = np.abs(operations.duration_ns - (end - start)).sum(dtype=np.float64)
    if error <= _MAX_ERROR_SHARE * (end - start).sum(dtype=np.float64):
        return plane.lines, False
    apart = int(np.median(operations.start_ns - start))
    moved = replace(operations, start_ns=start + apart, duration_ns=end - start)
    knots = np.concatenate([operations.start_ns, operations.start_ns + operations.duration_ns])
    shifts = np.concatenate([start, end]) + apart - knots
    order = np.argsort(knots, kind="stable")
    correction = Correction(knots[order].astype(np.float64), shifts[order].astype(np.float64))
    lines = tuple(
        moved if line is operations else correction.apply(line) if len(line) else line
        for line in plane.lines
    )
    return lines, True


# In this order, because programs of the former may import the latter.
_VERSIONS: Final[dict[Framework, str]] = {
    "pytorch": "torch_xla_version",
    "jax": "jax_version",
    "tensorflow": "tf_version",
}
_PYTORCH: Final = (
    *("SyncTensorsGraph", "XLAGraphExecutor", "IrValueTensorToXlaTensor", "torch_xla"),
    *("StepMarker", "XrtComputationClient", "PjRtComputationClient"),
)
_JAX: Final = regex(r"PjitFunction\(|ExecuteReplicated\.|jit_\w+[:(]|\$pxla\.py|py_xla_")
_TENSORFLOW: Final = regex(
    r"EagerExecute|ExecutorState::|TFE_Py_|tf\.|KernelAndDeviceFunc::|IteratorGetNext"
)
# Longer names are HLO texts, which do not tell the framework.
_MAX_NAME_CHARS: Final = 300


class Recorder(Struct, frozen=True):
    """The recorder of a profile and its options."""

    framework: Framework
    producer: str
    version: str
    has_stacks: bool
    has_memory: bool | None
    """None if nothing was allocated, or by an allocator that records nothing."""


class FrameworkClues:
    """Versions and event names that reveal the framework, collected plane by plane."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}
        self._host_names: set[str] = set()
        self._device_names: set[str] = set()

    def add(self, plane: Plane) -> None:
        """Add the versions or event names of a plane."""
        if plane.name == "/host:metadata":
            self._versions = {
                name: value
                for name, value in plane.stats.items()
                if name.endswith("_version") and isinstance(value, str)
            }
            return
        for prefix, names in (("/host:", self._host_names), ("/device:", self._device_names)):
            if plane.name.startswith(prefix):
                names.update(name for name in plane.metadata.names if len(name) < _MAX_NAME_CHARS)

    def recording(self) -> Recorder:
        """Determine the framework by versions, or else by event names."""
        versions = self._versions
        framework = _framework(versions, self._host_names | self._device_names)
        version = versions.get(_VERSIONS.get(framework, ""), "")
        producer = ", ".join(
            f"{name.removesuffix('_version')} {value}" for name, value in sorted(versions.items())
        )
        return Recorder(
            framework=framework,
            producer=producer,
            version=version,
            has_stacks=any(name.startswith("$") for name in self._host_names),
            has_memory="MemoryAllocation" in self._host_names or None,
        )


def _framework(versions: dict[str, str], names: set[str]) -> Framework:
    for framework, key in _VERSIONS.items():
        if key in versions:
            return framework
    joined = "\n".join(names)
    if any(word in joined for word in _PYTORCH):
        return "pytorch"
    # JAX programs often use tf.data, so check for JAX first.
    if any(_JAX.match(name) for name in names):
        return "jax"
    return "tensorflow" if any(_TENSORFLOW.match(name) for name in names) else "unknown"


_KINDS: Final = {
    "XLA Modules": EventKind.DEVICE_MODULE,
    "XLA Ops": EventKind.DEVICE_OP,
    "Steps": EventKind.DEVICE_STEP,
    "Async XLA Ops": EventKind.DEVICE_ASYNC,
    "XLA Async Ops": EventKind.DEVICE_ASYNC,
}
# Sampled hardware counters, which have no duration.
_COUNTERS: Final = "_counters_"
_DERIVED: Final = frozenset(
    {
        *_KINDS,
        *UNUSED_LINES,
        *("XLA TraceMe", "Tensor Core", "Overlay", _COUNTERS),
    }
)
_TRAILING_NUMBER: Final = regex(r"(?:.*\D)?(\d{1,9})$")


def add_derived_line(
    assembler: Assembler, line: Line, device: int, launches: Int64 | int = -1
) -> Int32:
    """Add a line that covers or repeats real work.

    `launches` has what links each event to the call that launched it; -1 for nothing. Returns the
    provisional ids of the events.
    """
    if not len(line) or line.name == _COUNTERS:
        return np.empty(0, dtype=np.int32)
    kind = _KINDS.get(line.name, EventKind.DEVICE_ANNOTATION)
    step: Int64 = np.full(len(line), -1, dtype=np.int64)
    if kind == EventKind.DEVICE_STEP:
        step = step_numbers(line)
    # Only the names that occur here: a plane may have many lines and many names.
    used = distinct(line.row)
    labels = [line.names[row] for row in used.tolist()]
    if kind in (EventKind.DEVICE_OP, EventKind.DEVICE_ASYNC):
        # The full name is the HLO text.
        displays = [line.metadata.displays[row] for row in used.tolist()]
        labels = [display or name for display, name in zip(displays, labels, strict=True)]
    track = assembler.add_track(
        TrackKind.DEVICE_LINE, thread=line.id, device=device, label=line.name
    )
    return assembler.add_events(
        line.start_ns,
        line.duration_ns,
        kind=kind,
        name=assembler.intern_all(labels)[np.searchsorted(used, line.row)],
        track=track,
        step=step,
        correlation=launches,
    )


def is_derived(name: str) -> bool:
    """Whether a line is known to cover or repeat real work, on any device."""
    return name in _DERIVED


def step_numbers(line: Line) -> Int64:
    """The number of each event on a `Steps` line, from its stat or else its name."""
    by_name = np.full(len(line.names), -1, dtype=np.int64)
    for row in distinct(line.row).tolist():
        match = _TRAILING_NUMBER.match(line.names[row])
        if match:
            by_name[row] = int(match[1])
    steps = by_name[line.row]
    for stat in ("group_id", "step_num"):
        numbers = line.numbers(stat)
        steps = np.where((numbers >= 0) & (numbers < 2**31), numbers, steps)
    return steps
