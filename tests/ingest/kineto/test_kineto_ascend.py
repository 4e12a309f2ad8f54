"""Ascend NPUs: Kineto files of torch_npu, and other files of its profiler.

Modeled on a recorded file, msprof_3466812.1787275553016492530.pt.trace.json in the tests of
github.com/Ascend/msinsight: the device is a process named NPU, its streams are threads, kernels
have neither correlation nor device, and `privateuse1_runtime` events, the targets of flows, are at
the start of their kernels. Names of collectives are those of HCCL in the same repository.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Device, EventKind, KernelFamily, Trace
from tests.support.kineto_files import HOST, event, read, to_bytes

MATMUL = "MatMulV2_ND_ND_FP32_FP32_false_false_all_65537"
REDUCE = "ReduceSum_7a09f5b7af4126487a7f726a9aac7548_high_performance_82100900"
ALL_REDUCE = "hcom_allReduce__503_96_4"
PLACE = {"pid": 0, "tid": 47}


def label(which: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": which, "ts": 0.0, "pid": pid, "tid": tid, "args": args}


def task(name: str, ts: float, dur: float, flow: int, kind: str) -> list[dict[str, Any]]:
    """A kernel as torch_npu writes it: with an artificial call and a flow between them."""
    link = {"cat": "ac2g", "name": "ac2g", "id": flow, "ts": ts}
    args = {"streamId": 47, "type": kind}
    return [
        event(name, ts, 0.0, "privateuse1_runtime"),
        {"ph": "s", **HOST, **link},
        {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, **PLACE, "args": args},
        {"ph": "f", **PLACE, **link, "bp": "e"},
    ]


def recorded() -> Trace:
    """Two steps of 100 us: two kernels and an all-reduce in each."""
    events = [
        label("process_name", 0, 0, name="NPU"),
        label("process_labels", 0, 0, labels="Ascend NPU"),
        label("process_name", 10, 0, name="python"),
        label("thread_name", 47, 47, name="NPU stream 47"),
    ]
    for step in (0, 1):
        at = 1000 + 100 * step
        dims = {"Input Dims": [[32, 10], [10, 1024]], "Input type": ["float", "float"]}
        events += [
            event(f"ProfilerStep#{step}", at, 100, "user_annotation"),
            event("aten::mm", at + 2, 10, args={"External id": 5 + step, **dims}),
            event("aclnnMm", at + 4, 2, args={"External id": 15 + step}),
            *task(MATMUL, at + 20, 12.32, 3 * step + 1, "KERNEL_AICORE"),
            *task(REDUCE, at + 40, 6.66, 3 * step + 2, "KERNEL_MIX_AIV"),
            *task(ALL_REDUCE, at + 50, 30, 3 * step + 3, "KERNEL_AICPU"),
        ]
    header = {"deviceProperties": [], "trace_id": "76CA", "record_shapes": 1, "host_name": "msprof"}
    return read(to_bytes(events, **header))


def test_process_named_npu_is_the_device() -> None:
    # Its peaks are unknown, so the report has no rates.
    assert recorded().devices == (Device(0, "Ascend NPU", "other"),)


def test_kernels_are_on_their_streams() -> None:
    trace = recorded()
    rows = trace.rows(EventKind.KERNEL)
    assert [trace.name(row) for row in rows.tolist()] == [MATMUL, REDUCE] * 2
    assert trace.events.duration_ns[rows].tolist() == [12_320, 6_660] * 2
    assert trace.kernels.family[:2].tolist() == [KernelFamily.MATMUL, KernelFamily.REDUCTION]
    tracks = set(trace.events.track[rows].tolist())
    assert [trace.tracks.thread[track] for track in tracks] == [47]
    assert [trace.tracks.device[track] for track in tracks] == [0]


def test_collectives_are_recognized_by_name() -> None:
    trace = recorded()
    rows = trace.rows(EventKind.COLLECTIVE)
    assert [trace.name(row) for row in rows.tolist()] == [ALL_REDUCE] * 2
    assert trace.texts(trace.collectives.operation) == ("all-reduce",) * 2


def test_calls_at_the_start_of_kernels_are_not_launches() -> None:
    # The file does not say when the host launched a kernel. If these calls were launches, the
    # device would seem to wait for every kernel.
    trace = recorded()
    device = trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
    assert trace.events.launched_by[device].tolist() == [-1] * 6
    assert len(trace.rows(EventKind.LAUNCH)) == 0


def test_the_report_speaks_of_an_npu() -> None:
    report = analyze(run_of(recorded()))
    (worker,) = report.workers
    assert worker.device is not None
    assert worker.device.name == "Ascend NPU"
    assert report.steps.mean_ns == 100_000
    # (12.32 + 6.66 + 30) of 100 us; nothing covers the all-reduce.
    assert report.overview.device_busy_share == pytest.approx(0.4898)
    assert report.overview.exposed_communication_share == pytest.approx(0.3)
    outcome = {outcome.rule_id: outcome for outcome in report.outcomes}["launch-bound"]
    assert outcome.status == "not_applicable"


@pytest.mark.parametrize("is_first", [True, False])
def test_files_of_the_ascend_profiler_are_named(is_first: bool) -> None:
    # torch_npu/profiler in github.com/Ascend/pytorch: an array whose host part has categories.
    hardware = [
        label("process_name", 300, 0, name="Ascend Hardware"),
        {"ph": "X", "name": "MatMulV2", "pid": 300, "tid": 2, "ts": "1020.5", "dur": 12.3}
        | {"args": {"Task Type": "AI_CORE", "Stream Id": 2}},
    ]
    host = [event("aten::mm", 1002, 10), event("mm", 1004, 2, "enqueue")]
    events = [*hardware, *host] if is_first else [*host, *hardware]
    with pytest.raises(UnreadableProfileError) as caught:
        read(json.dumps(events).encode(), "run/ASCEND_PROFILER_OUTPUT/trace_view.json")
    assert "Ascend's profiler" in caught.value.message
    assert caught.value.hint.endswith(".pt.trace.json.")
