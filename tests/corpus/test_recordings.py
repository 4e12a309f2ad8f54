"""What real recordings caught and missed: where they began and ended, and on which devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.testing import run_of
from tests.support.corpus_traces import read


def notes_of(report: Report) -> set[str]:
    return {note.id for note in report.notes}


def test_a_server_that_was_decoding_when_the_recording_began(corpus: Path) -> None:
    """INDEX: the first kernel of stream 3 is launched at 123 us and starts at 463,380 us."""
    report = analyze(corpus / "tracelens" / "inference_sglang_decode")
    (note,) = (note for note in report.notes if note.id == "recording-began-mid-work")
    assert "stream 3 starts 463 ms after" in note.message
    assert "the first 463 ms of the profile are not analyzed" in note.message
    # INDEX: from there on, the device is busy 93.5 % of 10.45 ms.
    assert report.overview.window_ns == pytest.approx(10.45e6, rel=0.001)
    assert report.overview.device_busy_share == pytest.approx(0.935, abs=0.001)
    assert "nexplained" not in report.headline
    assert "no rule" not in report.headline


def test_no_other_whole_recording_is_cut(corpus: Path) -> None:
    # These have first events that wait for recorded work of other streams, by milliseconds.
    for name in ("hta/trace_diff_test", "hta/trace_diff_control", "hta/df_index_resolver"):
        assert "recording-began-mid-work" not in notes_of(analyze(corpus / name))


def test_requests_for_memory_access_are_no_sign_of_a_queue(corpus: Path) -> None:
    """INDEX: 22,361 of 25,814 device events have no launch; the device idles 5,634 ms."""
    signals = Signals(run_of(read(corpus, "hta/mtia_trace_single_rank/*/*.json.gz")))
    attribution = signals.attribution
    idle_ns = attribution.window_ns - attribution.total_ns(*BUSY)
    assert idle_ns == pytest.approx(5_634e6, rel=0.001)
    assert (attribution.share(Cause.QUEUED) or 0) < 0.05


@pytest.mark.parametrize("name", ["hta/rank_non_gpu", "hazyresearch/trace"])
def test_a_gpu_program_without_device_events(corpus: Path, name: str) -> None:
    """INDEX: six `nccl:all_to_all` annotations; launches without kernels."""
    report = analyze(corpus / name)
    assert "device-events-missing" in notes_of(report)
    assert "CPU" not in report.caption
    device = report.workers[0].device
    assert device is not None
    assert device.used is None
    assert report.overview.device_busy_share is None


@pytest.mark.parametrize(
    "name",
    ["willding123/trace1", "harryjmoss/gpu_working_chrome_trace", "hta/critical_path_alexnet"],
)
def test_first_calls_are_warm_up(corpus: Path, name: str) -> None:
    """INDEX: first-call warm-up. If it is most of the profile, that is said in its place."""
    assert {"first-call", "start-up"} & notes_of(analyze(corpus / name))


@pytest.mark.parametrize(
    "name",
    [
        "tracelens/mi300/resnet_act_checkpoint",
        "kineto/resnet50_num_workers_0",
        "hta/negative_queue_length_values_check",
        "sam-fast/amg_example_trace_6d986f1b",
    ],
)
def test_steady_recordings_have_no_first_calls(corpus: Path, name: str) -> None:
    assert not {"first-call", "graph-capture"} & notes_of(analyze(corpus / name))


def test_a_graph_is_captured_in_the_recording(corpus: Path) -> None:
    # The file has one cudaStreamBeginCapture and one cudaGraphInstantiateWithFlags.
    report = analyze(corpus / "pytorch-labs" / "01_143a949f_asdf_True")
    (note,) = (note for note in report.notes if note.id == "graph-capture")
    assert "a graph is captured" in note.message


def _named_idle(report: Report, finding: int) -> dict[str, int]:
    """Idle time by annotation in a finding's evidence."""
    for evidence in msgspec.to_builtins(report.findings[finding].evidence):
        if evidence["title"] == "Idle time by annotation":
            return {row[0]: row[1] for row in evidence["rows"]}
    return {}


def test_idle_time_in_the_optimizer_is_named(corpus: Path) -> None:
    """INDEX: 3,490 ms of idle (26 % of the step) lie inside `## optimizer ##`."""
    report = analyze(corpus / "hta" / "mtia_trace_single_rank")
    named = [_named_idle(report, finding).get("## optimizer ##", 0) for finding in (0, 1)]
    assert max(named) == pytest.approx(3_490e6, rel=0.001)
    assert max(named) / report.overview.window_ns == pytest.approx(0.26, abs=0.005)


