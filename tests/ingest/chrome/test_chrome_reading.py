"""What an export contains, and how it is read."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.chrome import columns
from tb_perfadvisor.ingest.chrome.columns import FLOATS, INTEGERS, TEXTS
from tb_perfadvisor.ingest.xspace.decode.stats import ITERATOR_STATS, USED_STATS
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tests.support.chrome_files import HOST, note_ids, process, read, span, thread, to_bytes


def times(trace: Trace) -> list[tuple[str, int, int]]:
    events = trace.events
    return [
        (trace.name(row), int(events.start_ns[row]), int(events.duration_ns[row]))
        for row in range(len(events))
    ]


def names(trace: Trace, *kinds: EventKind) -> list[str]:
    return [trace.name(row) for row in trace.rows(*kinds).tolist()]


def labels(trace: Trace) -> list[str]:
    return [trace.text(index) for index in trace.tracks.label.tolist()]


def test_every_stat_read_from_xplanes_is_read() -> None:
    # A TPU's counter lines are not exported, and `name` is an argument of other events, too.
    wanted = (USED_STATS | ITERATOR_STATS) - {"% util", "name"}
    assert wanted == TEXTS | INTEGERS | FLOATS
    assert len(TEXTS) + len(INTEGERS) + len(FLOATS) == len(wanted)


def test_an_export_of_jax() -> None:
    # As JAX 0.10 writes them: 17 digits, arguments as text, a picosecond in place of no duration.
    trace = read(
        [
            *HOST,
            span("train", 2408.3919999999998, 157.44999999999999, args={"step_num": "7"}),
            span("PjitFunction(step)", 2410.0, 100.25),
            span("wrapped_tanh", 2420.5, 1e-06, args={"hlo_op": "tanh.1", "hlo_module": "jit_f"}),
        ]
    )
    assert times(trace) == [
        ("train", 0, 157_450),
        ("PjitFunction(step)", 1_608, 100_250),
        ("wrapped_tanh", 12_108, 0),
    ]
    assert trace.events.parent.tolist() == [-1, 0, 1]
    assert (names(trace, EventKind.STEP), trace.events.step[0]) == (["train"], 7)
    assert names(trace, EventKind.OPERATOR) == ["wrapped_tanh"]
    assert (trace.text(int(trace.hlo.name[0])), trace.text(int(trace.hlo.module[0]))) == (
        "tanh.1",
        "jit_f",
    )
    source = trace.source
    assert (source.format, source.framework, source.origin_unix_ns) == ("chrome", "jax", None)
    assert note_ids(trace) == ["chrome-export"]


def test_a_gpu() -> None:
    trace = read(
        [
            process(1, "/device:GPU:0"),
            *thread(1, 16, "Stream #16(Kernel)"),
            *thread(1, 3, "XLA Ops"),
            *HOST,
            span("cuLaunchKernel", 10, 3, args={"correlation_id": "9"}),
            span(
                "gemm_bf16",
                20,
                5.5,
                pid=1,
                tid=16,
                args={
                    "correlation_id": "9",
                    "kernel_details": "regs:32 static_shared:0 dynamic_shared:64 grid:4,2,1 "
                    "block:256,1,1 occ_pct:50",
                    "occupancy_pct": "62.5",
                },
            ),
            span(
                "MemcpyH2D",
                30,
                1,
                pid=1,
                tid=16,
                args={"memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"},
            ),
            span("dot.1", 20, 5.5, pid=1, tid=3),
        ]
    )
    (kernel,) = trace.rows(EventKind.KERNEL).tolist()
    assert (trace.name(kernel), trace.name(int(trace.events.launched_by[kernel]))) == (
        "gemm_bf16",
        "cuLaunchKernel",
    )
    kernels = trace.kernels
    assert (kernels.grid_blocks[0], kernels.block_threads[0], kernels.registers[0]) == (8, 256, 32)
    assert kernels.occupancy_share[0] == pytest.approx(0.625)
    assert trace.copies.direction.tolist() == [CopyDirection.HOST_TO_DEVICE]
    assert (trace.copies.size_bytes[0], trace.copies.pageable[0]) == (4096, 0)
    # A derived line repeats the stream's work: it never counts.
    assert names(trace, EventKind.DEVICE_OP) == ["dot.1"]
    assert [(device.kind, device.name) for device in trace.devices] == [("gpu", "GPU")]
    assert "description of the device" in trace.notes[0].message


def test_a_tpu() -> None:
    text = "%all-reduce.3 = f32[1024]{0} all-reduce(f32[1024]{0} %p), replica_groups={{0,1}}"
    facts = {
        "long_name": text,
        "hlo_category": "all-reduce",
        "tf_op": "jit(f)/psum",
        "source": "train.py:37",
        "bytes_accessed": "8192",
        "flops": "1024",
    }
    trace = read(
        [
            process(3, "/device:TPU:0"),
            *thread(3, 1, "Steps"),
            *thread(3, 3, "XLA Ops"),
            span("5", 0, 100, pid=3, tid=1, args={"group_id": "5", "step_name": "5"}),
            span("all-reduce.3", 10, 20, pid=3, tid=3, args=facts),
            span("all-reduce.3", 50, 20, pid=3, tid=3, args=facts),
        ]
    )
    assert names(trace, EventKind.COLLECTIVE) == ["all-reduce.3"] * 2
    assert trace.collectives.size_bytes.tolist() == [4096, 4096]
    hlo = trace.hlo
    assert (hlo.name.size, trace.text(int(hlo.text[0])), trace.text(int(hlo.source_line[0]))) == (
        1,
        text,
        "train.py:37",
    )
    assert (hlo.flop[0], hlo.traffic_bytes[0]) == (1024, 8192)
    (step,) = trace.rows(EventKind.DEVICE_STEP).tolist()
    assert trace.events.step[step] == 5
    assert "launches of its programs" in trace.notes[0].message


@pytest.mark.parametrize(("stated", "flop"), [("0", 0), ("-1", np.nan), (None, np.nan)])
def test_an_operation_without_arithmetic_is_not_an_unknown_one(
    stated: str | None, flop: float
) -> None:
    text = "%copy.1 = f32[8]{0} copy(f32[8]{0} %p)"
    facts = {"long_name": text, "hlo_category": "copy"} | ({"flops": stated} if stated else {})
    operation = span("copy.1", 10, 20, pid=3, tid=3, args=facts)
    trace = read([process(3, "/device:TPU:0"), *thread(3, 3, "XLA Ops"), operation])
    assert trace.hlo.flop.tolist() == pytest.approx([flop], nan_ok=True)


def test_shortened_name_is_restored() -> None:
    whole = "Iterator::Root::Prefetch::Map"
    trace = read([*HOST, span("Iterator::Map", 0, args={"long_name": whole})])
    assert names(trace, EventKind.INPUT_WORK) == [whole]


def test_lines_follow_the_sort_order_of_the_file() -> None:
    trace = read(
        [
            process(701, "/host:CPU"),
            *thread(701, 3, "third", order=3),
            *thread(701, 9, "first", order=1),
            *thread(701, 5, "second", order=2),
            *(span("a", 0, tid=tid) for tid in (3, 5, 9)),
        ]
    )
    assert labels(trace) == ["first", "second", "third"]


def test_absolute_times_are_the_wall_clock() -> None:
    # Absolute times in November 2026 are 1.8e21 picoseconds, more than 64 bits.
    start_us = 1_795_244_555_270_345
    trace = read([*HOST, span("a", start_us, 7), span("b", start_us + 3, 2)])
    assert times(trace) == [("a", 0, 7_000), ("b", 3_000, 2_000)]
    assert trace.source.origin_unix_ns == start_us * 1000


def test_event_at_time_zero_does_not_discard_the_others() -> None:
    start_us = 1_795_244_555_270_345
    trace = read([*HOST, span("never", 0), *(span("a", start_us + i) for i in range(3))])
    assert [name for name, *_ in times(trace)] == ["a", "a", "a"]
    assert "broken-events" in note_ids(trace)


@pytest.mark.parametrize(
    ("picoseconds", "nanoseconds"),
    [(1_999_999, 1_999), (2_000_000, 2_000), (123_456_789_012_345, 123_456_789_012)],
)
def test_times_are_exact_to_the_picosecond(picoseconds: int, nanoseconds: int) -> None:
    """As in an xplane: rounded down, which preserves nesting."""
    trace = read([*HOST, span("a", 0.0, picoseconds / 1e6)])
    assert trace.events.duration_ns.tolist() == [nanoseconds]


def test_events_that_end_together_stay_nested() -> None:
    # 0.1 + 0.7 is 0.7999999999999999 in binary, 0.3 + 0.5 is 0.8.
    trace = read([*HOST, span("outer", 0.1, 0.7), span("inner", 0.3, 0.5)])
    assert trace.events.parent.tolist() == [-1, 0]


def test_threads_without_names_and_numbers() -> None:
    trace = read(
        [process("701", "/host:CPU"), span("a", 1, tid=4), span("b", 1, pid="701", tid="main")]
    )
    assert sorted(labels(trace)) == ["thread 4", "thread main"]


def test_instant_events_have_no_duration() -> None:
    trace = read([*HOST, span("a", 0, 5), {**span("b", 2), "ph": "i", "dur": None, "s": "t"}])
    assert times(trace) == [("a", 0, 5_000), ("b", 2_000, 0)]
    assert note_ids(trace) == ["chrome-export"]


def test_counters_and_flows_are_not_events() -> None:
    others = [{**span("x", 1), "ph": phase, "id": 1} for phase in "CbenstfNODPIBE"]
    assert times(read([*HOST, span("a", 0, 5), *others])) == [("a", 0, 5_000)]


def test_steps_after_the_last_recorded_event_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # JAX's exporter stops after a million events; here after five.
    monkeypatch.setattr(columns, "_MOST_EVENTS", 5)

    def steps(count: int) -> list[dict[str, Any]]:
        made = []
        for number in range(count):
            at = 100.0 * number
            made.append(span("train", at, 90, args={"step_num": str(number)}))
            made.append(span("PjitFunction(f)", at + 10, 70))
        return made

    whole = read([*HOST, *steps(2)])
    assert (whole.rows(EventKind.STEP).size, note_ids(whole)) == (2, ["chrome-export"])
    # The third step continues after the last event, so it would seem idle.
    cut = read([*HOST, *steps(3)[:5]])
    assert cut.events.step[cut.rows(EventKind.STEP)].tolist() == [0, 1]
    assert note_ids(cut) == ["event-limit", "chrome-export"]
    assert "has 5 events" in cut.notes[0].message
    # The same for the device's step line.
    device = [process(1, "/device:TPU:0"), *thread(1, 1, "Steps"), *thread(1, 2, "XLA Ops")]
    marks = [span(str(i), 10 * i, 9, pid=1, tid=1, args={"group_id": str(i)}) for i in range(3)]
    ops = [span("copy", 10 * i + 1, 2, pid=1, tid=2) for i in range(2)]
    found = read([*device, *marks, *ops])
    assert found.events.step[found.rows(EventKind.DEVICE_STEP)].tolist() == [0, 1]


class TestOldProfiles:
    """TensorFlow 1's timelines, and its profiler before 2.2: a process for each stream."""

    def test_streams_and_executors(self) -> None:
        def op(pid: int, node: str, kind: str, at: int, tid: int = 0) -> dict[str, Any]:
            return {**span(kind, at, 10, pid=pid, tid=tid), "cat": "Op",
                    "args": {"name": node, "op": kind}}  # fmt: skip

        job = "/job:localhost/replica:0/task:0/device"
        trace = read(
            [
                process(0, "Allocators"),
                process(1, "/device:GPU:0/stream:all Compute"),
                process(3, "/device:GPU:0/memcpy Compute"),
                process(5, "/device:GPU:0/stream:13 Compute"),
                process(7, f"{job}:GPU:0 Compute"),
                process(8, f"{job}:GPU:0 Tensors"),
                process(9, f"{job}:CPU:0 Compute"),
                op(1, "dense/MatMul", "MatMul", 120),
                op(3, "edge_1", "MEMCPYHtoD", 140),
                op(5, "dense/MatMul", "MatMul", 120),
                op(5, "edge_1", "MEMCPYHtoD", 140, tid=1),
                op(7, "dense/MatMul", "MatMul", 100, tid=0),
                op(7, "dense/Relu", "Relu", 105, tid=1),
                op(9, "input/Const", "Const", 90),
                # Only nodes are named by their arguments.
                {**op(9, "input/Const", "Executor", 80), "cat": "Scope"},
            ]
        )
        assert sorted(labels(trace)) == [
            "Stream #13",
            "executor of CPU:0, lane 0",
            "executor of GPU:0, lane 0",
            "executor of GPU:0, lane 1",
        ]
        assert names(trace, EventKind.KERNEL) == ["MatMul"]
        assert trace.copies.direction.tolist() == [CopyDirection.HOST_TO_DEVICE]
        assert names(trace, EventKind.OPERATOR) == [
            "input/Const:Const",
            "dense/MatMul:MatMul",
            "dense/Relu:Relu",
        ]
        assert (trace.source.framework, note_ids(trace)) == ("tensorflow", ["chrome-export"])

    def test_kernel_names_that_follow_their_operation(self) -> None:
        trace = read(
            [
                process(0, "/host:CPU"),
                process(1, "/device:GPU:1/stream:20"),
                span(
                    "MatMul",
                    5,
                    pid=1,
                    args={"long name": "dense/MatMul:MatMul@@volta_fp16_s884gemm_fp16_128x128_nn"},
                ),
            ]
        )
        assert names(trace, EventKind.KERNEL) == ["volta_fp16_s884gemm_fp16_128x128_nn"]
        assert Signals(run_of(trace)).precision is not None

    def test_labels_of_kernels_and_copies(self) -> None:
        """As `CuptiTraceCollectorImpl` of TensorFlow 2.1 composes them."""
        label = "void cudnn::gemm<__half>() regs:64 shm:128 grid:4,2,1 block:256,1,1"
        trace = read(
            [
                process(0, "/host:CPU"),
                process(1, "/device:GPU:0/stream:13"),
                process(2, "/device:GPU:0/stream:14<MemcpyH2D>"),
                process(3, "/device:GPU:0/stream:"),
                span("MatMul", 5, pid=1, args={"label": label, "long name": "a/MatMul:MatMul"}),
                span("edge_7_x", 9, pid=2, args={"label": "edge_7_x bytes:4096 aync"}),
                span("other", 9, pid=3, args={"label": "bytes:many"}),
            ]
        )
        assert names(trace, EventKind.KERNEL) == ["void cudnn::gemm<__half>()"]
        kernels, copies = trace.kernels, trace.copies
        assert (kernels.registers[0], kernels.grid_blocks[0]) == (64, 8)
        assert kernels.shared_memory_bytes[0] == 128
        assert names(trace, EventKind.COPY) == ["edge_7_x"]
        assert (copies.size_bytes[0], copies.direction[0]) == (4096, CopyDirection.HOST_TO_DEVICE)
        assert labels(trace) == ["Stream #13", "Stream #14(MemcpyH2D)"]
        assert note_ids(trace) == ["chrome-export"]

    def test_process_named_after_its_device(self) -> None:
        trace = read(
            [
                process(1, "/device:GPU:0 (Tesla V100-SXM2-16GB)"),
                *thread(1, 7, "Stream #7(Compute)"),
                span("gemm", 0, pid=1, tid=7),
            ]
        )
        assert names(trace, EventKind.KERNEL) == ["gemm"]
        assert [device.index for device in trace.devices] == [0]


