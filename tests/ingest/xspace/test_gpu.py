from __future__ import annotations

import math

import pytest

from tb_perfadvisor.ingest.xspace.interpret.detail_texts import (
    copy_direction,
    parse_copy,
    parse_launch,
)
from tb_perfadvisor.trace import CopyDirection, EventKind, TrackKind
from tests.support.device_xspaces import gpu_xspace
from tests.support.xspaces import Drawing, Reference, kinds, row_of


def test_streams_work_and_other_lines_cover() -> None:
    trace = gpu_xspace().read()
    by_track: dict[str, set[str]] = {}
    for row in range(len(trace.events)):
        track = int(trace.events.track[row])
        label = trace.text(int(trace.tracks.label[track]))
        kind = EventKind(int(trace.events.kind[row])).name
        by_track.setdefault(label, set()).add(kind)
    assert by_track == {
        "python": {"LAUNCH"},
        "Stream #16(Kernel)": {"KERNEL", "COPY", "COLLECTIVE", "MEMSET"},
        "XLA Ops": {"DEVICE_OP"},
        "XLA Modules": {"DEVICE_MODULE"},
        "Steps": {"DEVICE_STEP"},
        # The name scope line repeats the kernels, so it is not read.
    }
    streams = trace.tracks.kind == TrackKind.DEVICE_STREAM
    assert streams.sum() == 1
    assert trace.tracks.device[streams].tolist() == [1]
    assert trace.events.step[row_of(trace, "3")] == 3


def test_a_kernel_knows_its_launch_and_its_operation() -> None:
    trace = gpu_xspace().read()
    kernel = next(row for row in trace.kernels.row.tolist() if trace.name(row) == "loop_fusion")
    slot = trace.kernels.row.tolist().index(kernel)
    assert trace.name(int(trace.events.launched_by[kernel])) == "cuLaunchKernel"
    assert trace.kernels.grid_blocks[slot] == 32
    assert trace.kernels.block_threads[slot] == 128
    assert trace.kernels.registers[slot] == 40
    assert trace.kernels.shared_memory_bytes[slot] == 1536
    assert trace.kernels.occupancy_share[slot] == pytest.approx(0.75)
    (link,) = trace.hlo_events.row.tolist()
    assert link == kernel
    operation = int(trace.hlo_events.op[0])
    assert trace.text(int(trace.hlo.name[operation])) == "loop_fusion"
    assert trace.text(int(trace.hlo.module[operation])) == "jit_step(47)"


def test_values_that_only_stats_carry() -> None:
    drawing = Drawing()
    gpu = drawing.plane("/device:GPU:0")
    stream = drawing.line(gpu, "Stream #7(Compute)")
    drawing.event(gpu, stream, "gemm", 0, 5, occupancy_pct=37.5)
    drawing.event(gpu, stream, "full", 5, 2, occupancy_pct=100.0)
    drawing.event(gpu, stream, "impossible", 7, 2, occupancy_pct=150.0)
    drawing.event(gpu, stream, "fill", 10, 5, memset_details=Reference("kind:device size:64"))
    steps = drawing.line(gpu, "Steps")
    drawing.event(gpu, steps, "train", 0, 9, group_id=5)
    drawing.event(gpu, steps, "train 2", 10, 9, step_num=6)
    trace = drawing.read()
    assert trace.kernels.occupancy_share[:2].tolist() == [0.375, 1.0]
    assert math.isnan(trace.kernels.occupancy_share[2])
    assert kinds(trace)["fill"] == "MEMSET"
    assert [int(trace.events.step[row_of(trace, name)]) for name in ("train", "train 2")] == [5, 6]


def test_copy_direction_comes_from_details_name_or_call() -> None:
    trace = gpu_xspace().read()
    found = {
        trace.name(row): (CopyDirection(direction).name, size, pageable)
        for row, direction, size, pageable in zip(
            trace.copies.row.tolist(),
            trace.copies.direction.tolist(),
            trace.copies.size_bytes.tolist(),
            trace.copies.pageable.tolist(),
            strict=True,
        )
    }
    assert found == {
        "__amd_rocclr_copyBuffer.kd": ("HOST_TO_DEVICE", -1, -1),
        "MemcpyD2H": ("DEVICE_TO_HOST", 4096, 1),
    }


