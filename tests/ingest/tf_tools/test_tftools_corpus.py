"""Recorded sessions against the profiler's sums and XProf's numbers for the same files.

The profiler's definitions: its mean step is the mean of the steps' times; its share of input is
the *mean of the steps' shares*, not the share of the sums, which is what the report has.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals import Cause, Signals

pytestmark = pytest.mark.corpus

GPU = "xprof-demo/plugins/profile/GPU-input-bound"
DEMO = "xprof-demo-data/plugins/profile/demo_fa119549"
TPU = "xprof-demo/plugins/profile/Cloud-TPU"

# TensorFlow's categories of a step, and our causes.
CATEGORIES: dict[Cause, Sequence[str]] = {
    Cause.INPUT: ("host_wait_input_ms",),
    Cause.COMPILING: ("host_compile_ms",),
    Cause.LAUNCHING: ("host_prepare_ms",),
    Cause.FRAMEWORK: ("host_compute_ms",),
    Cause.COPIES: ("host_to_device_ms", "device_to_device_ms", "output_ms"),
    Cause.COMMUNICATION: ("device_collectives_ms",),
    Cause.UNEXPLAINED: ("unknown_time_ms",),
}


def signals_of(path: Path) -> Signals:
    (run,) = load(path)
    return Signals(run)


def rules(report: Report, status: str) -> set[str]:
    return {outcome.rule_id for outcome in report.outcomes if outcome.status == status}


@pytest.mark.parametrize(
    ("path", "mean", "deviation", "least", "most", "input_percent"),
    [
        # step_time_summary and input_percent_summary.average, as TensorFlow stored them
        (GPU, 1114.498922909091, 44.83284258129103, 1043.383238, 1173.609688, 81.3721625552601),
        (DEMO, 652.3236141111112, 467.73820514057985, 196.635661, 1190.414077, 43.384377074382805),
    ],
)
def test_breakdown_matches_the_summary_of_the_profiler(
    corpus: Path,
    path: str,
    mean: float,
    deviation: float,
    least: float,
    most: float,
    input_percent: float,
) -> None:
    signals = signals_of(corpus / path)
    steps_ms = signals.steps.duration_ns / 1e6
    assert steps_ms.mean() == pytest.approx(mean, rel=1e-14)
    assert steps_ms.std(ddof=1) == pytest.approx(deviation, rel=1e-12)
    assert (steps_ms.min(), steps_ms.max()) == (least, most)
    shares = signals.attribution.step_total_ns[Cause.INPUT] / signals.steps.duration_ns
    assert 100 * shares.mean() == pytest.approx(input_percent, rel=1e-14)


@pytest.mark.parametrize("path", [GPU, DEMO])
def test_categories_match_in_every_step(corpus: Path, path: str) -> None:
    messages: Any = pytest.importorskip("xprof.protobuf.input_pipeline_pb2")
    (file,) = (corpus / path).glob("*.input_pipeline.pb")
    result = messages.InputPipelineAnalysisResult.FromString(file.read_bytes())
    details = []
    for wrapped in result.step_details:
        details.append(messages.PerGenericStepDetails())
        assert wrapped.Unpack(details[-1])
    signals = signals_of(corpus / path)
    totals = signals.attribution.step_total_ns
    assert signals.steps.number.tolist() == [step.step_number for step in details]
    assert signals.steps.duration_ns.tolist() == [
        round(step.step_time_ms * 1e6) for step in details
    ]
    for cause, names in CATEGORIES.items():
        expected = [round(sum(getattr(step, name) for name in names) * 1e6) for step in details]
        assert totals[cause].tolist() == expected, cause
    compute = totals[Cause.COMPUTE_32] + totals[Cause.COMPUTE_UNKNOWN]
    assert compute.tolist() == [round(step.device_compute_ms * 1e6) for step in details]


def test_a_gpu_that_waits_for_input(corpus: Path) -> None:
    report = analyze(corpus / GPU)
    assert [(finding.rule_id, finding.severity) for finding in report.findings] == [
        ("input-stall", "high"),
        ("full-precision-compute", "low"),  # all of it is 32-bit, on a GPU of unknown name
    ]
    saving = report.findings[0].saving
    assert saving is not None
    # 907.2136792727273 of 1114.498922909091 ms: the share of the sums
    assert saving.share_high == pytest.approx(0.814010, abs=1e-6)
    overview = report.overview
    assert (report.steps.used, report.steps.mean_ns) == (11, 1_114_498_923)
    assert overview.precision == {"8": 0.0, "16": 0.0, "32": 1.0, "64": 0.0, "unknown": 0.0}
    # Its collectives are in the compute, its operators' places mixed with the pipeline's.
    assert overview.exposed_communication_share is None
    assert overview.operators.device_share_by_time is None
    assert rules(report, "passed") == {"exposed-copies", "recompilation"}
    # Sums by name do not tell which launches the device waits for.
    assert "launch-bound" in rules(report, "not_applicable")
    # tensorflow_stats: the largest sums of own time by type, of 15.79 s in all
    top = [
        (kernel.name, kernel.family, kernel.total_ns // 10**6) for kernel in overview.kernels[:3]
    ]
    assert top == [
        ("Conv2DBackpropFilter", "convolution", 4246),
        ("Conv2DBackpropInput", "convolution", 3325),
        ("Conv2D", "convolution", 3076),
    ]
    device = report.workers[0].device
    assert device is not None
    assert (device.visible, device.used, device.name) == (8, 8, "GPU")
    notes = {note.id: note for note in report.notes}
    assert "74.6 % of operators on the device" in notes["recorded-figures"].message
    assert set(notes) == {"summed-results", "recorded-figures", "unknown-device"}


def test_a_tpu_that_computes(corpus: Path) -> None:
    report = analyze(corpus / TPU)
    (finding,) = report.findings
    assert (finding.rule_id, finding.severity, finding.saving) == (
        "low-matrix-unit-use",
        "low",
        None,
    )
    # INDEX: MXU 48.8 %.
    assert finding.summary.startswith("The matrix units reach 48.8 % of their peak")
    # INDEX: step 313.8 ms, infeed 0.0 %, MXU 48.8 %, host idle 87.7 %
    assert report.steps.mean_ns == pytest.approx(313.8e6, abs=0.05e6)
    assert report.overview.input_wait_share == pytest.approx(0.0, abs=0.0005)
    figures = next(note.message for note in report.notes if note.id == "recorded-figures")
    assert "48.8 % use of the matrix units, 87.7 % host idle" in figures
    device = report.workers[0].device
    assert device is not None
    assert (device.name, device.used) == ("TPU v2", 8)
    assert report.overview.precision is None
    assert rules(report, "passed") == {
        "input-stall",
        "infeed-wait",
        "exposed-communication",
    }


def test_tpu_steps_with_communication_from_the_pod_viewer(corpus: Path) -> None:
    signals = signals_of(corpus / TPU)
    totals = signals.attribution.step_total_ns
    # input_pipeline.json: compute + input + idle of each step, in ms
    compute_ms = np.array([313.493952857, 313.500298572, 314.251012857])
    input_ms = np.array([0.039432857000008426, 0.036651427999970565, 0.0037528579999843714])
    # pod_viewer.json: all-reduce of the slowest core (4, 10 and 6): computing and waiting, in us
    all_reduce_ms = np.array(
        [2619.544286 + 226.552858, 2607.302857 + 451.074285, 2621.641428 + 990.951431]
    )
    all_reduce_ms /= 1e3
    assert (totals[Cause.COMMUNICATION] / 1e6).tolist() == pytest.approx(all_reduce_ms, abs=1e-6)
    assert (totals[Cause.INPUT] / 1e6).tolist() == pytest.approx(input_ms, abs=1e-6)
    assert (totals[Cause.COMPUTE_UNKNOWN] / 1e6).tolist() == pytest.approx(
        compute_ms - all_reduce_ms, abs=1e-6
    )
    *full, idle_ns = totals[Cause.UNEXPLAINED].tolist()
    assert full == [0, 0]
    assert idle_ns == pytest.approx(31_315.714, abs=1)


def test_a_pod_of_32_cores(corpus: Path) -> None:
    report = analyze(corpus / "xprof-demo-data/plugins/profile/demo_4b90bd08")
    device = report.workers[0].device
    assert device is not None
    assert (device.name, device.used) == ("TPU v3", 32)
    assert [finding.rule_id for finding in report.findings] == ["exposed-communication"]


@pytest.mark.parametrize(
    ("session", "mean_ms", "input_share", "is_inconsistent"),
    [
        ("demo_d75cca1a", 141.8, 0.848, False),
        ("demo_745c886c", 14.7, 0.332, True),  # made by hand: it states 9.3 ms
        ("demo_c9f376f5", 14.7, 0.332, True),
        ("demo_ac5aae70", 652.3, 0.689, False),
    ],
)
def test_demonstration_files(
    corpus: Path, session: str, mean_ms: float, input_share: float, is_inconsistent: bool
) -> None:
    report = analyze(corpus / "xprof-demo-data/plugins/profile" / session)
    assert report.steps.mean_ns == pytest.approx(mean_ms * 1e6, rel=0.002)
    assert report.overview.input_wait_share == pytest.approx(input_share, abs=0.001)
    assert any(note.id == "results-disagree" for note in report.notes) is is_inconsistent


def test_files_of_several_recordings_in_one_session(corpus: Path, tmp_path: Path) -> None:
    session = tmp_path / "plugins" / "profile" / "mixed"
    session.mkdir(parents=True)
    # Not demo_c9f376f5, which has the same name as demo_745c886c.
    for folder in ("d75cca1a", "745c886c", "ac5aae70", "fa119549", "4b90bd08", "b69c7a7d"):
        (file,) = (corpus / "xprof-demo-data/plugins/profile" / f"demo_{folder}").iterdir()
        shutil.copy(file, session)
    report = analyze(tmp_path)
    assert report.steps.used == 9
    (note,) = (note for note in report.notes if note.id == "results-disagree")
    assert "profile_demo.input_pipeline.pb (652 ms per step)" in note.message
    for other in ("input_pipeline.json (142", "overview_page.json (14.7", "pod_viewer.json (398"):
        assert f"profile_demo.{other}" in note.message


def test_tables_as_xprof_writes_them(corpus: Path, tmp_path: Path) -> None:
    for tool in ("overview_page", "input_pipeline_analyzer", "memory_profile"):
        source = corpus / "xprof-golden" / f"data_tpu-training_{tool}_tpu_training.json.gz"
        shutil.copy(source, tmp_path / f"h.{tool.removesuffix('_analyzer')}.json.gz")
    report = analyze(tmp_path)
    # The five rows: 120.882, 120.116, 120.131, 120.116 and 3.052 ms
    assert report.steps.mean_ns == pytest.approx(96.859e6, abs=0.002e6)
    assert report.steps.max_ns == pytest.approx(120.882e6, abs=0.001e6)
    figures = next(note.message for note in report.notes if note.id == "recorded-figures")
    assert "15.7 % use of the matrix units" in figures
    memory = report.overview.memory
    assert memory is not None
    assert (memory.peak_allocated_bytes, memory.capacity_bytes) == (5_307_538_688, 102_803_439_616)
