from __future__ import annotations

import io
import json

import numpy as np
import pytest

from tb_perfadvisor.hardware import identify
from tb_perfadvisor.ingest.chrome.reader import read_chrome
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.testing import TraceBuilder, draw, ms, us
from tb_perfadvisor.trace import CopyDirection, EventKind, Source, Trace
from tests.support.writers import write_chrome, write_kineto, write_xplane

# A little of everything that both formats carry.
DRAWING = """
    cell 10us
    step     |7..........|...........|
    main     |DDDoo.SSSu.|Doo...SSAz.|
    autograd |.....BB....|...BB......|
    gpu 7    |...hKKKm...|hKKK.g.....|
    gpu 20   |.....NN....|...NN......|
"""
TPU = """
    cell 10us
    step          |..........|..........|
    main          |Lcc.......|L.....D...|
    tpu 0         |.XXYYNN.I.|.XXYY.....|
    tpu 0 modules |.MMMMMMM..|.MMMM.....|
"""
SOURCE = Source(path="x", format="")


def described(trace: Trace, *, names: bool) -> list[tuple[object, ...]]:
    """What every event is: in order of start, without what depends on the order of tables."""
    events, tracks = trace.events, trace.tracks
    found = []
    for row in range(len(events)):
        track, launch = int(events.track[row]), int(events.launched_by[row])
        is_device = tracks.device[track] >= 0
        found.append(
            (
                int(events.start_ns[row]),
                -int(events.duration_ns[row]),
                EventKind(int(events.kind[row])).name,
                trace.name(row) if names else "",
                int(events.step[row]),
                int(tracks.device[track]),
                int(tracks.thread[track]) if is_device else trace.text(int(tracks.label[track])),
                int(events.start_ns[launch]) if launch >= 0 else None,
            )
        )
    return sorted(found, key=str)


def test_kineto_reads_back_what_was_drawn() -> None:
    trace = draw(DRAWING, device="NVIDIA H100 80GB HBM3", rank=2, world_size=8)
    read = next(read_kineto(io.BytesIO(write_kineto(trace)), SOURCE))
    assert described(read, names=True) == described(trace, names=True)
    assert (read.source.rank, read.source.world_size) == (2, 8)
    assert read.source.is_synthetic
    assert [device.name for device in read.devices] == ["NVIDIA H100 80GB HBM3"]
    assert not read.notes


def test_an_xspace_reads_back_what_was_drawn() -> None:
    # Names of PyTorch become those that an XSpace has; all else is the same.
    trace = draw(DRAWING, device="NVIDIA H100 80GB HBM3", framework="tensorflow")
    read = read_xplane(io.BytesIO(write_xplane(trace)), SOURCE)
    assert described(read, names=False) == described(trace, names=False)
    assert read.source.is_synthetic
    assert read.source.framework == "tensorflow"
    # An XSpace does not name GPUs, but its other facts identify this one.
    assert [identify(device).name for device in read.devices] == ["NVIDIA H100 80GB HBM3"]
    assert not read.notes


def test_all_formats_tell_one_truth() -> None:
    trace = draw(DRAWING)
    kineto, xplane, chrome = (
        next(read_kineto(io.BytesIO(write_kineto(trace)), SOURCE)),
        read_xplane(io.BytesIO(write_xplane(trace)), SOURCE),
        read_chrome(io.BytesIO(write_chrome(trace)), SOURCE),
    )
    assert described(kineto, names=False) == described(xplane, names=False)
    assert described(chrome, names=True) == described(xplane, names=True)


def test_tpu_operations_read_back_with_their_hlo() -> None:
    trace = draw(TPU, device="TPU v5 lite")
    read = read_xplane(io.BytesIO(write_xplane(trace)), SOURCE)
    assert [row[:7] for row in described(read, names=True)] == [
        row[:7] for row in described(trace, names=True)
    ]
    texts = {trace.text(index) for index in trace.hlo.text.tolist()}
    assert {read.text(index) for index in read.hlo.text.tolist()} == texts
    for table in (trace, read):
        assert table.collectives.size_bytes.tolist() == [4 * 1024 * 1024]
        assert table.kernels.precision.tolist() == [2, 3, 2, 3]  # bf16, f32, twice
    assert read.source.framework == "jax"