def test_processes_without_a_plane_are_left_out_and_named() -> None:
    trace = read([*HOST, process(5, "Megascale"), span("a", 0), span("b", 1, pid=5)])
    assert [name for name, *_ in times(trace)] == ["a"]
    (note,) = [note for note in trace.notes if note.id == "unknown-events"]
    assert note.message.startswith("1 event was left out")
    assert "Megascale" in note.message


def test_no_events() -> None:
    trace = read([process(0, "/device:GPU:0"), process(701, "/host:CPU")])
    assert (len(trace.events), len(trace.devices)) == (0, 1)
    assert note_ids(trace) == ["chrome-export", "no-events"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"<html></html>", "web page"),
        (to_bytes([span("a", 0)]), "no process of this trace"),
        (to_bytes([process(1, "python 4711"), span("a", 0, pid=1)]), "no process of this trace"),
    ],
)
def test_other_content_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableProfileError, match=words) as caught:
        read(data)
    assert caught.value.where == "run/h.trace.json.gz"


def test_compressed_or_not() -> None:
    data = to_bytes([*HOST, span("a", 0, 5)])
    assert times(read(gzip.compress(data))) == times(read(data)) == [("a", 0, 5_000)]


def test_many_events_are_encoded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        span(f"op{i % 3}", i, 0.5, args={"correlation_id": str(i)} if i % 4 else {})
        for i in range(100)
    ]
    at_once = read([*HOST, *events])
    monkeypatch.setattr("tb_perfadvisor.ingest.chrome.reader._CHUNK", 7)
    in_pieces = read([*HOST, *events])
    assert times(in_pieces) == times(at_once)
    assert np.array_equal(in_pieces.events.kind, at_once.events.kind)


