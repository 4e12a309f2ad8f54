"""Devices recognized by their properties, compared with a search through the whole table."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.hardware import identify
from tb_perfadvisor.hardware.identify import shared
from tb_perfadvisor.hardware.lookup import DeviceSpec, known_devices
from tb_perfadvisor.trace import Device
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)

# FLOP per clock of a multiprocessor in 32 bits, by NVIDIA's and AMD's documents.
PER_CLOCK = {
    **dict.fromkeys(("6.0", "7.0", "7.5", "8.0", "gfx908", "gfx90a"), 128),
    **dict.fromkeys(("8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1", "gfx942", "gfx950"), 256),
}
CAPABLE = [spec for spec in known_devices() if spec.compute_capability is not None]


def capability(spec: DeviceSpec) -> str:
    assert spec.compute_capability is not None
    return ".".join(map(str, spec.compute_capability))


def clock_hz(spec: DeviceSpec) -> float | None:
    rate, per_clock = spec.peaks.vector.get("fp32"), PER_CLOCK.get(spec.architecture)
    if rate is None or per_clock is None or spec.multiprocessors is None:
        return None
    return rate / (spec.multiprocessors * per_clock)


def nearest(
    rows: list[DeviceSpec], values: list[float | None], reported: float | None
) -> list[DeviceSpec]:
    """Rows whose value is as near as that of any, but for two hundredths, and unknown ones."""
    if reported is None:
        return rows
    far = [None if value is None else abs(value / reported - 1) for value in values]
    least = min((distance for distance in far if distance is not None), default=0.0)
    return [
        row
        for row, distance in zip(rows, far, strict=True)
        if distance is None or distance <= least + 0.02
    ]


@examples(60)
@given(randoms)
def test_devices_by_their_properties(random: Random) -> None:
    true = random.choice(CAPABLE)
    assert true.memory_bytes is not None
    share = random.choice((0.87, 0.89, 0.95, 1.0, 1.005, 1.02))
    memory = random.choice((None, round(share * true.memory_bytes)))
    bandwidth = true.peaks.memory_bandwidth_bytes_per_s
    factor = random.choice((0.9, 0.99, 1.0, 1.02))
    clock = clock_hz(true)
    device = Device(
        0,
        random.choice(("", "NVIDIA Graphics Device", "AMD Radeon Graphics")),
        "gpu",
        memory_bytes=memory,
        multiprocessors=true.multiprocessors,
        vendor=random.choice(("", true.vendor)),
        compute_capability=capability(true),
        clock_hz=None if clock is None or random.random() < 0.4 else factor * clock,
        reported_bandwidth_bytes_per_s=(
            None if bandwidth is None or random.random() < 0.4 else factor * bandwidth
        ),
    )
    rows = [
        spec
        for spec in CAPABLE
        if device.vendor in ("", spec.vendor)
        and capability(spec) == device.compute_capability
        and spec.multiprocessors == device.multiprocessors
        and not spec.is_export_variant
        and (memory is None or 0.88 <= memory / (spec.memory_bytes or 1) <= 1.01)
    ]
    bandwidths = [spec.peaks.memory_bandwidth_bytes_per_s for spec in rows]
    rows = nearest(rows, bandwidths, device.reported_bandwidth_bytes_per_s)
    rows = nearest(rows, [clock_hz(spec) for spec in rows], device.clock_hz)
    found = identify(device)
    if not rows:
        assert (found.spec, found.candidates) == (None, ())
        assert f"compute capability {device.compute_capability}" in found.name
        return
    assert found.spec == shared(rows)
    assert found.candidates == (tuple(spec.name for spec in rows) if len(rows) > 1 else ())
    assert (found.vendor, found.architecture) == (rows[0].vendor, found.spec.architecture)
    if len(rows) == 1:
        assert found.name in (rows[0].name, *rows[0].aliases)


@examples(40)
@given(randoms)
def test_what_boards_have_in_common(random: Random) -> None:
    rows = random.sample(CAPABLE, random.randint(2, 3))
    if random.random() < 0.7:  # boards of one architecture differ less
        alike = [spec for spec in CAPABLE if spec.architecture == rows[0].architecture]
        rows = random.sample(alike, min(len(alike), 3))
    if len(rows) < 2:
        assert shared(rows) == rows[0]
        return
    found = shared(rows)

    def lowest(values: list[float | None], most: float) -> float | None:
        known = [value for value in values if value is not None]
        is_alike = len(known) == len(values) and max(known) <= most * min(known)
        return min(known) if is_alike else None

    for form in ("tensor", "vector"):
        rates = [getattr(spec.peaks, form) for spec in rows]
        expected = {name: lowest([of.get(name) for of in rates], 1.2) for name in rates[0]}
        assert dict(getattr(found.peaks, form)) == {
            name: rate for name, rate in expected.items() if rate is not None
        }
    bandwidths = [spec.peaks.memory_bandwidth_bytes_per_s for spec in rows]
    assert found.peaks.memory_bandwidth_bytes_per_s == lowest(bandwidths, 1.35)
    assert found.peaks.achievable == min(spec.peaks.achievable for spec in rows)
    for field, unknown in (
        ("architecture", ""), ("memory_bytes", None), ("link", ""), ("direct_links", None),
        ("link_bandwidth_bytes_per_s", None), ("host_link", ""),
        ("host_link_bandwidth_bytes_per_s", None),
    ):  # fmt: skip
        values = {getattr(spec, field) for spec in rows}
        assert getattr(found, field) == (values.pop() if len(values) == 1 else unknown)
    assert (found.aliases, found.shared_names) == ((), ())