@pytest.mark.parametrize(
    ("text", "grid", "block", "registers", "shared"),
    [
        # TraceLens, MI300X.
        (" grid:4,64,1 block:256,1,1 private_mem:0 group_mem:8704 occ_pct:0", 256, 256, -1, 8704),
        # ROCm writes 0 for unknown registers.
        ("regs:0 shm:0 grid:4,1,1 block:64,1,1", 4, 64, -1, 0),
        ("regs:2191500840 shm:0 grid:1,1,1 block:64,1,1", -1, -1, -1, -1),
        # XProf's demo, written by TensorFlow 2.4 from uninitialized memory.
        ("regs:687194767361 shm:4294967297 grid:1352,139757090178736,9699248", -1, -1, -1, -1),
        ("grid:0,1,1 block:64,1,1", -1, -1, -1, -1),
        # The most that a GPU can do, and one more of each.
        (
            "regs:1024 static_shared:1000000 dynamic_shared:48576 grid:2147483647,1,1 "
            "block:32,32,1",
            2**31 - 1,
            1024,
            1024,
            1 << 20,
        ),
        ("regs:1025 shm:0 grid:1,1,1 block:64,1,1", -1, -1, -1, -1),
        ("regs:32 shm:1048577 grid:1,1,1 block:64,1,1", -1, -1, -1, -1),
        ("regs:32 shm:0 grid:2147483648,1,1 block:64,1,1", -1, -1, -1, -1),
        ("regs:32 shm:0 grid:1,1,1 block:1025,1,1", -1, -1, -1, -1),
        ("grid:1,x,1 block:64,1,1", -1, -1, -1, -1),
        ("", -1, -1, -1, -1),
    ],
)
def test_launch_details(text: str, grid: int, block: int, registers: int, shared: int) -> None:
    details = parse_launch(text)
    assert (details.grid_blocks, details.block_threads) == (grid, block)
    assert (details.registers, details.shared_memory_bytes) == (registers, shared)
    assert math.isnan(details.occupancy_share)


@pytest.mark.parametrize(
    ("percent", "share"), [("37.5", 0.375), ("100", 1.0), ("100.5", None), ("0", None), ("x", None)]
)
def test_occupancy_is_a_share(percent: str, share: float | None) -> None:
    found = parse_launch(f"regs:32 shm:0 grid:1,1,1 block:64,1,1 occ_pct:{percent}")
    assert found.occupancy_share == pytest.approx(math.nan if share is None else share, nan_ok=True)


def test_copy_details() -> None:
    pinned = parse_copy("kind_src:pinned kind_dst:device size:112 dest:4 async:1")
    assert (pinned.size_bytes, pinned.pageable) == (112, 0)
    assert pinned.direction == CopyDirection.HOST_TO_DEVICE
    old = parse_copy("size:4 dest:1 async:1")
    assert (old.size_bytes, old.pageable, old.direction) == (4, -1, CopyDirection.UNKNOWN)
    # ROCm records neither of them.
    rocm = parse_copy("kind:Unknown size:0 dest:512 async:1")
    assert (rocm.size_bytes, rocm.direction) == (-1, CopyDirection.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("MemcpyH2D", CopyDirection.HOST_TO_DEVICE),
        ("MEMCPYDtoH", CopyDirection.DEVICE_TO_HOST),
        ("hipMemcpyDtoDAsync", CopyDirection.DEVICE_TO_DEVICE),
        ("MemcpyP2P", CopyDirection.PEER_TO_PEER),
        ("MemcpyH2H", CopyDirection.HOST_TO_HOST),
        ("__amd_rocclr_copyBuffer.kd", CopyDirection.UNKNOWN),
    ],
)
def test_direction_in_a_name(name: str, direction: CopyDirection) -> None:
    assert copy_direction(name) == direction


def test_planes_describe_gpus_but_do_not_name_them() -> None:
    drawing = Drawing()
    for index, stats in enumerate(
        (
            {"compute_cap_major": 7, "compute_cap_minor": 0, "core_count": 80}
            | {"clock_rate": 1530000},
            {"device_vendor": "AMD", "compute_cap_major": 9, "compute_cap_minor": 4}
            | {"core_count": 304, "memory_size": 206141652992, "memory_bandwidth": 2662400000000},
            {"compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132}
            | {"memory_size": 150 << 30},
            {"compute_cap_major": 12, "compute_cap_minor": 1, "core_count": 48},
            {},
        )
    ):
        drawing.plane(f"/device:GPU:{index}", **stats)
    devices = drawing.read().devices
    assert [
        (device.name, device.vendor, device.compute_capability, device.multiprocessors)
        for device in devices
    ] == [
        ("", "nvidia", "7.0", 80),
        ("", "amd", "9.4", 304),
        ("", "nvidia", "9.0", 132),
        ("", "nvidia", "12.1", 48),
        ("GPU", "", "", None),
    ]
    assert [device.clock_hz for device in devices] == [1.53e9, None, None, None, None]
    assert devices[1].memory_bytes == 206141652992
    # ROCm reports half of the bandwidth: unknown is better than wrong.
    assert devices[1].reported_bandwidth_bytes_per_s is None
    assert kinds(drawing.read()) == {}
