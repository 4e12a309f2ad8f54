"""Collectives: operations, group sizes and bytes."""

from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.kineto.interpret.collectives import shaped_bytes
from tests.support.kineto_files import event, kernel, read, to_bytes

_COMMS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 400,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Seq": 12,
}


def test_collective_size_is_the_larger_message_in_bytes() -> None:
    trace = read(
        to_bytes([kernel("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 1, 5, **_COMMS)])
    )
    table = trace.collectives
    assert trace.text(int(table.operation[0])) == "all-gather"
    assert table.size_bytes.tolist() == [800]  # 400 elements of two bytes
    assert table.group_size.tolist() == [4]
    assert trace.text(int(table.group[0])) == "7"
    assert table.sequence.tolist() == [12]


def test_groups_are_described_by_the_kernel_or_by_the_header() -> None:
    # Descriptions of PyTorch's device meshes (torch/distributed/device_mesh.py).
    info = {
        "backend": "nccl",
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8},
            {"pg_name": "7", "pg_desc": "mesh_dp", "pg_size": 4, "ranks": [0, 2, 4, 6]},
        ],
    }
    described = {
        **_COMMS, "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, ..., 7]"
    }  # fmt: skip
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
    events = [
        kernel(name, 1, 5, **_COMMS),
        kernel(name, 11, 5, **described),
        kernel(name, 21, 5, **{**_COMMS, "Process Group Name": "9"}),
        kernel(name, 31, 5),
    ]
    trace = read(to_bytes(events, distributedInfo=info))
    assert trace.texts(trace.collectives.description) == ("mesh_dp", "mesh_tp", "", "")
    assert trace.texts(trace.collectives.ranks) == ("[0, 2, 4, 6]", "[0, 1, ..., 7]", "", "")


def test_collectives_without_arguments_use_those_of_their_call() -> None:
    trace = read(
        to_bytes(
            [
                event("record_param_comms", 1, 3, args={"External id": 44, **_COMMS}),
                kernel("ncclDevKernel_AllGather_RING_LL(x)", 5, 5, **{"External id": 44}),
                kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 15, 5),
            ]
        )
    )
    table = trace.collectives
    assert table.size_bytes.tolist() == [800, -1]
    assert [trace.text(int(i)) for i in table.operation] == ["all-gather", "all-reduce"]
    assert table.group_size.tolist() == [4, -1]


def test_collectives_made_of_sends_are_named_by_their_call() -> None:
    # Names from HolisticTraceAnalysis' trace_diff_control (NCCL 2.10 on A100).
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    trace = read(
        to_bytes(
            [
                event("record_param_comms", 0, 9, cat="cpu_op"),
                event("nccl:all_to_all", 1, 6, cat="cpu_op"),
                event("cudaLaunchKernel", 2, 3, cat="cuda_runtime", args={"correlation": 5}),
                event("nccl:send", 20, 6, cat="cpu_op"),
                event("cudaLaunchKernel", 21, 3, cat="cuda_runtime", args={"correlation": 6}),
                kernel(name, 10, 5, correlation=5),
                kernel(name, 30, 5, correlation=6),
                kernel(name, 40, 5),
            ]
        )
    )
    operations = [trace.text(int(text_id)) for text_id in trace.collectives.operation]
    assert operations == ["all-to-all", "send", "send-recv"]


def test_collectives_without_sizes_use_the_tensors_of_their_call() -> None:
    # Names, shapes and types from HolisticTraceAnalysis' trace_diff_control and trace_filter.
    calls = [
        ("nccl:all_reduce", [[45310188]], "float", "ncclKernel_AllReduce_RING_LL_Sum_float(x)"),
        ("nccl:_all_gather_base", [[16777216]], "signed char", "ncclKernel_SendRecv_RING(x)"),
        ("nccl:all_to_all", [[384]], "long", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)"),
    ]
    events = []
    for index, (call, dims, dtype, name) in enumerate(calls):
        at, link = 100 * index, {"correlation": index + 5}
        args = {"Input Dims": dims, "Input type": [dtype]}
        events += [
            event(call, at, 9, "user_annotation", args=args),
            event("cudaLaunchKernel", at + 2, 3, cat="cuda_runtime", args=link),
            kernel(name, at + 20, 5, **link),
        ]
    info = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": [{"pg_size": 8}]}
    table = (trace := read(to_bytes(events, distributedInfo=info))).collectives
    assert [trace.text(int(text_id)) for text_id in table.operation] == [
        "all-reduce",
        "all-gather",
        "all-to-all",
    ]
    # 4 bytes of each number; one of eight parts; 8 bytes of each number.
    assert table.size_bytes.tolist() == [181_240_752, 8 * 16_777_216, 3_072]
    assert table.sent_bytes.tolist() == [181_240_752, 16_777_216, 3_072]
    assert [trace.text(int(text_id)) for text_id in table.dtype] == ["Float", "signed char", "long"]


