"""Recognizes a device: by its name, or else by its other properties or its kernels.

What the names of kernels say about the GPU that they run on.

Libraries name kernels after the architecture that they were written for: `volta_sgemm_128x64_nt`,
`sm90_xmma_gemm_…`. NVIDIA's newer GPUs also run kernels for older ones, so such a name gives the
oldest architecture that the device can have. AMD's names give the architecture itself.

ROCm leaves the name blank where a file of the driver is missing, XPlanes never name GPUs, and old
PyTorch versions describe no devices at all. Several boards may have the same chip. Then the figures
that they share are known, and those that differ are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.hardware.lookup import (
    DeviceSpec,
    Peaks,
    capability_of_target,
    find_device,
    known_devices,
    matches_memory,
)
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Device
from tb_perfadvisor.trace.names import short_name

_GENERATIONS: Final = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
}
"""The first compute capability of each generation of NVIDIA's GPUs with tensor cores."""

_AMD: Final = regex(r"_ISA([0-9]{2}[0-9a-fA-F])(?![0-9a-zA-Z])|gfx([0-9]{2}[0-9a-f])(?![0-9a-z])")
_NVIDIA: Final = (
    (regex(r"(?<![a-z])volta_|[hs]884"), (7, 0)),
    (regex(r"(?<![a-z])turing_"), (7, 5)),
    (regex(r"(?<![a-z])ampere_"), (8, 0)),
    (regex(r"^nvjet_(?!sm)"), (9, 0)),
)
# Two digits, or three from 100 on: `sm80_xmma_`, `cutlass_75_`, `arch::Sm90`, `nvjet_sm100_`.
_NUMBERED: Final = regex(r"(?<![A-Za-z])(?:[sS][mM]_?|cutlass_)((?:[7-9]\d|1[0-2]\d))(?!\d)")


class BuiltFor(Struct, frozen=True):
    """The newest architecture that some kernels were written for."""

    vendor: str
    capability: tuple[int, int]
    """NVIDIA: the device has this compute capability or a higher one. AMD: exactly this one."""
    generation: str
    """NVIDIA's name of the generation, or AMD's target."""
    kernel: str
    """A kernel that shows it."""


def built_for(kernel_names: Iterable[str]) -> BuiltFor | None:
    """The newest architecture in the names of kernels; None if they name none."""
    newest: BuiltFor | None = None
    for name in kernel_names:
        found = _of_name(name)
        if found is not None and (newest is None or found.capability > newest.capability):
            newest = found
    return newest


def _of_name(name: str) -> BuiltFor | None:
    amd = _AMD.search(name)
    if amd is not None:
        target = "gfx" + (amd[1] or amd[2]).lower()
        return BuiltFor("amd", capability_of_target(target), target, name)
    capabilities = [capability for pattern, capability in _NVIDIA if pattern.search(name)]
    capabilities += [(int(digits[:-1]), int(digits[-1])) for digits in _NUMBERED.findall(name)]
    if not capabilities:
        return None
    newest = max(capabilities)
    generation = [label for first, label in _GENERATIONS.items() if first <= newest][-1]
    return BuiltFor("nvidia", newest, generation, name)


T = TypeVar("T")

# Names that say at most the vendor.
_GENERIC: Final = regex(
    r"(?i)(?:nvidia|amd radeon|amd|radeon)?\s*(?:graphics(?: device)?|gpu|device)?$"
)
_BRANDS: Final = {
    "nvidia": regex(r"(?i)nvidia|tesla|geforce|quadro"),
    "amd": regex(r"(?i)\bamd\b|radeon|instinct"),
    "intel": regex(r"(?i)\bintel\b"),
}
_VENDORS: Final = {"nvidia": "NVIDIA", "amd": "AMD", "google": "Google", "intel": "Intel"}

_ALIKE: Final = 1.2
"""Boards of one chip have different power limits, and therefore clocks that differ by up to 18 %
(V100 PCIe and V100S, H100 NVL and SXM). Below this ratio, the lowest figure of the candidates
stands for all."""
_ALIKE_BANDWIDTH: Final = 1.35
"""One chip may have two generations of memory: a V100S has 26 % more bandwidth than a V100, an A100
with 80 GB 31 % more than one with 40."""
_NEARLY_EQUAL: Final = 0.02
"""Clocks and bandwidths in data sheets are rounded by less."""

