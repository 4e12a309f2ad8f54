"""Facts in tool results besides step times, and how the report shows them."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.rules.evidence.tfdata_pipelines import missing_overlap
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Aspect, KernelTotal, OperatorTotal, Precision, Totals, Trace
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    kernel_stats,
    overview,
    read,
    stage,
    tensorflow_stats,
    tpu_step,
)

GPU = input_pipeline(generic_step(0, step=10.0, wait_input=4.0, compute=6.0))
TPU = input_pipeline(tpu_step(0, compute=9.0, infeed=1.0), hardware="TPU")


def totals_of(trace: Trace) -> Totals:
    assert trace.totals is not None
    return trace.totals


def with_gpu(**files: bytes) -> dict[str, bytes]:
    """The files of a GPU's session: `kernel_stats=…` is `h.kernel_stats.pb`."""
    others = {f"h.{name}": data for name, data in files.items()}
    return {"h.input_pipeline.pb": GPU} | {
        name if "." in name.removeprefix("h.") else f"{name}.pb": data
        for name, data in others.items()
    }


def missing(report: Report, rule_id: str) -> list[str]:
    """Why a rule is not applicable."""
    outcome = next(outcome for outcome in report.outcomes if outcome.rule_id == rule_id)
    assert outcome.status == "not_applicable"
    gaps = {gap.signal: gap for gap in report.missing_signals}
    return [f"{gaps[signal].reason}. {gaps[signal].remedy}" for signal in outcome.missing]


def test_precision_comes_from_the_recorder() -> None:
    trace = read(with_gpu(overview_page=overview(percent={9: 12.5, 10: 87.5})))
    assert totals_of(trace).precision == {Precision.BITS_16: 0.125, Precision.BITS_32: 0.875}
    shares = analyze(trace).overview.precision
    assert shares == {"8": 0.0, "16": 0.125, "32": 0.875, "64": 0.0, "unknown": 0.0}


@pytest.mark.parametrize("percent", [{}, {9: 0.0, 10: 0.0}, {9: -1.0}, {10: float("nan")}])
def test_precision_is_unknown_if_not_recorded(percent: dict[int, float]) -> None:
    trace = read(with_gpu(overview_page=overview(percent=percent)))
    assert totals_of(trace).precision is None
    assert analyze(trace).overview.precision is None


def test_kernels_come_from_the_kernel_table() -> None:
    files = with_gpu(
        kernel_stats=kernel_stats(
            ("volta_sgemm_128x64_nn", 700, 3),
            ("ncclAllReduceRingLLKernel_sum_f32", 900, 2),
            ("volta_sgemm_128x64_nn", 300, 1),
        ),
        tensorflow_stats=tensorflow_stats(("Device", "MatMul", "dense/MatMul", 4, 5.0, 5.0)),
    )
    report = analyze(read(files))
    found = [(k.name, k.family, k.count, k.total_ns) for k in report.overview.kernels]
    assert found == [
        ("volta_sgemm_128x64_nn", "matmul", 4, 1000),
        ("ncclAllReduceRingLLKernel_sum_f32", "collective", 2, 900),
    ]
    assert report.overview.kernels[0].share == pytest.approx(1000 / 1900)


def test_device_operator_types_replace_a_missing_kernel_table() -> None:
    stats = tensorflow_stats(
        ("Device", "Conv2D", "replica_1/a/Conv2D", 2, 30.0, 20.0),
        ("Device", "Conv2D", "a/Conv2D", 2, 30.0, 25.5),
        ("Device", "MatMul", "dense/MatMul", 1, 50.0, 50.0),
        ("Device", "IDLE", "IDLE", 1, 1e6, 1e6),
        ("Host", "MatMul", "host/MatMul", 1, 9.0, 9.0),
    )
    assert totals_of(read(with_gpu(tensorflow_stats=stats))).kernels == (
        KernelTotal("MatMul", "matmul", 1, 50_000),
        KernelTotal("Conv2D", "convolution", 4, 45_500),
    )


def test_placement_of_operators_by_count_and_own_time() -> None:
    stats = tensorflow_stats(
        ("Device", "MatMul", "a", 6, 90.0, 60.0),
        ("Host", "MatMul", "b", 2, 50.0, 40.0),
        ("Host", "_Send", "no computation", 100, 500.0, 500.0),
        ("Host", "IDLE", "IDLE", 1, 1e6, 1e6),
    )
    operators = analyze(read(with_gpu(tensorflow_stats=stats))).overview.operators
    # 6 of 6 + 2; 60 of 60 + 40 us
    assert (operators.device_share_by_count, operators.device_share_by_time) == (0.75, 0.6)


