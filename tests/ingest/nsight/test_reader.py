"""What is read from the tables of an export."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor.errors import InvalidTraceError, UnreadableProfileError
from tb_perfadvisor.ingest.merged_ranks import split_by_rank
from tb_perfadvisor.ingest.nsight.ranges import spelled, without_numbers
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Run, Trace
from tests.support.nsight_exports import (
    OTHER_PROCESS,
    PROCESS,
    TABLES,
    THREAD,
    a_range,
    call,
    kernel,
    read,
    write,
)
from tests.support.writers.nsight import write_tables

US = 1_000


def names(trace: Trace, *kinds: EventKind) -> list[str]:
    return [trace.name(row) for row in trace.rows(*kinds).tolist()]


def notes(trace: Trace) -> set[str]:
    return {note.id for note in trace.notes}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_a_kernel_and_its_launch(path: Path) -> None:
    write(
        path,
        {
            1: "void at::native::vectorized_elementwise_kernel<(int)4, (bool)0>(int, T2)",
            2: "cudaLaunchKernel_v7000",
        },
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(100 * US, 130 * US, 1, correlation=9)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(90 * US, 95 * US, 2, 9)],
    )
    trace = read(path)
    (row,) = trace.rows(EventKind.KERNEL).tolist()
    assert trace.name(row) == "void at::native::vectorized_elementwise_kernel<4, false>(int, T2)"
    assert trace.events.duration_ns[row] == 30 * US
    launch = int(trace.events.launched_by[row])
    assert trace.events.kind[launch] == EventKind.LAUNCH
    assert trace.name(launch) == "cudaLaunchKernel"
    assert trace.events.start_ns[launch] == 0
    assert trace.tracks.thread[trace.events.track[launch]] == 500
    kernels = trace.kernels
    assert (kernels.grid_blocks[0], kernels.block_threads[0], kernels.registers[0]) == (8, 128, 40)
    assert kernels.shared_memory_bytes[0] == 1536
    assert kernels.family[0] == KernelFamily.ELEMENTWISE
    assert trace.source.framework == "pytorch"


@pytest.mark.parametrize(
    ("name", "count", "framework"),
    [
        ("fit_lines(Data *, int)", 20, "none"),
        ("fit_lines(Data *, int)", 19, "unknown"),  # PyTorch's own may not have come yet
        ("void at::native::fill_kernel<int>(int)", 20, "pytorch"),
    ],
)
def test_many_kernels_of_no_framework(path: Path, name: str, count: int, framework: str) -> None:
    kernels = [kernel(100 * at * US, (100 * at + 10) * US, 1) for at in range(count)]
    write(path, {1: name}, CUPTI_ACTIVITY_KIND_KERNEL=kernels)
    assert read(path).source.framework == framework


def test_copies_and_fills(path: Path) -> None:
    write(
        path,
        {},
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            (0, 5, 0, 7, 0, PROCESS, 4096, 1, 0, 2),
            (10, 15, 0, 7, 0, PROCESS, 8192, 2, 2, 1),
            (20, 25, 0, 7, 0, PROCESS, 64, 8, 2, 2),
            (30, 35, 0, 7, 0, PROCESS, 64, 99, 2, 2),
        ],
        CUPTI_ACTIVITY_KIND_MEMSET=[(40, 41, 0, 7, 0, PROCESS, 4)],
    )
    trace = read(path)
    assert trace.copies.direction.tolist() == [
        CopyDirection.HOST_TO_DEVICE,
        CopyDirection.DEVICE_TO_HOST,
        CopyDirection.DEVICE_TO_DEVICE,
        CopyDirection.UNKNOWN,
    ]
    assert trace.copies.pageable.tolist() == [1, 0, -1, -1]
    assert trace.copies.size_bytes.tolist() == [4096, 8192, 64, 64]
    assert names(trace, EventKind.COPY)[0] == "Memcpy HtoD (Pageable -> Device)"
    assert len(trace.rows(EventKind.MEMSET)) == 1


def test_ranges_of_pytorch_are_operators(path: Path) -> None:
    write(
        path,
        {5: "step 3"},
        NVTX_EVENTS=[
            a_range(0, 100, 5),
            a_range(10, 20, "aten::mm, seq = 7, op_id = 12, sizes = [[8, 4], [4, 2]]"),
            a_range(30, 40, "MmBackward0, seq = 7, op_id = 13", THREAD + 1),
            a_range(50, 60, "FSDP::pre_forward (blocks.1), op_id = 14"),
            a_range(62, 63, "my_function, with a comma"),
            a_range(70, None, "a mark", kind=34),
            a_range(80, 90, "ProfilerStep#4"),
        ],
    )
    trace = read(path)
    assert names(trace, EventKind.OPERATOR) == ["aten::mm", "MmBackward0"]
    assert trace.text(int(trace.operators.shapes[0])) == "[[8, 4], [4, 2]]"
    assert trace.operators.sequence.tolist() == [7, 7]
    backward = int(trace.rows(EventKind.OPERATOR)[1])
    assert trace.name(int(trace.events.forward[backward])) == "aten::mm"
    assert names(trace, EventKind.ANNOTATION) == [
        "step 3",
        "FSDP::pre_forward (blocks.1)",
        "my_function, with a comma",
    ]
    assert trace.events.step[trace.rows(EventKind.STEP)].tolist() == [4]
    assert trace.source.has_shapes is True


@pytest.mark.parametrize(
    ("text", "same", "sequence"),
    [
        ("aten::mm, seq = 7, op_id = 12, sizes = [[8], [4]]", "seq = 0, op_id = 0, sizes", 7),
        ("aten::mm, seq = 7, op_id = 12", ", seq = 0, op_id = 0", 7),
        ("aten::mm, op_id = 12, sizes = [[8]], input_op_ids = [(1,0)]", "sizes = [[8]]", -1),
        ("aten::mm, op_id = 12, input_op_ids = [(1,0)]", ", op_id = 0", -1),
        ("MmBackward0, seq = 7", ", seq = 0", 7),
        ("aten::mm, seq = 7, sizes = [[8], [4]]", ", seq = 0, sizes = [[8], [4]]", 7),
        ("my_function, with a comma", "my_function, with a comma", -1),
        ("epoch, seq = seven", "epoch, seq = seven", -1),
        ("a, op_id = b, op_id = 3", "a, op_id = b, op_id = 3", -1),
        ("a, seq = 1234567890123456789", "a, seq = 1234567890123456789", -1),
        ("a, seq = 1, seq = 2", "a, seq = 1, seq = 2", -1),
        ("loss = 12", "loss = 12", -1),
        ("", "", -1),
    ],
)
def test_calls_of_an_operator_have_the_same_text(text: str, same: str, sequence: int) -> None:
    others = ["aten::add, seq = 91, op_id = 92", "a, op_id = ", "forward"]
    block, numbers = without_numbers(b"".join(f"{each}\0".encode() for each in [text, *others]))
    assert numbers.tolist() == [sequence, 91, -1, -1]
    found, *rest = block.decode().split("\0")[:-1]
    assert rest == ["aten::add, seq = 0, op_id = 0", *others[1:]]
    assert found.endswith(same) or same in found
    parts, before = spelled(found), spelled(text)
    assert (parts.name, parts.shapes) == (before.name, before.shapes)
    assert (parts.sequence == -1) == (before.sequence == -1)


def test_ranges_by_start_and_end_may_cross(path: Path) -> None:
    write(
        path,
        {},
        NVTX_EVENTS=[
            a_range(0, 100, "outer"),
            a_range(50, 150, "crossing", kind=60),
        ],
    )
    trace = read(path)
    assert trace.events.parent.tolist() == [-1, -1]
    assert len(trace.tracks) == 2


def test_graphs_recorded_as_a_whole_are_named(path: Path) -> None:
    write(
        path,
        {2: "cudaGraphLaunch_v10000"},
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[(100, 400, 0, 7, 3, PROCESS, 12)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(0, 50, 2, 3)],
    )
    trace = read(path)
    assert names(trace, EventKind.KERNEL) == ["CUDA graph 12"]
    assert trace.name(int(trace.events.launched_by[trace.rows(EventKind.KERNEL)[0]])) == (
        "cudaGraphLaunch"
    )
    assert "whole-graphs" in notes(trace)


def test_waits_of_streams_and_of_the_host(path: Path) -> None:
    write(
        path,
        {2: "cudaStreamWaitEvent_v3020", 3: "cudaStreamSynchronize_v3020"},
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(0, 5, 2, 1), call(10, 60, 3, 2)],
        # Versions differ in what these numbers mean, so only the call tells.
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[
            (1, 40, 0, 7, 1, PROCESS, 2),
            (11, 59, 0, 7, 2, PROCESS, 2),
        ],
    )
    trace = read(path)
    assert names(trace, EventKind.DEVICE_SYNC) == ["Stream Wait Event"]
    assert names(trace, EventKind.SYNCHRONIZE) == ["cudaStreamSynchronize"]


def test_calls_of_the_operating_system_count_on_threads_of_the_program(path: Path) -> None:
    write(
        path,
        {2: "cudaLaunchKernel_v7000", 3: "read", 4: "poll", 5: "pthread_cond_signal"},
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(0, 5, 2, 1)],
        OSRT_API=[
            (10, 1_010, 27, THREAD, 3),
            (0, 9_999, 27, THREAD + 1, 4),
            (2_000, 2_999, 27, THREAD, 5),  # shorter than the recorder's threshold
        ],
    )
    assert names(read(path), EventKind.PYTHON) == ["read"]


# --- several processes -------------------------------------------------------------------------


def payload(schema: int, *values: tuple[int, int]) -> bytes:
    """A payload as the export holds it: a header of four numbers, then values with their sizes."""
    content = b"".join(value.to_bytes(size, "little") for value, size in values)
    header = (1, schema, len(content), 32 + len(content))
    return b"".join(value.to_bytes(8, "little") for value in header) + content


SCHEMAS = [
    (1, 70, 0, 18, "NCCL communicator ID", None),
    (1, 70, 1, 5, "No. of ranks", 8),
    (1, 70, 2, 5, "Rank", 12),
    (1, 71, 0, 18, "NCCL communicator ID", None),
    (1, 71, 1, 22, "Message size [bytes]", 8),
]
_GROUP = 2**63 + 5


def nccl_export(path: Path, *, with_ranks: bool) -> Path:
    """Two processes. That of device 0 has the higher number, and rank 1 if NCCL is asked."""
    ranges, calls, kernels = [], [], []
    for thread, process, device, rank in (
        (OTHER_PROCESS | 501, OTHER_PROCESS, 0, 1),
        (THREAD, PROCESS, 1, 0),
    ):
        if with_ranks:
            data = payload(70, (_GROUP, 8), (2, 4), (rank, 4))
            ranges.append(a_range(0, 5, 11, thread, data=data))
        ranges += [
            # A group of two calls, which one kernel carries out, and a call of its own.
            a_range(10, 11, 10, thread, data=payload(71, (_GROUP, 8), (1024, 8))),
            a_range(12, 13, 10, thread, data=payload(71, (_GROUP, 8), (2048, 8))),
            a_range(30, 36, 12, thread, data=payload(71, (_GROUP, 8), (512, 8))),
        ]
        # Both processes count their calls from 1.
        calls += [call(20, 22, 2, 1, thread), call(31, 32, 2, 2, thread)]
        kernels += [
            kernel(100, 200, 3, 1, device=device, process=process),
            kernel(300, 350, 4, 2, device=device, process=process),
        ]
    strings = {
        2: "cuLaunchKernelEx",
        3: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        4: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        10: "ncclAllReduce",
        11: "ncclCommInitRank",
        12: "ncclAlltoAll",
    }
    return write(
        path,
        strings,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        NVTX_EVENTS=ranges,
        NVTX_PAYLOAD_SCHEMA_ENTRIES=SCHEMAS,
        PROCESSES=[(PROCESS, 500, "python3"), (OTHER_PROCESS, 501, "python3")],
    )


def test_each_rank_becomes_a_trace(path: Path) -> None:
    first, second = split_by_rank(read(nccl_export(path, with_ranks=True)))
    assert (first.source.rank, second.source.rank) == (0, 1)
    assert first.source.world_size == 2
    for part, device in ((first, 1), (second, 0)):
        rows = part.rows(EventKind.COLLECTIVE)
        assert set(part.tracks.device[part.events.track[rows]].tolist()) == {device}
        assert (part.events.launched_by[rows] >= 0).all()
    assert "numbered-ranks" not in notes(first)


def test_ranks_are_numbered_by_device_if_nobody_states_them(path: Path) -> None:
    first, second = split_by_rank(read(nccl_export(path, with_ranks=False)))
    for part, device in ((first, 0), (second, 1)):
        rows = part.rows(EventKind.COLLECTIVE)
        assert set(part.tracks.device[part.events.track[rows]].tolist()) == {device}
    assert "numbered-ranks" in notes(first)


def test_collectives_are_described_by_the_calls_of_nccl(path: Path) -> None:
    first, _ = split_by_rank(read(nccl_export(path, with_ranks=True)))
    table = first.collectives
    assert [first.text(each) for each in table.operation.tolist()] == ["all-reduce", "all-to-all"]
    assert table.size_bytes.tolist() == [1024 + 2048, 512]
    assert table.group_size.tolist() == [2, 2]
    assert first.text(int(table.group[0])) == f"{_GROUP:#x}"


# --- devices -----------------------------------------------------------------------------------


def test_gpus_with_their_counters(path: Path) -> None:
    write(
        path,
        {1: "kernel"},
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 10, device=1)],
        TARGET_INFO_GPU=[
            (0, "NVIDIA H100 80GB HBM3", 80 << 30, 132, 9, 0, 1_980_000_000, 3_350_000_000_000),
            (1, "NVIDIA H100 80GB HBM3", 80 << 30, 132, 9, 0, 1_980_000_000, 0),
        ],
        TARGET_INFO_GPU_METRICS=[(257, 12, "Tensor Active [Throughput %]")],
        GPU_METRICS=[(0, 257, 12, 20), (1, 257, 12, 60), (1, 257, 13, 99)],
    )
    (device,) = read(path).devices
    assert (device.index, device.compute_capability, device.clock_hz) == (1, "9.0", 1_980_000_000)
    assert device.reported_bandwidth_bytes_per_s is None
    assert device.matrix_unit_use == pytest.approx(0.4)


def test_gpus_of_older_exports(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        for statement in (
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT)",
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 10, 1)",
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
            "INSERT INTO StringIds VALUES (1, 'fill')",
            "CREATE TABLE TARGET_INFO_GPU (vmId INT, deviceId INT, name TEXT)",
            "INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA GeForce RTX 3080')",
            "CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INT, name TEXT, globalMemorySize INT, "
            "numMultiprocessors INT, computeCapabilityMajor INT, computeCapabilityMinor INT, "
            "coreClockRate INT, globalMemoryBandwidth INT)",
            "INSERT INTO TARGET_INFO_CUDA_GPU VALUES "
            "(0, 'NVIDIA GeForce RTX 3080', 10495524864, 68, 8, 6, 1740000, 760080000)",
        ):
            connection.execute(statement)
    (device,) = read(path).devices
    assert (device.name, device.compute_capability) == ("NVIDIA GeForce RTX 3080", "8.6")
    assert (device.multiprocessors, device.memory_bytes) == (68, 10_495_524_864)
    # The data sheet has 1.71 GHz and 760 GB/s.
    assert device.clock_hz == pytest.approx(1.71e9, rel=0.02)
    assert device.reported_bandwidth_bytes_per_s == pytest.approx(760e9, rel=0.001)


# --- what versions lack, and damage -------------------------------------------------------------


def test_older_exports_lack_columns(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT)"
        )
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 10, 1)")
        connection.execute("CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT)")
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        connection.execute("CREATE TABLE UNKNOWN_TO_US (a INT)")
        connection.execute("CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT)")
        connection.execute(
            "INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_PRODUCT_VERSION', '2022.2.1.31')"
        )
    connection.close()
    trace = read(path)
    assert trace.source.version == "2022.2.1.31"
    assert names(trace, EventKind.KERNEL) == ["gemm"]
    assert trace.kernels.grid_blocks.tolist() == [-1]


def test_values_that_are_none_or_of_another_type(path: Path) -> None:
    write(
        path,
        {1: "kernel"},
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(0, 10),
            ("x", "y", *kernel(0, 10)[2:]),
            (None, None, *kernel(0, 10)[2:]),
            (50, 20, *kernel(0, 10)[2:]),
            (60, 70, None, None, None, None, None, *kernel(0, 10)[7:]),
            (80, 90, b"\0", 1.5, 2**40, 1, 10**9, *kernel(0, 10)[7:]),
        ],
        NVTX_EVENTS=[("a", 3, 59, b"\xff", THREAD, None, 0, None)],
    )
    trace = read(path)
    assert len(trace.rows(EventKind.KERNEL)) >= 3
    assert (trace.events.duration_ns >= 0).all()
    assert np.isfinite(trace.kernels.occupancy_share).sum() == 0


def test_an_export_without_device_work_says_how_to_record(path: Path) -> None:
    write(path, {}, NVTX_EVENTS=[a_range(0, 10, "step")])
    (note,) = [note for note in read(path).notes if note.id == "empty-profile"]
    assert "nsys profile --trace=cuda" in note.remedy


def test_a_range_owns_what_its_thread_launched_in_it_however_late_it_runs(path: Path) -> None:
    """The queue is a step and a half deep, so each kernel runs in ranges of other steps."""
    kernels, calls, ranges = [], [], []
    for step in range(6):
        begin = step * 10_000 * US
        ranges += [
            a_range(begin, begin + 9_900 * US, f"step {step}"),
            a_range(begin, begin + 1_000 * US, "forward"),
            a_range(begin + 1_000 * US, begin + 2_000 * US, "optimizer"),
        ]
        for place, (name, lasts) in enumerate([(1, 6_000 * US), (2, 3_000 * US)]):
            launched = begin + 100 * US + place * 1_000 * US
            runs = launched + 15_000 * US + place * 5_000 * US
            correlation = 10 * step + place + 1
            calls.append(call(launched, launched + 10 * US, 3, correlation))
            kernels.append(kernel(runs, runs + lasts, name, correlation))
    write(
        path,
        {1: "forward_kernel", 2: "update_kernel", 3: "cudaLaunchKernel_v7000"},
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        NVTX_EVENTS=ranges,
    )
    signals = Signals(Run("", "", "", (read(path),)))
    trace, steps, events = signals.trace, signals.steps, signals.trace.events
    assert steps.source == "repeats of step"
    rows = trace.rows(EventKind.KERNEL)
    around = events.parent[events.launched_by[rows]]
    owned: dict[str, set[str]] = {trace.name(int(row)): set() for row in rows}
    for row, range_row in zip(rows.tolist(), around.tolist(), strict=True):
        owned[trace.name(row)].add(trace.name(range_row))
    assert owned == {"forward_kernel": {"forward"}, "update_kernel": {"optimizer"}}
    # One kernel of each kind, and 9 ms of work, for each step that was launched in it.
    used = steps.own(rows)
    assert np.bincount(steps.owner[used]).tolist() == [2] * len(steps)
    assert events.duration_ns[used].sum() == len(steps) * 9_000 * US


def test_ranges_of_tables_with_a_suffix_are_read(path: Path) -> None:
    write_tables(
        path,
        {"NVTX_EVENTS_1": TABLES["NVTX_EVENTS"], "NVTX_EVENTS_2": TABLES["NVTX_EVENTS"]}
        | {"CUPTI_ACTIVITY_KIND_KERNEL": TABLES["CUPTI_ACTIVITY_KIND_KERNEL"]},
        {
            "NVTX_EVENTS_1": [a_range(0, 10, "step 0")],
            "NVTX_EVENTS_2": [a_range(20, 30, "step 1")],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(2, 8)],
        },
    )
    trace = read(path)
    rows = trace.rows(EventKind.ANNOTATION)
    assert [trace.name(int(row)) for row in rows] == ["step 0", "step 1"]


def test_an_export_without_kernels_is_called_one(path: Path) -> None:
    write(
        path,
        {2: "cudaMemsetAsync_v3020"},
        CUPTI_ACTIVITY_KIND_MEMSET=[(40, 41, 0, 7, 1, PROCESS, 4)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(30, 35, 2, 1)],
    )
    assert "no-kernels" in notes(read(path))
    assert "empty-profile" not in notes(read(path))


def test_warnings_of_the_recorder_are_passed_on(path: Path) -> None:
    write(
        path,
        {1: "kernel"},
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 10)],
        DIAGNOSTIC_EVENT=[(1, "Profiling has started."), (2, "Some CUDA events\nwere lost.\n")],
    )
    texts = [note.message for note in read(path).notes if note.id == "recorder-warning"]
    assert texts == ["Nsight Systems: Some CUDA events were lost."]


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    connection.close()
    with pytest.raises(UnreadableProfileError, match="no table of Nsight Systems"):
        read(path)


def test_a_device_beyond_32_bits(path: Path) -> None:
    write(path, {1: "kernel"}, CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 9, device=2**32)])
    with pytest.raises(InvalidTraceError, match="the device of one of its events does not fit"):
        read(path)