def test_queued_work_is_named(corpus: Path) -> None:
    """INDEX: one gap of 64 ms per step, under `## sparse_data_dist ##`."""
    report = analyze(corpus / "hta" / "negative_queue_length_values_check")
    assert "under sparse_data_dist" in report.headline
    assert "stream 7" in report.headline
    assert "no rule" not in report.headline
    (finding,) = (finding for finding in report.findings if finding.rule_id == "blocked-stream")
    assert finding.saving is None
    assert "under sparse_data_dist" in finding.summary
    table = msgspec.to_builtins(finding.evidence[0])
    keys = [column["key"] for column in table["columns"]]
    first = dict(zip(keys, table["rows"][0], strict=True))
    assert first["launched_by"] == "cudaGraphLaunch"
    assert first["host_call"] == "cudaMemcpyAsync"
    # Four gaps of 64 ms in the steps with a recorded launch, and smaller ones.
    assert first["idle_ns"] > 4 * 63e6


def test_a_file_of_four_merged_ranks(corpus: Path) -> None:
    """INDEX: four ranks merged into one file; one process with four devices is wrong."""
    report = analyze(corpus / "amd" / "MLExamples_TraceLens_fused_traces_merged_all_events")
    assert "merged-file" in notes_of(report)
    assert [worker.rank for worker in report.workers] == [0, 1, 2, 3]
    for worker in report.workers:
        assert worker.device is not None
        assert (worker.device.visible, worker.device.used) == (1, 1)
    assert "4 ×" not in report.caption


def test_a_marker_that_was_open_when_the_recording_ended_is_no_step(corpus: Path) -> None:
    """INDEX: the last ProfilerStep of this run lasts 18 us; the true step takes 60.1 ms."""
    steps = Signals(run_of(read(corpus, "modded-nanogpt/current_a/*"))).steps
    assert len(steps) == 5
    assert steps.window_ns / 5 == pytest.approx(60.1e6, rel=1e-3)
    assert steps.excluded[-1].reason.startswith("partial: ")


NAMED_OTHERWISE = {
    "amd/MLExamples_TraceLens_fused_traces_merged_all_events",  # buffers of DDP are broadcast
    "hta/nccl_parser_config",  # ranges of the program: forward, backward, optimizer
    "hta/trace_filter",  # the same
    "sam-fast/asdf_True_10b61b2f",  # the same: generate_masks
    "param/linear",  # ranges of the optimizer, and 9.3 % outside of them
    "local-torch2.13-cpu/mlp_fp32",  # the same, 7.4 %
    "derived-malformed",  # copies of that
    "local-tf-cpu/custom_loop_trace_steps",  # in every second step: `periodic-spikes`
}


def test_no_large_part_of_the_time_stays_without_a_name(
    corpus_reports: list[dict[str, Any]],
) -> None:
    seen = 0
    for report in corpus_reports:
        overview = report["overview"]
        parts = {part["cause"]: part["share"] for part in overview["breakdown"]}
        # Where a report leads with how to record, its time has no meaning.
        if parts.get("unexplained", 0) < 0.1 or report["trust"]["level"] == "do not act":
            continue
        if any(report["run"].startswith(name) for name in NAMED_OTHERWISE):
            continue
        seen += 1
        (places,) = (
            (finding, table)
            for finding in report["findings"]
            for table in finding["evidence"]
            if table["title"] == "Where nothing is recorded"
        )
        finding, table = places
        assert table["rows"], report["run"]
        assert finding["remedies"][0]["change"] == "record-host-code", report["run"]
    assert seen > 10


def test_a_loop_that_nothing_marks(corpus: Path) -> None:
    """An epoch of MNIST: 60,000 images in batches of 1,024 are 59. Ten batches of tests follow."""
    report = analyze(corpus / "nsys-public" / "openhackatho_baseline_5b73")
    assert report.steps is not None
    assert report.steps.source.startswith("59 repetitions of ")
    # The last one has no end. The twin of the recording, with ranges, waits 94.5 % for input.
    assert report.overview.steps == 58
    assert report.overview.input_wait_share == pytest.approx(0.94, abs=0.02)


def test_layers_without_a_name_of_their_own(corpus: Path) -> None:
    """320 layers of a model that has 32, and a forward pass takes 843 ms."""
    report = analyze(corpus / "nsys-public" / "zx3xyy_result_2_7B_clean_954d")
    assert report.overview.step_time_ns == pytest.approx(843e6, rel=0.01)