def test_operators_of_the_input_pipeline_are_not_separated() -> None:
    stats = tensorflow_stats(
        ("Device", "MatMul", "a", 6, 90.0, 60.0),
        ("Host", "Mul", "of a map function, or of the step", 2, 50.0, 40.0),
        ("Host", "Dataset", "Iterator::Model::Map", 2, 80.0, 30.0),
    )
    trace = read(with_gpu(tensorflow_stats=stats))
    operators = analyze(trace).overview.operators
    assert (operators.device_share_by_count, operators.device_share_by_time) == (None, None)
    (pipeline,) = totals_of(trace).input_stages
    assert pipeline == OperatorTotal("Iterator::Model::Map", "Dataset", False, 2, 80_000, 30_000)
    # TensorFlow counts all operators: 6 of 10.
    (note,) = (note for note in trace.notes if note.id == "recorded-figures")
    assert "60.0 % of operators on the device" in note.message


def test_input_finding_shows_the_stages_of_the_pipeline() -> None:
    stages = [
        stage("Iterator::Model::Batch", 5, 12.0, 2.0, "Preprocessing"),
        stage("Iterator::Model::Batch::Map", 40, 10.0, 10.0, "Preprocessing"),
    ]
    step = generic_step(0, step=10.0, wait_input=4.0, compute=6.0)
    report = analyze(read({"h.input_pipeline.pb": input_pipeline(step, stages=stages)}))
    (finding,) = report.findings
    assert finding.rule_id == "input-stall"
    assert finding.summary.endswith(" for input.")
    assert finding.title == "Feed the device without making it wait"
    assert finding.saving is not None
    # The 4 ms disappear if they overlap 6 ms of compute; half of them, if cores are shared.
    assert (finding.saving.low_ns, finding.saving.high_ns) == (2_000_000, 4_000_000)
    table: Any = finding.evidence[1]
    assert table.rows == [
        ["Iterator::Model::Batch::Map", "Preprocessing", 40, 10_000_000, 10_000_000],
        ["Iterator::Model::Batch", "Preprocessing", 5, 12_000_000, 2_000_000],
    ]


@pytest.mark.parametrize("root", ["Model", "Root"])
def test_prefetching_pipeline_already_overlaps(root: str) -> None:
    stages = [stage(f"Iterator::{root}::Prefetch", 5, 12.0, 2.0, "Preprocessing")]
    step = generic_step(0, step=10.0, wait_input=4.0, compute=6.0)
    report = analyze(read({"h.input_pipeline.pb": input_pipeline(step, stages=stages)}))
    saving = report.findings[0].saving
    assert saving is not None
    # At twice the rate, half of the 4 ms go; the middle between that and all of it is expected.
    assert (saving.low_ns, saving.expected_ns) == (2_000_000, 3_000_000)


@pytest.mark.parametrize(
    ("chain", "change"),
    [
        ("Model::BatchV2::Map", "overlapped-input"),
        ("Model::BatchV2::ParallelMapV2", "prefetch"),
        ("Model::Prefetch::BatchV2::ParallelMapV2", "prepare-once"),
    ],
)
def test_stages_that_are_there_are_not_advised(chain: str, change: str) -> None:
    parts = chain.split("::")
    names = ["::".join(parts[:length]) for length in range(2, len(parts) + 1)]
    stages = [stage(f"Iterator::{name}", 5, 12.0, 2.0, "Preprocessing") for name in names]
    step = generic_step(0, step=10.0, wait_input=4.0, compute=6.0)
    signals = Signals(run_of(read({"h.input_pipeline.pb": input_pipeline(step, stages=stages)})))
    assert missing_overlap(signals)[0] == change


def test_stages_that_only_wait_come_last() -> None:
    stages = [
        stage("Iterator::Prefetch::Generator", 5, 50.0, 50.0, "Preprocessing"),
        stage("Iterator::Model::Prefetch", 5, 40.0, 40.0, "Preprocessing"),
        stage("Iterator::Model::Prefetch::Map", 40, 10.0, 10.0, "Preprocessing"),
    ]
    step = generic_step(0, step=10.0, wait_input=4.0, compute=6.0)
    report = analyze(read({"h.input_pipeline.pb": input_pipeline(step, stages=stages)}))
    table: Any = report.findings[0].evidence[1]
    assert table.rows[0][0] == "Iterator::Model::Prefetch::Map"