# FLOP per clock of a multiprocessor's vector units in 32 bits, to derive clocks from peaks.
_VECTOR_FLOP: Final = {
    **dict.fromkeys(("6.0", "7.0", "7.5", "8.0", "gfx908", "gfx90a"), 128),
    **dict.fromkeys(("8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"), 256),
    **dict.fromkeys(("gfx942", "gfx950"), 256),
}


class Identity(Struct, frozen=True):
    """What a device is."""

    name: str
    """To show to users; empty if nothing is known."""
    vendor: str
    architecture: str
    """Compute capability (NVIDIA) or gfx target (AMD); empty if unknown."""
    spec: DeviceSpec | None
    """Its figures; those in which the candidates differ are missing."""
    evidence: str = ""
    """What it was recognized by; empty if the profile names it."""
    candidates: tuple[str, ...] = ()
    """The rows of the table that fit, if there are several."""


def identify(device: Device, kernel_names: Callable[[], Iterable[str]] = tuple) -> Identity:
    """Find out what a device is."""
    spec = find_device(
        device.name, multiprocessors=device.multiprocessors, memory_bytes=device.memory_bytes
    )
    if spec is not None:
        return Identity(device.name, spec.vendor, spec.architecture, spec)
    if device.kind != "gpu" or _GENERIC.match(device.name.strip()) is None:
        return Identity(device.name, _vendor(device), "", None)
    if device.compute_capability:
        return _by_properties(device)
    hint = built_for(kernel_names())
    return _by_kernels(device, hint) if hint else Identity(device.name, _vendor(device), "", None)


def _vendor(device: Device) -> str:
    brands = (vendor for vendor, names in _BRANDS.items() if names.search(device.name))
    return device.vendor or next(brands, "")


def _by_properties(device: Device) -> Identity:
    rows = [
        spec
        for spec in known_devices()
        if device.vendor in ("", spec.vendor)
        and device.compute_capability == _text(spec.compute_capability)
        and device.multiprocessors == spec.multiprocessors
        and matches_memory(spec, device.memory_bytes)
        and not spec.is_export_variant
    ]
    if device.reported_bandwidth_bytes_per_s is not None:
        rows = _nearest(rows, _bandwidths(rows), device.reported_bandwidth_bytes_per_s)
    if device.clock_hz is not None:
        rows = _nearest(rows, [_clock_hz(spec) for spec in rows], device.clock_hz)
    if not rows:
        # The properties are all that can be shown.
        parts = [_VENDORS.get(device.vendor, ""), "GPU"]
        name = " ".join(part for part in parts if part)
        return Identity(f"{name}, {_properties(device)}", device.vendor, "", None)
    memory = device.memory_bytes
    size = f", {memory / 2**30:.0f} GiB of memory" if memory is not None else ""
    return _identity(rows, f"{_properties(device)}{size}")


def _text(capability: tuple[int, int] | None) -> str:
    return "" if capability is None else "{}.{}".format(*capability)


def _properties(device: Device) -> str:
    parts = [f"compute capability {device.compute_capability}"]
    if device.multiprocessors is not None:
        parts.append(f"{device.multiprocessors} multiprocessors")
    return ", ".join(parts)


def _by_kernels(device: Device, hint: BuiltFor) -> Identity:
    evidence = f"kernels written for {hint.generation} ({short_name(hint.kernel)})"
    rows: Sequence[DeviceSpec] = ()
    if device.multiprocessors is not None:
        evidence += f", {device.multiprocessors} multiprocessors"
        rows = [
            spec
            for spec in known_devices()
            if spec.multiprocessors == device.multiprocessors
            and spec.vendor == hint.vendor
            and _may_run(spec, hint)
            and not spec.is_export_variant
        ]
        # Libraries prefer kernels for the device's own generation.
        oldest = min((_major(spec) for spec in rows), default=0)
        rows = [spec for spec in rows if _major(spec) == oldest]
    if rows:
        return _identity(rows, evidence)
    newer = "" if hint.vendor == "amd" else " or newer"
    name = f"{_VENDORS[hint.vendor]} GPU ({hint.generation}{newer})"
    return Identity(name, hint.vendor, "", None, evidence)


def _may_run(spec: DeviceSpec, hint: BuiltFor) -> bool:
    if hint.vendor == "amd":
        return spec.architecture == hint.generation
    return spec.compute_capability is not None and spec.compute_capability >= hint.capability


