"""Sound files: every column from hand-made events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kineto_files import HOST, event, kernel, named, read, to_bytes

from tb_perfadvisor.trace import CopyDirection, Device, EventKind, TrackKind


def test_times_are_exact_to_the_nanosecond() -> None:
    # As torch 2.13 writes them: microseconds since baseTimeNanoseconds, three decimals.
    trace = read(
        to_bytes(
            [
                event("first", 4369443403039.739, 12798.361),
                event("second", 4369443403040.001, 0.007),
            ],
            baseTimeNanoseconds=1790857026000000000,
        )
    )
    assert trace.events.start_ns.tolist() == [0, 262]
    assert trace.events.duration_ns.tolist() == [12_798_361, 7]
    # 1790857026 s + 4369443.403039739 s
    assert trace.source.origin_unix_ns == 1795226469403039739


def test_absolute_times_keep_digits_beyond_a_float() -> None:
    # Seen in the wild: absolute microseconds with a fraction. As float64 the first two are equal.
    text = (
        b'{"schemaVersion": 1, "traceEvents": ['
        b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1795226445677193.698,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":1795226445677193.699,"dur":0.5},'
        b'{"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":1795226445677194,"dur":2}]}'
    )
    trace = read(text)
    assert trace.events.start_ns.tolist() == [0, 1, 302]
    assert trace.source.origin_unix_ns == 1795226445677193698


def test_children_that_overhang_by_rounding_stay_children() -> None:
    # Whole microseconds, start and duration rounded apart: the child ends at 17, the parent
    # at 16. The grandchild ends with the child.
    trace = read(
        to_bytes([event("parent", 10, 6), event("child", 12, 5), event("grandchild", 13, 4)])
    )
    assert trace.events.parent.tolist() == [-1, 0, 1]
    assert trace.events.end_ns.tolist() == [6000, 6000, 6000]


def test_true_overlaps_are_left_alone() -> None:
    trace = read(to_bytes([event("first", 10, 6), event("second", 12, 6)]))
    assert trace.events.parent.tolist() == [-1, -1]
    assert trace.events.duration_ns.tolist() == [6000, 6000]


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("aten::mm", "cpu_op", EventKind.OPERATOR),
        ("aten::mm", "Operator", EventKind.OPERATOR),
        ("ProfilerStep#7", "user_annotation", EventKind.STEP),
        ("ProfilerStep#7", "Operator", EventKind.STEP),
        ("Optimizer.step#SGD.step", "user_annotation", EventKind.ANNOTATION),
        ("Optimizer.step#SGD.step", "Operator", EventKind.ANNOTATION),
        (
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            "user_annotation",
            EventKind.INPUT_WAIT,
        ),
        ("enumerate(DataPipe)#ShufflerIterDataPipe", "cpu_op", EventKind.INPUT_WAIT),
        ("gloo:all_reduce", "user_annotation", EventKind.HOST_COLLECTIVE),
        ("nccl:all_reduce", "user_annotation", EventKind.ANNOTATION),
        ("train.py(12): step", "python_function", EventKind.PYTHON),
        (
            "torch/_dynamo/convert_frame.py(1207): _compile",
            "python_function",
            EventKind.COMPILE,
        ),
        ("_compile.compile_inner (dynamo_timed)", "cpu_op", EventKind.COMPILE),
        ("Torch-Compiled Region: 0/0", "user_annotation", EventKind.ANNOTATION),
        ("Activity Buffer Request", "overhead", EventKind.OVERHEAD),
        ("cudaLaunchKernel", "cuda_runtime", EventKind.LAUNCH),
        ("cudaLaunchKernelExC", "cuda_runtime", EventKind.LAUNCH),
        ("cuLaunchKernelEx", "cuda_driver", EventKind.LAUNCH),
        ("cudaGraphLaunch", "cuda_runtime", EventKind.LAUNCH),
        ("hipGraphLaunch", "cuda_runtime", EventKind.LAUNCH),
        ("hipExtModuleLaunchKernel", "cuda_runtime", EventKind.LAUNCH),
        ("cudaMemcpyAsync", "Runtime", EventKind.LAUNCH),
        ("hipMemcpyWithStream", "cuda_runtime", EventKind.LAUNCH),
        ("cudaMemsetAsync", "cuda_runtime", EventKind.LAUNCH),
        ("urEnqueueKernelLaunch", "xpu_runtime", EventKind.LAUNCH),
        ("cudaStreamSynchronize", "cuda_runtime", EventKind.SYNCHRONIZE),
        ("hipDeviceSynchronize", "cuda_runtime", EventKind.SYNCHRONIZE),
        ("synchronizeStream", "mtia_runtime", EventKind.SYNCHRONIZE),
        ("cudaStreamWaitEvent", "cuda_runtime", EventKind.RUNTIME),
        ("cudaEventQuery", "cuda_runtime", EventKind.RUNTIME),
        ("cudaLaunchHostFunc", "cuda_runtime", EventKind.RUNTIME),
        ("cudaMalloc", "cuda_runtime", EventKind.ALLOCATE),
        ("cudaFree", "cuda_runtime", EventKind.ALLOCATE),
        ("cudaHostAlloc", "cuda_runtime", EventKind.ALLOCATE),
        ("hipMalloc", "cuda_runtime", EventKind.ALLOCATE),
        ("cuMemCreate", "cuda_driver", EventKind.ALLOCATE),
        ("cudaMemGetInfo", "cuda_runtime", EventKind.RUNTIME),
        ("anything", "privateuse1_runtime", EventKind.RUNTIME),
    ],
)
def test_host_kinds(name: str, category: str, kind: EventKind) -> None:
    trace = read(to_bytes([event(name, 1, 1, category)]))
    assert trace.events.kind.tolist() == [kind]
    assert trace.tracks.kind.tolist() == [TrackKind.HOST_THREAD]


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("volta_sgemm_64x64_nt", "kernel", EventKind.KERNEL),
        ("volta_sgemm_64x64_nt", "Kernel", EventKind.KERNEL),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            "kernel",
            EventKind.COLLECTIVE,
        ),
        ("__amd_rocclr_copyBuffer", "kernel", EventKind.COPY),
        ("__amd_rocclr_fillBufferAligned", "kernel", EventKind.MEMSET),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", EventKind.COPY),
        ("Memset (Device)", "Memset", EventKind.MEMSET),
        ("ProfilerStep#2", "gpu_user_annotation", EventKind.DEVICE_ANNOTATION),
        ("Stream Sync", "cuda_sync", EventKind.DEVICE_SYNC),
        ("pe_exe", "mtia_ccp_events", EventKind.KERNEL),
        ("event_wait", "mtia_ccp_events", EventKind.DEVICE_SYNC),
    ],
)
def test_device_kinds(name: str, category: str, kind: EventKind) -> None:
    trace = read(to_bytes([kernel(name, 1, 1, category)]))
    assert trace.events.kind.tolist() == [kind]
    assert trace.events.step.tolist() == [-1]
    assert trace.tracks.kind.tolist() == [TrackKind.DEVICE_STREAM]


def test_steps_carry_their_number() -> None:
    trace = read(to_bytes([event("ProfilerStep#552", 1, 5, "user_annotation")]))
    assert trace.events.step.tolist() == [552]


def test_other_events_are_ignored_and_unknown_ones_counted() -> None:
    trace = read(
        to_bytes(
            [
                event("aten::mm", 1, 1),
                event("PyTorch Profiler (0)", 1, 9, "Trace"),
                event("range", 1, 9, "cuda_profiler_range"),
                event("what", 1, 9, "novel_category"),
                {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1, **HOST},
            ]
        )
    )
    assert len(trace.events) == 1
    (note,) = trace.notes
    assert (note.id, "1 events of unknown categories: novel_category" in note.message) == (
        "unknown-events",
        True,
    )


def test_launches_are_joined_by_correlation() -> None:
    trace = read(
        to_bytes(
            [
                event("cudaLaunchKernel", 1, 2, "cuda_runtime", args={"correlation": 70}),
                event("cudaLaunchKernel", 4, 2, "cuda_runtime", args={"correlation": 71}),
                kernel("b", 9, 1, correlation=71),
                kernel("a", 7, 1, correlation=70),
                kernel("lost", 11, 1, correlation=0),
            ]
        )
    )
    launches = {trace.name(row): int(trace.events.launched_by[row]) for row in range(2, 5)}
    assert launches == {"a": 0, "b": 1, "lost": -1}


def test_backward_nodes_find_the_innermost_forward_operator() -> None:
    # linear and t both read sequence number 5; t, started last, made the node.
    trace = read(
        to_bytes(
            [
                event("linear", 1, 9, args={"Sequence number": 5, "Fwd thread id": 0}),
                event("t", 2, 1, args={"Sequence number": 5, "Fwd thread id": 0}),
                event("addmm", 4, 5, args={"Sequence number": 6, "Fwd thread id": 0}),
                event("AddmmBackward0", 20, 3, args={"Sequence number": 6, "Fwd thread id": 1}),
                event("TBackward0", 24, 3, args={"Sequence number": 5, "Fwd thread id": 1}),
                event("NoForward", 28, 3, args={"Sequence number": 9, "Fwd thread id": 1}),
            ]
        )
    )
    forward = trace.events.forward
    assert int(forward[named(trace, "AddmmBackward0")]) == named(trace, "addmm")
    assert int(forward[named(trace, "TBackward0")]) == named(trace, "t")
    assert int(forward[named(trace, "NoForward")]) == -1


def test_each_thread_counts_its_own_sequence_numbers() -> None:
    # Two replicas of nn.DataParallel, each in a thread of its own, and the numbers that the
    # profiler gave those threads when they first recorded; their backward nodes run on a third.
    def numbered(
        name: str, ts: float, tid: int, sequence: int, forward_thread: int
    ) -> dict[str, object]:
        arguments = {"Sequence number": sequence, "Fwd thread id": forward_thread}
        return event(name, ts, 1, args=arguments, tid=tid)

    replicas = [
        numbered(f"{name}{tid}", ts + tid / 10, tid, sequence, 0)
        for tid in (22, 21)
        for name, ts, sequence in (("mm", 1, 0), ("relu", 3, 1))
    ]
    backward = [
        numbered("Relu21Backward0", 10, 30, 1, 4),
        numbered("Relu22Backward0", 12, 31, 1, 5),
        numbered("Mm21Backward0", 14, 30, 0, 4),
        numbered("Mm22Backward0", 16, 31, 0, 5),
        numbered("OutputBackward0", 20, 30, 7, 3),
    ]
    main = [numbered("output", 6, 10, 7, 0)]
    trace = read(to_bytes([*replicas, *main, *backward]))
    forward = trace.events.forward
    for node, operator in (
        ("Relu21Backward0", "relu21"),
        ("Mm21Backward0", "mm21"),
        ("Relu22Backward0", "relu22"),
        ("Mm22Backward0", "mm22"),
        ("OutputBackward0", "output"),
    ):
        assert int(forward[named(trace, node)]) == named(trace, operator), node


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


_COMMS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 400,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Seq": 12,
}


def test_collectives_have_the_larger_message_in_bytes() -> None:
    trace = read(
        to_bytes([kernel("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 1, 5, **_COMMS)])
    )
    table = trace.collectives
    assert trace.text(int(table.operation[0])) == "all-gather"
    assert table.size_bytes.tolist() == [800]  # 400 elements of two bytes
    assert table.group_size.tolist() == [4]
    assert trace.text(int(table.group[0])) == "7"
    assert table.sequence.tolist() == [12]


def test_collectives_without_arguments_take_those_of_their_call() -> None:
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


def test_collectives_carried_out_by_sending_are_named_by_their_call() -> None:
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
    operations = [trace.text(int(one)) for one in trace.collectives.operation]
    assert operations == ["all-to-all", "send", "send-recv"]


def test_collectives_without_sizes_take_the_tensors_of_their_call() -> None:
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
    assert [trace.text(int(one)) for one in table.operation] == [
        "all-reduce",
        "all-gather",
        "all-to-all",
    ]
    # 4 bytes of each number; one of eight parts; 8 bytes of each number.
    assert table.size_bytes.tolist() == [181_240_752, 8 * 16_777_216, 3_072]
    assert table.sent_bytes.tolist() == [181_240_752, 16_777_216, 3_072]
    assert [trace.text(int(one)) for one in table.dtype] == ["Float", "signed char", "long"]


def test_ranks_of_an_all_to_all_may_send_less_than_they_get() -> None:
    sizes = {"In msg nelems": 100, "Out msg nelems": 300, "dtype": "Float"}
    name = "ncclDevKernel_SendRecv(x)"
    described = {"Collective name": "all_to_allv", "Group size": 4, **sizes}
    table = read(to_bytes([kernel(name, 5, 5, **described)])).collectives
    assert (table.sent_bytes.tolist(), table.size_bytes.tolist()) == ([400], [1200])


def test_collectives_of_the_host_are_sized_by_their_tensors() -> None:
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


def test_memory_of_host_and_device() -> None:
    def instant(ts: int, **args: int) -> dict[str, object]:
        name = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]"}
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


def test_kernels_of_a_graph_are_launched_by_the_launch_of_the_graph() -> None:
    # All of a graph's kernels carry its launch's correlation; "graph id" is 0 outside of graphs.
    node = {"correlation": 9, "graph id": 3}
    trace = read(
        to_bytes(
            [
                event("cudaGraphLaunch", 1, 1, "cuda_runtime", args={"correlation": 9}),
                event("cudaLaunchKernel", 3, 1, "cuda_runtime", args={"correlation": 11}),
                kernel("first", 4, 2, **node, **{"graph node id": 17179869185}),
                kernel("second", 7, 2, **node, **{"graph node id": 17179869187}),
                kernel("alone", 10, 2, correlation=11, **{"graph id": 0, "graph node id": 0}),
            ]
        )
    )
    launches = [trace.name(row) for row in trace.events.launched_by[2:].tolist()]
    assert launches == ["cudaGraphLaunch", "cudaGraphLaunch", "cudaLaunchKernel"]


def test_kernels_of_a_graph_whose_launch_is_not_there_have_none() -> None:
    trace = read(to_bytes([kernel("alone", 4, 2, correlation=9, **{"graph id": 3})]))
    assert trace.events.launched_by.tolist() == [-1]


def test_devices_are_those_listed_and_those_with_events() -> None:
    listed = [{"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 2**37, "numSms": 304}]
    trace = read(to_bytes([kernel("k", 1, 1, device=2)], deviceProperties=listed))
    # ROCm numbers the only visible device 0 in the header and 2 in the events.
    assert trace.devices == (
        Device(0, "AMD Instinct MI300X", "gpu", 2**37, 304),
        Device(2, "AMD Instinct MI300X", "gpu", 2**37, 304),
    )


def test_unknown_devices_are_devices_all_the_same() -> None:
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
def test_ranks_by_name(name: str, rank: int | None) -> None:
    trace = read(to_bytes([event("a", 1, 1)]), path=f"some/{name}")
    assert trace.source.rank == rank


def test_what_was_recorded_is_three_valued() -> None:
    old = read(to_bytes([event("a", 1, 1)])).source
    assert (old.has_shapes, old.has_stacks, old.has_memory) == (None, None, None)
    # Files with a trace id write the options that are on, and only those.
    new = read(to_bytes([event("a", 1, 1)], trace_id="6A31", with_stack=1)).source
    assert (new.has_shapes, new.has_stacks, new.has_memory) == (False, True, False)


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


def test_begin_and_end_events_become_complete_ones() -> None:
    def half(ph: str, ts: float, name: str | None = None, tid: int = 1) -> dict[str, Any]:
        named = {} if name is None else {"name": name, "cat": "cpu_op"}
        return {"ph": ph, "pid": 1, "tid": tid, "ts": ts, **named}

    # outer [0, 10) holds inner [2, 5.5); other begins on a thread of its own and never ends;
    # an end comes without a beginning.
    trace = read(
        to_bytes(
            [
                half("B", 0, "outer"),
                half("B", 2, "inner"),
                half("B", 3, "other", tid=2),
                half("E", 5.5),
                half("E", 10),
                half("E", 11),
            ]
        )
    )
    found = {
        trace.name(row): (int(trace.events.start_ns[row]), int(trace.events.duration_ns[row]))
        for row in range(len(trace.events))
    }
    assert found == {"outer": (0, 10_000), "inner": (2000, 3500), "other": (3000, 0)}
    assert trace.events.parent[named(trace, "inner")] == named(trace, "outer")
    assert "2 events were damaged" in trace.notes[0].message


def test_devices_of_the_first_versions() -> None:
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