def test_input_wait_is_unknown_without_a_pipeline() -> None:
    step = generic_step(0, step=6.0, compute=6.0)
    blind = read({"h.input_pipeline.pb": input_pipeline(step)})
    assert analyze(blind).overview.input_wait_share is None
    assert missing(analyze(blind), "input-stall")[0].startswith(
        "the files do not show whether the program has an input pipeline. Record again"
    )
    stages = [stage("Iterator::Model", 5, 1.0, 1.0, "Preprocessing")]
    seeing = read({"h.input_pipeline.pb": input_pipeline(step, stages=stages)})
    assert analyze(seeing).overview.input_wait_share == 0.0


def test_tpu_without_infeed_has_no_input_wait() -> None:
    step = tpu_step(0, compute=6.0)
    trace = read({"h.input_pipeline.pb": input_pipeline(step, hardware="TPU")})
    overview = analyze(trace).overview
    assert (overview.input_wait_share, overview.exposed_communication_share) == (0.0, 0.0)
    # Copies are part of a core's compute, and nothing is known about the host.
    assert overview.exposed_copy_share is None
    assert "do not separate copies" in missing(analyze(trace), "exposed-copies")[0]
    assert "nothing about the host" in missing(analyze(trace), "recompilation")[0]


def test_collectives_within_compute_are_unknown() -> None:
    hidden = analyze(read(with_gpu(overview_page=overview(device="GPU", cores=8))))
    assert hidden.overview.exposed_communication_share is None
    assert "do not separate them" in missing(hidden, "exposed-communication")[0]
    alone = analyze(read(with_gpu(overview_page=overview(device="GPU", cores=1))))
    assert alone.overview.exposed_communication_share == 0.0


def test_rules_that_need_events_are_not_applicable() -> None:
    step = generic_step(0, step=20.0, wait_input=4.0, compute=6.0, prepare=8.0, host_compute=2.0)
    report = analyze(read({"h.input_pipeline.pb": input_pipeline(step)}))
    assert [finding.rule_id for finding in report.findings] == ["input-stall"]
    assert report.overview.between_steps_share is None
    for rule_id in ("device-synchronization", "host-placed-operators"):
        assert "not which call launched which kernel" in missing(report, rule_id)[0]
    assert "not what ran between them" in missing(report, "step-gap")[0]


def test_event_counts_are_unknown() -> None:
    step = generic_step(0, step=20.0, collectives=8.0, compute=6.0, to_device=6.0)
    results = input_pipeline(step, knows_collectives=True)
    found = {one.rule_id: one for one in analyze(read({"h.input_pipeline.pb": results})).findings}
    communication, copies = found["exposed-communication"], found["exposed-copies"]
    assert "(collectives summed up by step)" in communication.summary
    assert "(copies summed up by step), mostly host to device" in copies.summary
    tables: list[Any] = [communication.evidence[0], copies.evidence[0]]
    assert [
        table.rows[0][table.columns.index(column)]
        for table in tables
        for column in table.columns
        if column.key == "count"
    ] == [None, None]


def test_recorded_waiting_is_not_transfer() -> None:
    step = tpu_step(0, compute=6.0, all_reduce=1.0, all_reduce_wait=3.0)
    trace = read({"h.input_pipeline.pb": input_pipeline(step, hardware="TPU")})
    (finding,) = analyze(trace).findings
    assert "75.0 % of the time in collectives is waiting" in finding.summary
    assert finding.saving is not None
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (1_000_000, 1_000_000)
    # A TPU has no NCCL.
    assert not any("Nccl" in (remedy.snippet or "") for remedy in finding.remedies)


def test_memory_is_that_of_the_fullest_device() -> None:
    profile = {
        "memoryProfilePerAllocator": {
            name: {
                "profileSummary": {
                    "peakStats": {"peakBytesInUse": str(peak)},
                    "memoryCapacity": "1000",
                }
            }
            for name, peak in (("GPU_0_bfc", 600), ("GPU_1_bfc", 960), ("gpu_host_bfc", 5000))
        }
    }
    report = analyze(read(with_gpu(**{"memory_profile.json.gz": gzip.compress(document(profile))})))
    memory = report.overview.memory
    assert memory is not None
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (960, None)
    assert memory.capacity_bytes == 1000
    finding = next(
        finding for finding in report.findings if finding.rule_id == "memory-near-capacity"
    )
    assert "Peak allocated memory is 960 B of 1000 B (96.0 %)" in finding.summary