def _major(spec: DeviceSpec) -> int:
    return spec.compute_capability[0] if spec.compute_capability is not None else 0


def _bandwidths(rows: Sequence[DeviceSpec]) -> list[float | None]:
    return [spec.peaks.memory_bandwidth_bytes_per_s for spec in rows]


def _clock_hz(spec: DeviceSpec) -> float | None:
    """The highest clock, which is what data sheets derive peaks from."""
    rate, per_clock = spec.peaks.vector.get("fp32"), _VECTOR_FLOP.get(spec.architecture)
    if rate is None or per_clock is None or spec.multiprocessors is None:
        return None
    return rate / (spec.multiprocessors * per_clock)


def _nearest(
    rows: Sequence[DeviceSpec], values: Sequence[float | None], reported: float
) -> list[DeviceSpec]:
    """The rows whose values are nearest to a reported one, and those without a value."""
    distances = [None if value is None else abs(value / reported - 1) for value in values]
    least = min((distance for distance in distances if distance is not None), default=0.0)
    return [
        spec
        for spec, distance in zip(rows, distances, strict=True)
        if distance is None or distance <= least + _NEARLY_EQUAL
    ]


# --- several candidates -----------------------------------------------------------------------


def _identity(rows: Sequence[DeviceSpec], evidence: str) -> Identity:
    spec = shared(rows)
    names = tuple(row.name for row in rows)
    return Identity(
        _drivers_name(spec) if len(rows) == 1 else spec.name,
        spec.vendor,
        spec.architecture,
        spec,
        evidence,
        names if len(names) > 1 else (),
    )


def _drivers_name(spec: DeviceSpec) -> str:
    """The name that a driver reports, with the vendor if the table has it so."""
    vendor = _VENDORS[spec.vendor]
    full = (alias for alias in spec.aliases if alias.startswith(vendor))
    return (*full, *spec.aliases, spec.name)[0]


def shared(rows: Sequence[DeviceSpec]) -> DeviceSpec:
    """What several devices have in common; peaks that are alike count as the lowest."""
    first = rows[0]
    if len(rows) == 1:
        return first
    peaks = [row.peaks for row in rows]
    return replace(
        first,
        name=_common_name(rows),
        architecture=_same([row.architecture for row in rows]) or "",
        peaks=Peaks(
            tensor=_alike([peak.tensor for peak in peaks]),
            vector=_alike([peak.vector for peak in peaks]),
            memory_bandwidth_bytes_per_s=_lowest(
                [peak.memory_bandwidth_bytes_per_s for peak in peaks], _ALIKE_BANDWIDTH
            ),
            achievable=min(peak.achievable for peak in peaks),
        ),
        memory_bytes=_same([row.memory_bytes for row in rows]),
        link=_same([row.link for row in rows]) or "",
        link_bandwidth_bytes_per_s=_same([row.link_bandwidth_bytes_per_s for row in rows]),
        direct_links=_same([row.direct_links for row in rows]),
        host_link=_same([row.host_link for row in rows]) or "",
        host_link_bandwidth_bytes_per_s=_same(
            [row.host_link_bandwidth_bytes_per_s for row in rows]
        ),
        aliases=(),
        shared_names=(),
    )


def _same(values: Sequence[T]) -> T | None:
    return values[0] if all(value == values[0] for value in values) else None


def _alike(rates: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The lowest rate of each precision that all have at similar rates."""
    lowest = {form: _lowest([rate.get(form) for rate in rates]) for form in rates[0]}
    return MappingProxyType({form: rate for form, rate in lowest.items() if rate is not None})


def _lowest(values: Sequence[float | None], alike: float = _ALIKE) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or max(known) > alike * min(known):
        return None
    return min(known)


# Form factors and memory sizes, which tell boards of one chip apart.
_BOARD: Final = regex(r" (?:SXM\d?|PCIe|NVL|DGX Station|\d+GB|\(one of two \w+\))(?= |$)")


def _common_name(rows: Sequence[DeviceSpec]) -> str:
    """The chips of some boards: `NVIDIA V100 or V100S`."""
    *others, last = dict.fromkeys(_BOARD.sub("", row.name) for row in rows)
    chips = f"{', '.join(others)} or {last}" if others else last
    return f"{_VENDORS[rows[0].vendor]} {chips}"