def test_what_text_cannot_show_survives_kineto() -> None:
    trace = (
        TraceBuilder(backend="nccl", rank=0, world_size=8, has_shapes=True)
        .source(origin_unix_ns=1_700_000_000_000_000_000)
        .device("NVIDIA H100 80GB HBM3", memory_bytes=85_899_345_920, multiprocessors=132)
        .step(0, ms(0), ms(10))
        .operator(
            "aten::mm",
            us(1),
            us(900),
            shapes=[[8, 128], [128, 64]],
            dtypes=["c10::BFloat16", "c10::BFloat16"],
            module="Linear_0",
            key="forward",
        )
        .operator(
            "autograd::engine::evaluate_function: MmBackward0",
            ms(1),
            ms(2),
            thread="autograd",
            forward="forward",
        )
        .kernel(
            "ampere_sgemm_128x64_nn",
            ms(2),
            ms(3) + 7,
            grid_blocks=132,
            block_threads=256,
            registers=90,
            occupancy_share=0.25,
        )
        .copy(CopyDirection.DEVICE_TO_HOST, ms(3), ms(4), size_bytes=4096, pageable=1)
        .collective(
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            ms(4),
            ms(9),
            size_bytes=400_000_000,
            dtype="Float",
            group_size=8,
            sequence=3,
        )
        .memory(us(5), 512, allocated_bytes=1024, reserved_bytes=2048, address=7)
        .memory(us(6), -512, allocated_bytes=512, reserved_bytes=2048, address=7)
        .build()
    )
    read = next(read_kineto(io.BytesIO(write_kineto(trace)), SOURCE))
    assert read.source.origin_unix_ns == 1_700_000_000_000_000_000
    assert (read.source.backend, read.source.has_shapes) == ("nccl", True)
    assert read.devices[0].memory_bytes == 85_899_345_920
    assert {read.text(i) for i in read.operators.shapes.tolist()} == {"[[8,128],[128,64]]", ""}
    assert "c10::BFloat16;c10::BFloat16" in read.strings
    backward = next(r for r in read.rows(EventKind.OPERATOR) if "Backward" in read.name(r))
    assert read.name(int(read.events.forward[backward])) == "aten::mm"
    kernel = int(np.flatnonzero(read.kernels.grid_blocks == 132)[0])
    assert read.kernels.block_threads[kernel] == 256
    assert read.kernels.registers[kernel] == 90
    assert read.kernels.occupancy_share[kernel] == 0.25
    assert int(read.events.duration_ns[read.kernels.row[kernel]]) == 1_000_007
    assert read.copies.size_bytes.tolist() == [4096]
    assert read.copies.pageable.tolist() == [1]
    assert read.collectives.size_bytes.tolist() == [400_000_000]
    assert read.collectives.group_size.tolist() == [8]
    assert read.text(int(read.collectives.operation[0])) == "all-reduce"
    assert read.memory.allocated_bytes.tolist() == [1024, 512]
    assert read.memory.bytes.tolist() == [512, -512]
    assert read.memory.at_ns.tolist() == [5_000, 6_000]


def test_memory_and_copies_survive_an_xspace() -> None:
    trace = (
        TraceBuilder("tensorflow")
        .device("NVIDIA A100-SXM4-80GB", memory_bytes=85_899_345_920, multiprocessors=108)
        .step(0, ms(0), ms(10))
        .copy(CopyDirection.HOST_TO_DEVICE, ms(1), ms(2), size_bytes=4096, pageable=0)
        .memory(us(5), 512, allocated_bytes=1024, address=7)
        .build()
    )
    read = read_xplane(io.BytesIO(write_xplane(trace)), SOURCE)
    assert identify(read.devices[0]).name == "NVIDIA A100-SXM4-80GB"
    assert read.copies.size_bytes.tolist() == [4096]
    assert read.copies.pageable.tolist() == [0]
    assert read.copies.direction.tolist() == [CopyDirection.HOST_TO_DEVICE]
    assert read.memory.allocated_bytes.tolist() == [1024]
    assert read.memory.device.tolist() == [0]


@pytest.mark.parametrize("write", [write_kineto, write_xplane, write_chrome])
def test_equal_traces_give_equal_bytes(write: object) -> None:
    assert callable(write)
    assert write(draw(DRAWING)) == write(draw(DRAWING))


def test_a_recorded_file_is_not_marked_as_made_up() -> None:
    document = json.loads(write_kineto(draw(DRAWING, is_synthetic=False)))
    assert "perfadvisor_synthetic" not in document
    trace = draw(DRAWING, is_synthetic=False)
    assert not read_xplane(io.BytesIO(write_xplane(trace)), SOURCE).source.is_synthetic