def test_memory_from_the_buffers_of_a_program() -> None:
    viewer = {
        "bufferAssignment": {"bufferAllocations": [{"size": "1048576"}, {"size": "2097152"}, {}]}
    }
    trace = read({"h.input_pipeline.pb": TPU, "h.memory_viewer.json": document(viewer)})
    assert totals_of(trace).peak_allocated_bytes == 3 << 20
    assert trace.source.has_memory


def test_without_memory_files_memory_is_unknown() -> None:
    assert analyze(read(with_gpu())).overview.memory is None


def test_devices_and_figures() -> None:
    percent = {1: 48.75, 2: 1.5, 3: 87.5, 7: 70.0, 12: 99.5}
    page = overview(TPU, percent=percent, device="TPU v2", cores=8)
    profile = {
        "byCategory": {
            "children": [
                {"name": "convolution fusion", "metrics": {"time": 0.75}},
                {"name": "infeed", "metrics": {"time": 0.125}},
            ]
        }
    }
    trace = read({"h.overview_page.pb": page, "h.op_profile.json": document(profile)})
    assert [(d.index, d.name, d.kind) for d in trace.devices] == [
        (index, "TPU v2", "tpu") for index in range(8)
    ]
    report = analyze(trace)
    device = report.workers[0].device
    assert device is not None
    assert (device.visible, device.used) == (8, 8)
    assert totals_of(trace).matrix_unit_share == 0.4875
    note = next(note.message for note in trace.notes if note.id == "recorded-figures")
    assert note == (
        "The profiler states for the whole recording: 48.8 % use of the matrix units, 1.5 % device "
        "idle, 87.5 % host idle, 70.0 % of the roofline's FLOP rate, 99.5 % of operators on the "
        "device, including those of the input pipeline, 75.0 % of operations in 'convolution "
        "fusion', 12.5 % of operations in 'infeed'."
    )


def test_chart_tables_give_the_same() -> None:
    tables = [
        {
            "p": {
                "mxu_utilization_percent": "48.8%",
                "host_idle_time_percent": "87.7%",
                "device_compute_16bit_percent": "25.0%",
                "device_compute_32bit_percent": "75.0%",
            }
        },
        chart_table({"stepnum": ["0"], "computeTimeMs": [3.0], "inputTimeMs": [1.0]}),
        {
            "p": {
                "device_core_count": "8 (Replica count = 8, num cores per replica = 1)",
                "device_type": "TPU v2",
            }
        },
        chart_table({"opName": ["fusion.1"], "occurrences": [5]}),  # no stages: without their times
        chart_table(
            {
                "opName": ["Iterator::Model"],
                "count": [3],
                "timeInMs": [2.0],
                "selfTimeInMs": [1.5],
                "category": ["Enqueue"],
            }
        ),
    ]
    trace = read({"h.overview_page.json": document(tables)})
    totals = totals_of(trace)
    assert (len(trace.devices), trace.devices[0].name) == (8, "TPU v2")
    assert totals.matrix_unit_share == pytest.approx(0.488)
    assert totals.precision == {Precision.BITS_16: 0.25, Precision.BITS_32: 0.75}
    assert totals.input_stages == (
        OperatorTotal("Iterator::Model", "Enqueue", False, 3, 2_000_000, 1_500_000),
    )
    assert totals.shows == {Aspect.INPUT}
    note = next(note.message for note in trace.notes if note.id == "recorded-figures")
    assert "87.7 % host idle" in note


def test_notes_explain_the_times() -> None:
    results = input_pipeline(
        generic_step(0, step=6.0, compute=6.0), errors=["No step marker observed.\x1b[31m"]
    )
    report = analyze(read({"h.input_pipeline.pb": results}))
    notes = {note.id: note for note in report.notes}
    assert "the order of events" in notes["summed-results"].message
    assert "TensorFlow 2.4" in notes["summed-results"].remedy
    assert notes["profiler-warning"].message.startswith("The profiler reported: No step marker")
    assert "does not name the device" in notes["unknown-device"].message
    assert (report.formats, report.framework) == (["tf-tools"], "tensorflow")