def test_iterators_and_their_functions_are_read() -> None:
    # As TensorFlow 2.3 wrote them: numbers of 64 bits as text.
    run, node = "-6103401881726798917", "8657332241325920452"
    trace = read(
        [
            *HOST,
            *thread(701, 2, "tf_Compute"),
            span("Iterator::Model::ParallelMap", 0, 50, args={
                "id": "4057087162746704081", "parent_id": node, "parallelism": "4",
                "autotune": "true",
            }),
            span("InstantiatedCapturedFunction::RunAsync", 1, 2, args={"id": run}),
            span("ExecutorState::Process", 5, 30, tid=2, args={"id": run, "iter_num": "0"}),
            span("GatherV2:GatherV2", 6, 20, tid=2),
        ]
    )  # fmt: skip
    table = trace.iterators
    assert (table.parallelism.max(), table.is_autotuned.max()) == (4, 1)
    assert table.parent.max() == int(node)
    assert names(trace, EventKind.OPERATOR) == []
    assert "GatherV2:GatherV2" in names(trace, EventKind.INPUT_WORK)


@pytest.mark.parametrize(
    ("has_events", "kind"),
    # Without device events, the operator itself communicates; else it launches what does.
    [(False, EventKind.HOST_COLLECTIVE), (True, EventKind.OPERATOR)],
)
def test_events_of_a_tpu_are_seen_before_those_of_the_host(
    has_events: bool, kind: EventKind
) -> None:
    device = [process(3, "/device:TPU:0"), *thread(3, 3, "XLA Ops")]
    work = [span("fusion.1", 20.0, 10.0, pid=3, tid=3)] if has_events else []
    trace = read([*HOST, *device, span("sum:CollectiveReduceV2", 10.0), *work])
    assert names(trace, kind) == ["sum:CollectiveReduceV2"]


def test_many_threads_of_few_events() -> None:
    count = 30_000
    content: list[Any] = [process(701, "/host:CPU")]
    for tid in range(1, count + 1):
        content += thread(701, tid, f"thread {tid}", order=tid)
        # None, one or two events, which begin at the thread's number in microseconds.
        content += [span(f"op{turn}", tid + turn, tid=tid) for turn in range(tid % 3)]
    trace = read(to_bytes(content))
    # The first event is that of thread 1; 10,000 threads have one event, 10,000 have two.
    assert len(trace.events) == 30_000
    track = trace.tracks.thread[trace.events.track]
    turn = np.array([int(trace.name(row)[2:]) for row in range(30_000)])
    assert trace.events.start_ns.tolist() == ((track + turn - 1) * 1000).tolist()
