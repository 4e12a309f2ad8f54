"""The header of a file: devices, rank, versions and recorder options."""

from __future__ import annotations

import json

import pytest

from tb_perfadvisor.trace import Device
from tests.support.kineto_files import event, kernel, read, to_bytes


def test_devices_are_those_listed_and_those_with_events() -> None:
    listed = [{"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 2**37, "numSms": 304}]
    trace = read(to_bytes([kernel("k", 1, 1, device=2)], deviceProperties=listed))
    # ROCm numbers the only visible device 0 in the header and 2 in the events.
    assert trace.devices == (
        Device(0, "AMD Instinct MI300X", "gpu", 2**37, 304),
        Device(2, "AMD Instinct MI300X", "gpu", 2**37, 304),
    )


def test_devices_in_files_of_the_first_versions() -> None:
    properties = [
        {
            "id": 0,
            "name": "Tesla V100-DGXS-32GB",
            "totalGlobalMem": 34084028416,
            "multiProcessorCount": 80,
        }
    ]
    trace = read(to_bytes([event("aten::mm", 1, 2)], computeProperties=properties))
    assert trace.devices == (
        Device(0, "Tesla V100-DGXS-32GB", "gpu", memory_bytes=34084028416, multiprocessors=80),
    )


def test_multiprocessors_follow_from_the_warps_of_each() -> None:
    # As in the first versions, which describe no devices (kineto-old): one block of 64 threads on
    # 80 multiprocessors is 2 warps / 80 = 0.025 of a warp each, and 98 blocks of 256 are 9.8.
    kernels = [
        kernel("a", 1, 1, "Kernel", **{"warps per SM": 0.025}, grid=[1, 1, 1], block=[64, 1, 1]),
        kernel("b", 3, 1, "Kernel", **{"warps per SM": 9.8}, grid=[98, 1, 1], block=[32, 8, 1]),
        kernel("c", 5, 1, "Kernel"),
    ]
    assert read(to_bytes(kernels)).devices == (Device(0, "", "gpu", multiprocessors=80),)
    # Counts that disagree say nothing: 2 warps / 0.025 = 80, 2 warps / 0.05 = 40.
    kernels[1]["args"] |= {"warps per SM": 0.05, "grid": [1, 1, 1], "block": [64, 1, 1]}
    assert read(to_bytes(kernels)).devices == (Device(0, "", "gpu"),)


def test_unknown_devices_are_listed() -> None:
    trace = read(to_bytes([kernel("k", 1, 1, "hpu_op")]))
    assert trace.devices == (Device(0, "", "other"),)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.pt.trace.json", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("profile_trace_rank_12.json.gz", 12),
        ("worker3.1623143089861.pt.trace.json", 3),
        ("dc3b0e7228dd_851.1752215573993169006.pt.trace.json", None),
        ("frank1.json", None),
    ],
)
def test_rank_from_the_file_name(name: str, rank: int | None) -> None:
    trace = read(to_bytes([event("a", 1, 1)]), path=f"some/{name}")
    assert trace.source.rank == rank


def test_versions_and_marks_of_the_source() -> None:
    source = read(
        to_bytes(
            [event("a", 1, 1)],
            cuda_runtime_version=12040,
            distributedInfo={"nccl_version": "2.27.7"},
            host_name="vm",
            perfadvisor_synthetic=True,
        )
    ).source
    assert (source.framework, source.version) == ("pytorch", "CUDA 12.4, NCCL 2.27.7")
    assert (source.host, source.is_synthetic) == ("vm", True)


def test_the_oldest_files_are_a_bare_array() -> None:
    trace = read(b" \n" + json.dumps([event("aten::mm", 5, 2, "Operator")]).encode())
    assert (len(trace.events), trace.source.origin_unix_ns) == (1, None)
