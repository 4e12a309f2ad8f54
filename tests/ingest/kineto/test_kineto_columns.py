"""Attributes of operators, kernels, copies, memory events and tracks."""

from __future__ import annotations

import json

import pytest

from tb_perfadvisor.trace import CopyDirection
from tests.support.kineto_files import HOST, event, kernel, read, to_bytes


def test_operators_have_shapes_types_and_frames() -> None:
    args = {
        "Input Dims": [[8, 128], [128, 64], []],
        "Input type": ["float", "float", "Scalar"],
        "Concrete Inputs": ["", "", "[2, 2]"],
        "Sequence number": 3,
        "Call stack": "/x/site-packages/torch/a.py(1): f;train.py(7): step;train.py(9): main",
    }
    trace = read(to_bytes([event("aten::mm", 1, 1, args=args), event("plain", 3, 1)]))
    table = trace.operators
    assert table.row.tolist() == [0]
    assert trace.text(int(table.shapes[0])) == "[[8,128],[128,64],[]]"
    assert trace.text(int(table.dtypes[0])) == "float;float;Scalar"
    assert json.loads(trace.text(int(table.values[0]))) == ["", "", "[2, 2]"]
    assert trace.text(int(table.frame[0])) == "train.py(7): step"
    assert table.sequence.tolist() == [3]
    assert (trace.source.has_shapes, trace.source.has_stacks) == (True, True)


def test_kernels_have_their_launch_configuration() -> None:
    trace = read(
        to_bytes(
            [
                kernel(
                    "k",
                    1,
                    1,
                    grid=[24, 2, 1],
                    block=[128, 1, 1],
                    **{
                        "registers per thread": 16,
                        "shared memory": 6400,
                        "est. achieved occupancy %": 75,
                    },
                ),
                kernel("bare", 3, 1),
            ]
        )
    )
    table = trace.kernels
    assert table.grid_blocks.tolist() == [48, -1]
    assert table.block_threads.tolist() == [128, -1]
    assert table.registers.tolist() == [16, -1]
    assert table.shared_memory_bytes.tolist() == [6400, -1]
    assert table.occupancy_share[0] == 0.75
    assert table.occupancy_share[1] != table.occupancy_share[1]


@pytest.mark.parametrize(
    ("name", "direction", "pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", CopyDirection.HOST_TO_DEVICE, 1),
        ("Memcpy HtoD (Pinned -> Device)", CopyDirection.HOST_TO_DEVICE, 0),
        ("Memcpy HtoD (Host -> Device)", CopyDirection.HOST_TO_DEVICE, -1),
        ("Memcpy DtoH (Device -> Pageable)", CopyDirection.DEVICE_TO_HOST, 1),
        ("Memcpy DtoD (Device -> Device)", CopyDirection.DEVICE_TO_DEVICE, -1),
        ("Memcpy PtoP (Device -> Device)", CopyDirection.PEER_TO_PEER, -1),
        ("CopyDeviceToHost", CopyDirection.UNKNOWN, -1),
    ],
)
def test_copies(name: str, direction: CopyDirection, pageable: int) -> None:
    copies = read(to_bytes([kernel(name, 1, 1, "gpu_memcpy", bytes=4096)])).copies
    assert copies.direction.tolist() == [direction]
    assert copies.pageable.tolist() == [pageable]
    assert copies.size_bytes.tolist() == [4096]


@pytest.mark.parametrize("form", [{"ph": "i", "s": "t"}, {"ph": "X", "dur": 27532.77}])
def test_memory_events_of_host_and_device(form: dict[str, object]) -> None:
    """The second form is that of PyTorch's exporter in Python."""

    def instant(ts: int, **args: int) -> dict[str, object]:
        name = {**form, "cat": "cpu_instant_event", "name": "[memory]"}
        return {**name, "ts": ts, **HOST, "args": args}

    trace = read(
        to_bytes(
            [
                event("aten::empty", 100, 9),
                instant(
                    103,
                    **{
                        "Device Type": 1,
                        "Device Id": 1,
                        "Addr": 2**63 + 5,
                        "Bytes": 512,
                        "Total Allocated": 1024,
                        "Total Reserved": 4096,
                    },
                ),
                instant(105, **{"Device Type": 0, "Device Id": 3, "Bytes": -64}),
            ]
        )
    )
    memory = trace.memory
    assert memory.at_ns.tolist() == [3000, 5000]
    assert memory.device.tolist() == [1, -1]
    assert memory.bytes.tolist() == [512, -64]
    assert memory.allocated_bytes.tolist() == [1024, -1]
    assert memory.reserved_bytes.tolist() == [4096, -1]
    assert trace.source.has_memory is True


def test_tracks_are_threads_and_streams() -> None:
    labels = [
        {"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 10, "tid": 10, "args": {"name": "main"}},
    ]
    trace = read(
        to_bytes(
            [
                *labels,
                # Old files have the same thread as a number and as a string.
                event("a", 1, 1, tid="10"),
                event("b", 3, 1),
                event("c", 5, 1, tid=11),
                kernel("k", 7, 1, device=2, stream=20),
                {"ph": "X", "cat": "Kernel", "name": "old", "ts": 9, "dur": 1}
                | {"pid": 3, "tid": "stream 7"},
            ]
        )
    )
    tracks = trace.tracks
    assert [trace.text(int(i)) for i in tracks.label] == [
        "stream 20",
        "stream 7",
        "main",
        "thread 11",
    ]
    assert tracks.device.tolist() == [2, 3, -1, -1]
    assert tracks.thread.tolist() == [20, 7, 10, 11]
    assert trace.text(int(tracks.process[2])) == "python (10)"
    assert trace.events.track.tolist() == [2, 2, 3, 0, 1]