def test_rank_may_send_less_than_it_receives_in_an_all_to_all() -> None:
    sizes = {"In msg nelems": 100, "Out msg nelems": 300, "dtype": "Float"}
    name = "ncclDevKernel_SendRecv(x)"
    described = {"Collective name": "all_to_allv", "Group size": 4, **sizes}
    table = read(to_bytes([kernel(name, 5, 5, **described)])).collectives
    assert (table.sent_bytes.tolist(), table.size_bytes.tolist()) == ([400], [1200])


def test_host_collectives_are_sized_by_their_tensors() -> None:
    # From local recordings of DDP over gloo.
    args = {"Input Dims": [[598282]], "Input type": ["float"]}
    info = {"backend": "gloo", "rank": 1, "world_size": 2, "pg_config": [{"pg_size": 2}]}
    trace = read(
        to_bytes(
            [event("gloo:all_reduce", 1, 3, "user_annotation", args=args)], distributedInfo=info
        )
    )
    assert trace.collectives.size_bytes.tolist() == [2_393_128]
    assert trace.text(int(trace.collectives.operation[0])) == "all-reduce"
    assert trace.collectives.group_size.tolist() == [2]
    source = trace.source
    assert (source.backend, source.rank, source.world_size) == ("gloo", 1, 2)


@pytest.mark.parametrize(
    ("dtypes", "width_bytes"),
    [
        # c10/core/ScalarType.h, and the C++ types that `Input type` names.
        ("byte char bool int8 uint8 float8_e4m3fn float8_e5m2 c10::Float8_e4m3fn", 1),
        ("short half bfloat16 Half BFloat16 c10::Half c10::BFloat16", 2),
        ("int float Int Float", 4),
        ("long double Long Double", 8),
    ],
)
def test_widths_of_types(dtypes: str, width_bytes: int) -> None:
    for dtype in dtypes.split():
        assert shaped_bytes("[[3]]", dtype) == 3 * width_bytes, dtype


@pytest.mark.parametrize(
    ("shapes", "dtypes", "size_bytes"),
    [
        ("[[598282]]", "float", 598_282 * 4),
        ("[[2,3],[5]]", "c10::BFloat16;float", 6 * 2 + 5 * 4),
        ("[[]]", "float", 4),  # a scalar
        ("[[0,5]]", "float", 0),  # an empty tensor
        ("[[-1,5]]", "float", 0),
        ("[[2],[3]]", "float", -1),  # the second type is missing
        ("[[2]]", "Generator", -1),
        ("[[2", "float", -1),  # cut off
        ("", "float", -1),
        ("[[2]]", "", -1),
        (f"[[{2**61}]]", "float", -1),  # 2**63 bytes
    ],
)
def test_bytes_of_tensors(shapes: str, dtypes: str, size_bytes: int) -> None:
    assert shaped_bytes(shapes, dtypes) == size_bytes


def test_a_collective_without_a_launch_belongs_to_no_call() -> None:
    # The call of the next one is the last event of the file.
    args = {"Input Dims": [[384]], "Input type": ["long"]}
    events = [
        kernel("ncclKernel_SendRecv_RING(x)", 5, 5),
        event("nccl:all_to_all", 100, 9, "user_annotation", args=args),
    ]
    table = (trace := read(to_bytes(events))).collectives
    assert [trace.text(int(text_id)) for text_id in table.operation] == ["send-recv"]
    assert table.size_bytes.tolist() == [-1]
