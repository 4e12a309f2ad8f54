"""Checks the device table against arithmetic: multiprocessors, FLOP per clock, clock rates."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tb_perfadvisor.hardware import Peaks, find_device, known_devices, lookup
from tb_perfadvisor.toml_files import parse
from tests.support.corpus_traces import CORPUS

BY_NAME = {spec.name: spec for spec in known_devices()}
GIB = 2**30

# (row, unit, precision, multiprocessors x FLOP per multiprocessor and clock x clock in Hz).
# FLOP per clock: the architecture whitepapers (dense, fp32 accumulate); clocks: the published
# boost clocks. GeForce boards reach half of their chip's rate with fp32 accumulation.
ARITHMETIC = [
    ("P100 SXM2 16GB", "vector", "fp32", 56 * 128 * 1.480e9),
    ("P100 PCIe 16GB", "vector", "fp32", 56 * 128 * 1.303e9),
    ("P100 SXM2 16GB", "vector", "fp16", 56 * 256 * 1.480e9),
    ("V100 SXM2 16GB", "tensor", "fp16", 80 * 1024 * 1.530e9),
    ("V100 SXM2 32GB", "vector", "fp32", 80 * 128 * 1.530e9),
    ("V100 SXM2 16GB", "vector", "fp64", 80 * 64 * 1.530e9),
    ("V100 PCIe 16GB", "tensor", "fp16", 80 * 1024 * 1.380e9),
    ("V100S PCIe 32GB", "tensor", "fp16", 80 * 1024 * 1.597e9),
    ("T4", "tensor", "fp16", 40 * 1024 * 1.590e9),
    ("T4", "vector", "fp32", 40 * 128 * 1.590e9),
    ("RTX 2070", "tensor", "fp16", 36 * 512 * 1.620e9),
    ("RTX 2080", "tensor", "fp16", 46 * 512 * 1.710e9),
    ("RTX 2080 Ti", "tensor", "fp16", 68 * 512 * 1.545e9),
    ("RTX 2080 Ti", "vector", "fp32", 68 * 128 * 1.545e9),
    ("Quadro RTX 6000", "tensor", "fp16", 72 * 1024 * 1.770e9),
    ("A100 SXM4 40GB", "tensor", "bf16", 108 * 2048 * 1.410e9),
    ("A100 SXM4 80GB", "tensor", "tf32", 108 * 1024 * 1.410e9),
    ("A100 PCIe 80GB", "vector", "fp32", 108 * 128 * 1.410e9),
    ("A100 SXM4 40GB", "tensor", "fp64", 108 * 128 * 1.410e9),
    ("A30", "tensor", "bf16", 56 * 2048 * 1.440e9),
    ("A40", "tensor", "bf16", 84 * 1024 * 1.740e9),
    ("A10", "tensor", "bf16", 72 * 1024 * 1.695e9),
    ("A10", "vector", "fp32", 72 * 256 * 1.695e9),
    ("A10G", "tensor", "bf16", 80 * 512 * 1.710e9),
    ("RTX A5000", "tensor", "bf16", 64 * 1024 * 1.695e9),
    ("RTX A6000", "tensor", "bf16", 84 * 1024 * 1.800e9),
    ("RTX 3070", "tensor", "bf16", 46 * 512 * 1.725e9),
    ("RTX 3080", "tensor", "bf16", 68 * 512 * 1.710e9),
    ("RTX 3090", "tensor", "bf16", 82 * 512 * 1.695e9),
    ("RTX 3090 Ti", "tensor", "bf16", 84 * 512 * 1.860e9),
    ("RTX 4070 Ti", "tensor", "bf16", 60 * 512 * 2.610e9),
    ("RTX 4080", "tensor", "bf16", 76 * 512 * 2.505e9),
    ("RTX 4090", "tensor", "bf16", 128 * 512 * 2.520e9),
    ("RTX 4090", "vector", "fp32", 128 * 256 * 2.520e9),
    ("RTX 6000 Ada", "tensor", "bf16", 142 * 1024 * 2.505e9),
    ("L4", "tensor", "bf16", 58 * 1024 * 2.040e9),
    ("L40", "tensor", "bf16", 142 * 512 * 2.490e9),
    ("L40S", "tensor", "bf16", 142 * 1024 * 2.520e9),
    ("L20", "vector", "fp32", 92 * 256 * 2.520e9),
    ("RTX A4000", "tensor", "bf16", 48 * 1024 * 1.560e9),
    ("RTX A4500", "tensor", "bf16", 56 * 1024 * 1.650e9),
    ("RTX A5500", "tensor", "bf16", 80 * 1024 * 1.665e9),
    ("RTX 5000 Ada", "tensor", "fp8", 100 * 2048 * 2.550e9),
    ("RTX 4500 Ada", "tensor", "fp8", 60 * 2048 * 2.580e9),
    ("RTX PRO 6000 Blackwell Workstation", "tensor", "bf16", 188 * 1024 * 2.617e9),
    ("RTX PRO 6000 Blackwell Max-Q", "vector", "fp32", 188 * 256 * 2.280e9),
    ("H100 SXM5 80GB", "tensor", "bf16", 132 * 4096 * 1.830e9),
    ("H100 SXM5 80GB", "tensor", "fp8", 132 * 8192 * 1.830e9),
    ("H100 SXM5 80GB", "tensor", "tf32", 132 * 2048 * 1.830e9),
    ("H100 SXM5 80GB", "vector", "fp32", 132 * 256 * 1.980e9),
    ("H100 PCIe 80GB", "tensor", "bf16", 114 * 4096 * 1.620e9),
    ("H100 PCIe 80GB", "vector", "fp32", 114 * 256 * 1.755e9),
    ("MI100", "tensor", "fp16", 120 * 1024 * 1.502e9),
    ("MI210", "tensor", "bf16", 104 * 1024 * 1.700e9),
    ("MI250X (one of two dies)", "tensor", "bf16", 110 * 1024 * 1.700e9),
    ("MI300A", "tensor", "bf16", 228 * 2048 * 2.100e9),
    ("MI300X", "tensor", "bf16", 304 * 2048 * 2.100e9),
    ("MI300X", "vector", "fp32", 304 * 256 * 2.100e9),
    ("MI350X", "tensor", "bf16", 256 * 4096 * 2.200e9),
    ("MI355X", "tensor", "fp8", 256 * 8192 * 2.400e9),
    ("Radeon RX 7900 XTX", "tensor", "bf16", 96 * 512 * 2.500e9),
    ("Radeon RX 9070 XT", "tensor", "bf16", 64 * 1024 * 2.970e9),
    ("Data Center GPU Max 1550", "tensor", "bf16", 128 * 4096 * 1.600e9),
]


def test_peak_is_units_times_rate_times_clock() -> None:
    found = [getattr(BY_NAME[name].peaks, unit)[bits] for name, unit, bits, _ in ARITHMETIC]
    # 3 % because documents round. The figure with sparsity would be twice as high.
    assert found == pytest.approx([flop_per_s for *_, flop_per_s in ARITHMETIC], rel=0.03)


# The largest 16-bit figure that the maker prints (with 32-bit accumulation), which includes
# sparsity.
SPARSE = {
    "A100 SXM4 80GB": 624e12,
    "A10": 250e12,
    "A30": 330e12,
    "L4": 242e12,
    "L40S": 733e12,
    "H100 SXM5 80GB": 1979e12,
    "H100 NVL 94GB": 1671e12,
    "H200 SXM 141GB": 1979e12,
    "B200 180GB": 4500e12,
    "B300 288GB": 4500e12,
    "GB200 186GB": 5000e12,
    "GB300 279GB": 5000e12,
    "H20 96GB": 296e12,
    "H800 SXM5 80GB": 1979e12,
    "RTX 5090": 419e12,
    "RTX 5080": 225.1e12,
    "RTX 5070 Ti": 175.8e12,
    "RTX 5070": 123.5e12,
    "RTX PRO 6000 Blackwell Workstation": 1007.6e12,
    "RTX A4000": 153.4e12,
    "MI300X": 2614.9e12,
    "MI355X": 5033.2e12,
}


def test_peaks_are_dense() -> None:
    found = {name: BY_NAME[name].peaks.tensor["bf16"] for name in SPARSE}
    dense = {name: sparse / 2 for name, sparse in SPARSE.items()}
    assert found == pytest.approx(dense, rel=0.02)


def test_every_row_is_complete_and_has_a_source() -> None:
    for spec in known_devices():
        assert len(spec.source) > 20, spec.name
        assert len(spec.achievable_source) > 20, spec.name
        assert spec.aliases or spec.shared_names, spec.name
        assert spec.peaks.flop_per_s("fp16") or spec.peaks.flop_per_s("bf16"), spec.name
        assert spec.peaks.memory_bandwidth_bytes_per_s, spec.name
        assert 0.5 <= spec.peaks.achievable <= 1.05, spec.name
        assert 4 * GIB < spec.memory_bytes < 300 * GIB, spec.name
        assert (spec.link == "") == (spec.link_bandwidth_bytes_per_s is None), spec.name
        for precision, rate in (*spec.peaks.tensor.items(), *spec.peaks.vector.items()):
            assert precision in {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"}, spec.name
            assert 0.5e12 <= rate < 6e15, spec.name


def test_fp16_and_bf16_peaks_are_equal_since_ampere() -> None:
    recent = [s for s in known_devices() if s.vendor == "nvidia" and float(s.architecture) >= 8]
    assert len(recent) > 20
    for spec in recent:
        assert spec.peaks.tensor["fp16"] == spec.peaks.tensor["bf16"], spec.name
        # half the width, twice the rate (documents round)
        assert spec.peaks.tensor["tf32"] == pytest.approx(spec.peaks.tensor["bf16"] / 2, rel=0.02)


def test_names_are_unique() -> None:
    aliases = [alias.casefold() for spec in known_devices() for alias in spec.aliases]
    assert len(aliases) == len(set(aliases))
    shared = {name.casefold() for spec in known_devices() for name in spec.shared_names}
    assert shared.isdisjoint(aliases)
    table = Path(lookup.__file__).with_name("devices.toml").read_text(encoding="utf-8")
    vendors = (rows for key, rows in parse(table).items() if key not in ("achievable", "host_link"))
    assert {name for rows in vendors for name in rows} == {spec.name for spec in known_devices()}


_SERVER = "RTX PRO 6000 Blackwell Server"
# As recorded: name, multiprocessors, bytes, and the expected row (None if it is ambiguous).
RECORDED = [
    ("Quadro GP100", 56, 17069309952, "Quadro GP100"),
    ("Tesla V100-SXM2-16GB", 80, 16945512448, "V100 SXM2 16GB"),
    ("Tesla V100-SXM2-32GB", 80, 34089730048, "V100 SXM2 32GB"),
    ("Tesla V100-DGXS-32GB", 80, 34084028416, "V100 DGX Station 32GB"),
    ("NVIDIA GeForce RTX 2080 Ti", 68, 11554586624, "RTX 2080 Ti"),
    ("NVIDIA A100-PG509-200", 108, 42297524224, "A100 SXM4 40GB"),
    ("NVIDIA A100-SXM4-40GB", 108, 42481549312, "A100 SXM4 40GB"),
    ("NVIDIA A100-SXM4-80GB", 108, 84990623744, "A100 SXM4 80GB"),
    ("NVIDIA PG509-210", 108, 84990623744, "A100 SXM4 80GB"),
    ("NVIDIA H100 80GB HBM3", 132, 85045477376, "H100 SXM5 80GB"),
    ("NVIDIA B300 SXM6 AC", 148, 287431131136, "B300 288GB"),
    ("NVIDIA A100 80GB PCIe", 108, 84987740160, "A100 PCIe 80GB"),
    ("NVIDIA A100-PCIE-40GB", 108, 42346610688, "A100 PCIe 40GB"),
    ("NVIDIA H100 NVL", 132, 99949805568, "H100 NVL 94GB"),
    ("AMD Instinct MI210", 104, 68702699520, "MI210"),
    ("AMD Instinct MI300X", 304, 206141652992, "MI300X"),
    ("TPU v2", None, None, "TPU v2 (one of two cores)"),
    ("TPU v6 Lite", None, None, "TPU v6e (Trillium)"),
    # Names that the XPlane reader gives to GPUs, whose planes have no names.
    ("Tesla P100-PCIE-16GB", 56, None, "P100 PCIe 16GB"),
    ("Tesla T4", 40, None, "T4"),
    ("NVIDIA A10G", 80, None, "A10G"),
    ("NVIDIA A10", 72, None, "A10"),
    ("NVIDIA L4", 58, None, "L4"),
    ("NVIDIA GeForce RTX 4090", 128, None, "RTX 4090"),
    ("NVIDIA H200", 132, None, "H200 SXM 141GB"),
    ("NVIDIA GH200 480GB", 132, None, "GH200 96GB"),
    ("NVIDIA H100 PCIe", 114, None, "H100 PCIe 80GB"),
    ("NVIDIA B200", 148, None, "B200 180GB"),
    ("AMD Instinct MI325X", 304, None, "MI325X"),
    ("AMD Instinct MI250X", 110, None, "MI250X (one of two dies)"),
    ("DragonFish", None, None, "TPU v3 (one of two cores)"),
    ("NVIDIA RTX A4000", 48, 16900227072, "RTX A4000"),
    # As posted: total_memory=97285MB, 97250MB and 16302MB of torch.cuda.get_device_properties.
    ("NVIDIA H20", 78, 97285 << 20, "H20 96GB"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 97250 << 20, _SERVER),
    ("NVIDIA GeForce RTX 5080", 84, 16302 << 20, "RTX 5080"),
    ("NVIDIA GeForce RTX 5060 Ti", None, 15841 << 20, "RTX 5060 Ti 16GB"),
    ("NVIDIA GB200", 152, None, "GB200 186GB"),
    # An MI210 or half of an MI250: the name does not tell.
    ("AMD Radeon Graphics", 104, 68702699520, None),
    ("", 304, 206141652992, None),
    ("NVIDIA GB10", 48, 128453668864, None),
    ("ARTEMIS", None, None, None),
    ("TPU", None, None, None),
    ("GPU", None, None, None),
    ("CPU", None, None, None),
]


def test_recorded_names() -> None:
    found = [
        find_device(name, multiprocessors=multiprocessors, memory_bytes=memory_bytes)
        for name, multiprocessors, memory_bytes, _ in RECORDED
    ]
    assert [spec and spec.name for spec in found] == [row for *_, row in RECORDED]


@pytest.mark.corpus
def test_every_device_of_the_corpus_is_found_or_listed_as_unknown() -> None:
    listed = {row[0] for row in RECORDED}
    seen = set()
    for path in sorted(CORPUS.rglob("*.json*")):
        # The device list is within the first 20 kB of a file.
        with path.open("rb") as file:
            head = file.read(20_000)
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                head = file.read(20_000)
        text = head.decode(errors="replace")
        start = text.find('"deviceProperties"')
        if start < 0 or "derived-malformed" in path.parts:
            continue
        opening = text.index("[", start)
        devices, _ = json.JSONDecoder(strict=False).raw_decode(text[opening:])
        seen |= {device.get("name", "") for device in devices}
    assert len(seen) >= 14
    assert seen <= listed


def test_multiprocessors_and_memory_decide_ambiguous_names() -> None:
    assert find_device("NVIDIA H100") is None
    assert find_device("NVIDIA H100", multiprocessors=132) is None  # SXM5 and NVL
    by_count = find_device("nvidia h100", multiprocessors=114)
    assert by_count is not None
    assert by_count.name == "H100 PCIe 80GB"
    by_both = find_device("NVIDIA H100", multiprocessors=132, memory_bytes=85_045_477_376)
    assert by_both is not None
    assert by_both.name == "H100 SXM5 80GB"
    assert find_device("NVIDIA GeForce RTX 3080", multiprocessors=70) is None  # the 12 GB board


def test_partitions_do_not_match_the_whole_device() -> None:
    # MIG slices and partitions of an MI300X report the device's name but fewer multiprocessors.
    assert find_device("NVIDIA A100-SXM4-40GB", multiprocessors=42) is None
    assert find_device("AMD Instinct MI300X", multiprocessors=38) is None
    assert find_device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", multiprocessors=42) is None


def test_inherited_values() -> None:
    h200 = BY_NAME["H200 SXM 141GB"]
    assert h200.peaks.tensor == BY_NAME["H100 SXM5 80GB"].peaks.tensor
    assert h200.peaks.memory_bandwidth_bytes_per_s == 4.8e12
    assert h200.memory_bytes == 141 * GIB
    assert "NVIDIA H100 80GB HBM3" not in h200.aliases
    station = BY_NAME["V100 DGX Station 32GB"]
    assert (station.link, station.link_bandwidth_bytes_per_s) == ("", None)


def test_links_are_per_direction() -> None:
    # Links times GB/s per direction.
    expected = {
        "A100 SXM4 80GB": 12 * 25e9,
        "H100 SXM5 80GB": 18 * 25e9,
        "B200 180GB": 18 * 50e9,
        "MI300X": 7 * 64e9,
        "TPU v4": 6 * 50e9,
    }
    assert {n: BY_NAME[n].link_bandwidth_bytes_per_s for n in expected} == expected


def test_direct_links() -> None:
    # A V100 in a DGX-1 has six NVLinks to four neighbors, an MI300X one Infinity Fabric link to
    # each of seven. NVSwitch gives any two A100 or newer the full bandwidth.
    # A TPU has two links for each dimension of its torus: two on v5e and v6e, three on v4 and v5p.
    expected = {"V100 SXM2 16GB": 6, "MI300X": 7, "A100 SXM4 80GB": None, "H100 SXM5 80GB": None}
    expected |= {"TPU v4": 6, "TPU v5e": 4, "TPU v5p": 6, "TPU v6e (Trillium)": 4}
    assert {name: BY_NAME[name].direct_links for name in expected} == expected


def test_rates_by_precision() -> None:
    v100 = BY_NAME["V100 SXM2 16GB"].peaks
    assert v100.flop_per_s("fp16") == 125e12
    assert v100.flop_per_s("fp16", tensor=False) == 31.4e12
    assert v100.flop_per_s("fp32") == 15.7e12  # its tensor cores do not support 32-bit numbers
    assert v100.flop_per_s("tf32") is None
    assert v100.flop_per_s("bf16") is None
    mi210 = BY_NAME["MI210"].peaks
    assert mi210.flop_per_s("tf32") == 45.3e12  # no tf32, but matrix units for fp32
    assert mi210.flop_per_s("fp32", tensor=False) == 22.6e12


def test_peaks_from_a_plane() -> None:
    peaks = Peaks.from_plane(flop_per_s=918e12, memory_bandwidth_bytes_per_s=1638e9)
    assert peaks.flop_per_s("bf16") == 918e12
    assert peaks.flop_per_s("fp32") is None
    assert peaks.flop_per_s("bf16", tensor=False) is None
    assert peaks.memory_bandwidth_bytes_per_s == 1638e9
    empty = Peaks.from_plane(flop_per_s=None, memory_bandwidth_bytes_per_s=None)
    assert empty.flop_per_s("bf16") is None


# PCI-SIG: 16 lanes carry 15.75, 31.5 and 63 GB/s in one direction. Copies reach 75 to 90 % of it.
@pytest.mark.parametrize(
    ("name", "link_bytes_per_s"),
    [
        ("V100 SXM2 16GB", 15.75e9),
        ("T4", 15.75e9),
        ("A100 SXM4 80GB", 31.5e9),
        ("RTX 4090", 31.5e9),
        ("MI210", 31.5e9),
        ("H100 SXM5 80GB", 63e9),
        ("B200 180GB", 63e9),
        ("MI300X", 63e9),
    ],
)
def test_pinned_copies_reach_most_of_the_link_to_the_host(
    name: str, link_bytes_per_s: float
) -> None:
    bandwidth = BY_NAME[name].host_link_bandwidth_bytes_per_s
    assert bandwidth is not None
    assert 0.75 <= bandwidth / link_bytes_per_s <= 0.9


def test_the_link_of_superchips_to_their_host_is_unknown() -> None:
    for name in ("GH200 96GB", "GH200 144GB", "GB200 186GB", "MI300A"):
        assert BY_NAME[name].host_link_bandwidth_bytes_per_s is None, name


def test_every_link_to_the_host_has_a_source() -> None:
    for spec in known_devices():
        assert bool(spec.host_link) == bool(spec.host_link_source), spec.name
